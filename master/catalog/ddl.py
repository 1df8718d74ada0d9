"""Operations on tables: create, alter, rename, delete, enable, disable (OC-01 to OC-11, DD-01 to DD-07).

Each goes the same way, and the numbers are those of the contract:

1. take locks, table before names before regions (OC-03, `master/catalog/locks.py`);
2. make the records as they shall be, beside those that are (OC-04): nobody sees them;
3. write all of it in one fenced multi, with the request's result if it has an id (OC-05, `master/catalog/tables.py`);
if that
   is refused, the records are dropped, the locks given back, and the caller told; if nobody knows, the caller is told
   that;
4. from here on it cannot fail (OC-06): what follows is memory;
5. the picture takes over what is in the store now, regions first, the table then (OC-07), and answers can show it
   (OC-08);
6. only now are servers told (OC-09). That work hangs on nothing but records: this master and the next do it until it is
   done, from what the picture says, from what servers report, and by looking again now and then.

A request whose id is in the store has been carried out, by whichever master: its result is told again. After any doubt,
a lost answer or a refusal that fits no other explanation, the store is asked for the id before anything else is said.

Nothing is refused before the store has said that our epoch stands: a master that was replaced and does not know it yet
would refuse what its successor has made possible.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import msgspec
from twisted.logger import Logger

from coord.errors import BadVersion, MultiFailed
from coord.rpc.server import RpcError
from master.catalog import store, tables
from master.catalog.locks import Lock, LockTable, Rank
from master.catalog.lookup import find_table, summary
from master.context import ActiveContext
from regions import messages as ms
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.entities import Table
from regions.cluster.state import ClusterState
from regions.messages import ddl
from regions.records import partitioning
from regions.records import schema as columns
from regions.records.kinds import check_group, check_kind, one_copy, resolve
from regions.records.model import RegionRecord, RequestRecord, TableIntent, TableRecord, TableState, TabletState
from regions.records.partitioning import RegionSpec, check_ranges
from regions.records.schema import Schema
from regions.records.znodes import CorruptZnode, check_table_name, decode_name, decode_table
from regions.transitions import purging
from regions.transitions.table_states import VISIBLE, table_after

log = Logger()

REPLICATION_MAX: Final = 7
#: A record that has changed under an operation is read again and the operation done anew so often.
TRIES_MAX: Final = 3


#: Brings a deleted table back; the second argument makes the part of the multi that records the result.
Undeletes = Callable[[ddl.UndeleteTable, Callable[[TableRecord], tables.Ops]], Awaitable[TableRecord]]


async def _nobody_undeletes(request: ddl.UndeleteTable, _: Callable[[TableRecord], tables.Ops]) -> TableRecord:
    raise RpcError(ms.NOT_FOUND, f"there is no deleted table {request.table!r}")


class TableOperations:
    """Carries out requests about tables for one reign, one at a time for each table."""

    def __init__(
        self,
        active_master: ActiveContext,
        now_ms: Callable[[], int],
        token: Callable[[int], bytes],
        grace_ms: int,
    ) -> None:
        """`grace_ms`: how long the rows of a deleted table are kept."""
        self._active_master = active_master
        self._grace_ms = grace_ms
        self._now_ms = now_ms
        self._token = token
        self.locks = LockTable()
        #: Carries out UndeleteTable (`master/catalog/undelete.py`); set by the reign.
        self.undelete: Undeletes = _nobody_undeletes
        #: Tables that are being created, by id: PREPARING, and visible to nobody (DD-01).
        self.preparing: dict[str, TableRecord] = {}

    async def perform(self, request: ddl.DdlRequest) -> ms.Tables:
        """Carry out a request, or tell again what it has led to. Raises RpcError, and what `master.catalog.tables`
        raises."""
        try:
            ddl.check_request_id(request.request_id)
        except ValueError as error:
            raise RpcError(ms.BAD_REQUEST, str(error)) from error
        try:
            if request.request_id:
                async with self.locks.hold(Lock(Rank.REQUEST, request.request_id)):
                    record = await self._perform_once(request)
            else:
                record = await self._perform(request)
        except RpcError:
            # Our picture stands against it. Is it still the truth, or has another master changed what we know?
            await self._active_master.fence.stands()
            raise
        return await self._answer(request, record)

    # --- requests with an id ------------------------------------------------------------------------------------------

    async def _perform_once(self, request: ddl.DdlRequest) -> TableRecord:
        """Carry out a request that may have come before."""
        done = await self._find_result(request)
        if done is not None:
            return done
        try:
            return await self._perform(request)
        except (RpcError, tables.AlreadyDone, MultiFailed):
            # Refused because it was done already, by a write of ours whose answer was lost?
            done = await self._find_result(request)
            if done is None:
                raise
            return done

    async def _find_result(self, request: ddl.DdlRequest) -> TableRecord | None:
        """The table as the same request left it; None if it has not been carried out.

        Raises:
            RpcError: the id has been used for something else.
        """
        found = await tables.find_request(self._active_master.fence, request.request_id)
        if found is None:
            return None
        if found.digest != ddl.contents_digest(request):
            raise RpcError(
                ms.BAD_REQUEST,
                f"request id {request.request_id} belongs to another request: {found.kind} of table {found.table.name}",
            )
        known = self._active_master.world.tables.get(found.table.table_id)
        if known is None or known.record != found.table:
            await self.refresh_table(found.table.table_id)
        return found.table

    def _result_ops(self, request: ddl.DdlRequest, table: TableRecord) -> tables.Ops:
        """The part of the multi that records the result."""
        fence = self._active_master.fence
        if not request.request_id:
            return []
        kind, digest = type(request).__name__, ddl.contents_digest(request)
        made = RequestRecord(request.request_id, kind, digest, table, fence.epoch, self._now_ms())
        return tables.entry(fence, made)

    # --- the operations -----------------------------------------------------------------------------------------------

    async def _perform(self, request: ddl.DdlRequest) -> TableRecord:
        try:
            match request:
                case ddl.CreateTable():
                    return await self._create(request)
                case ddl.AlterTable():
                    return await self._alter(request)
                case ddl.DeleteTable():
                    return await self._changed(request, [], self._delete)
                case ddl.SetTableIntent():
                    return await self._changed(request, [], self._set_intent)
                case ddl.UndeleteTable():
                    return await self.undelete(request, partial(self._result_ops, request))
        except tables.AlreadyExists as error:
            raise RpcError(ms.ALREADY_EXISTS, f"there is a table {error}") from error
        raise AssertionError(f"{type(request).__name__} is no request about tables")

    async def _create(self, request: ddl.CreateTable) -> TableRecord:
        """DD-01: the name is locked and the table PREPARING until the write that makes it RUNNING."""
        schema, specs = plan_create(request)
        world = self._active_master.world
        kind = kind_for(request, world)
        async with self.locks.hold(Lock(Rank.NAME, request.name)):
            if request.name in world.names:
                raise RpcError(ms.ALREADY_EXISTS, f"there is a table {request.name!r}")
            table, regions = new_table(
                request, schema, specs, tables.new_table_id(self._token), self._now_ms(), TableState.PREPARING, kind
            )
            self.preparing[table.table_id] = table
            try:
                written = msgspec.structs.replace(table, state=_after(table, "written"))
                await self._write_new(written, regions, self._result_ops(request, written))
            finally:
                del self.preparing[table.table_id]
            self._active_master.observe(ev.TableSeen(written, 0, [(region, 0) for region in regions]))
        return written

    async def _write_new(self, table: TableRecord, regions: list[RegionRecord], entry: tables.Ops) -> None:
        """Write a new table; if remains of an unfinished one have its name, after clearing them away."""
        fence = self._active_master.fence
        try:
            await tables.create(fence, table, regions, entry)
        except tables.AlreadyExists:
            if not await self._clear_remains(table.name):
                raise
            await tables.create(fence, table, regions, entry)

    async def _clear_remains(self, name: str) -> bool:
        """Whether the name was that of a table whose creation was not finished, and is free now."""
        fence = self._active_master.fence
        path = fence.layout.name(name)
        found = await store.read_all(fence.client, [path])
        if not found:
            return True
        try:
            table_id = decode_name(found[0][1], path)
        except CorruptZnode as error:
            log.error("left alone: {error}", error=error)
            return False
        if table_id in self.preparing or await fence.client.exists(fence.layout.table(table_id)) is not None:
            await self.refresh_table(table_id)
            return False
        await tables.remove_orphan(fence, table_id, path)
        return True

    async def _alter(self, request: ddl.AlterTable) -> TableRecord:
        """DD-07. A new name is locked as well, after the table."""
        if not request.name:
            return await self._changed(request, [], self._write_alter)
        try:
            check_table_name(request.name)
        except ValueError as error:
            raise RpcError(ms.BAD_REQUEST, str(error)) from error
        return await self._changed(request, [Lock(Rank.NAME, request.name)], self._write_alter)

    async def _changed(
        self,
        request: ddl.AlterTable | ddl.DeleteTable | ddl.SetTableIntent,
        names: list[Lock],
        write: Callable[[Any, Table], Awaitable[TableRecord]],
    ) -> TableRecord:
        """Hold the table's lock, and let `write` change it; again if its record turns out to be another by now."""
        for tries in range(1, TRIES_MAX + 1):
            table_id = self._visible(request.table).record.table_id
            async with self.locks.hold(Lock(Rank.TABLE, table_id), *names):
                table = self._visible(request.table)  # it may have been renamed or deleted while we waited
                if table.record.table_id != table_id:
                    continue
                try:
                    return await write(request, table)
                except MultiFailed as error:
                    if not isinstance(error.error, BadVersion) or tries == TRIES_MAX:
                        raise
                    await self.refresh_table(table_id)
        raise RpcError(ms.BUSY, f"table {request.table} changes too quickly")

    async def _write_alter(self, request: ddl.AlterTable, table: Table) -> TableRecord:
        former = table.record
        if request.name and request.name != former.name and request.name in self._active_master.world.names:
            raise RpcError(ms.ALREADY_EXISTS, f"there is a table {request.name!r}")
        try:
            altered = alter(former, request)
        except ValueError as error:
            raise RpcError(ms.BAD_REQUEST, f"table {former.name}: {error}") from error
        return await self._put(request, table, altered)

    async def _set_intent(self, request: ddl.SetTableIntent, table: Table) -> TableRecord:
        former = table.record
        wanted = msgspec.structs.replace(former, intent=request.intent, state=_after(former, "intent"))
        return await self._put(request, table, wanted)

    async def _put(
        self, request: ddl.AlterTable | ddl.SetTableIntent, table: Table, changed: TableRecord
    ) -> TableRecord:
        """Write a table's next record, if it is another one, and take it over."""
        fence, former = self._active_master.fence, table.record
        entry = self._result_ops(request, changed)
        if changed == former:
            await tables.record_only(fence, former, table.version, entry)
            return former
        version = await tables.change(fence, changed, table.version, entry, former_name=former.name)
        self._active_master.observe(ev.TableSeen(changed, version))
        return changed

    async def _delete(self, request: ddl.DeleteTable, table: Table) -> TableRecord:
        """DD-06: to REMOVED, and the name given free, in one write; then the regions are closed."""
        removed = purging.deleted(table.record, self._now_ms(), self._grace_ms)
        version = await tables.remove(self._active_master.fence, removed, table.version, self._result_ops(request, removed))
        self._active_master.observe(ev.TableSeen(removed, version))
        return removed

    # --- what the background wants ------------------------------------------------------------------------------------

    async def finish_altering(self, effect: fx.FinishAltering) -> None:
        """ALTERING to RUNNING: every region follows the latest schema (DD-07). Nothing, if it was altered again."""
        async with self.locks.hold(Lock(Rank.TABLE, effect.table_id)):
            table = self._active_master.world.tables.get(effect.table_id)
            if table is None or table.record.state is not TableState.ALTERING:
                return
            if table.record.schema_version != effect.schema_version:
                return
            done = alter_finished(table.record)
            try:
                version = await tables.change(self._active_master.fence, done, table.version, [])
            except MultiFailed as error:
                log.info("table {table} stays ALTERING for now: {error}", table=done.name, error=error)
                await self.refresh_table(effect.table_id)
                return
            self._active_master.observe(ev.TableSeen(done, version))

    async def refresh_table(self, table_id: str) -> None:
        """Read a table anew: what is known of it may be out of date, or nothing is.

        Keep the known record, at its new version, if somebody has written over the znode what is no table.
        """
        fence = self._active_master.fence
        path = fence.layout.table(table_id)
        for _, data, stat in await store.read_all(fence.client, [path]):
            known = self._active_master.world.tables.get(table_id)
            try:
                record = decode_table(data, path)
            except CorruptZnode as error:
                log.error("{what}: {error}", what="ignored" if known is None else "taken as it was", error=error)
                if known is None:
                    return
                record = known.record
            if known is not None:
                if known.version != stat.version:
                    self._active_master.observe(ev.TableSeen(record, stat.version))
            elif not record.finished_ms:
                regions = await store.load_regions(fence.client, fence.layout, table_id)
                self._active_master.observe(ev.TableSeen(record, stat.version, regions))

    # --- answers ------------------------------------------------------------------------------------------------------

    def _visible(self, name: str) -> Table:
        """The table of that name or id. Raises RpcError(NOT_FOUND): also for one that is deleted."""
        table = find_table(self._active_master.world, name)
        if table.record.state not in VISIBLE:
            raise RpcError(ms.NOT_FOUND, f"table {name!r} is deleted")
        return table

    async def _answer(self, request: ddl.DdlRequest, record: TableRecord) -> ms.Tables:
        """The result: the record as it was written, and the table's counts now, or when what is waited for holds."""
        table = self._active_master.world.tables.get(record.table_id)
        if table is None or self._active_master.is_over:
            # Deleted and closed by now, or another master goes on with it: it was done all the same (OC-06).
            if request.wait_ms > 0 and self._active_master.is_over:
                raise RpcError(ms.TIMED_OUT, f"table {record.name} is written; another master goes on with it")
            return ms.Tables([ms.TableSummary(record, record.regions, 0, 0, 0, 0)])
        await self._active_master.wait(
            lambda: is_wait_over(request, table),
            request.wait_ms,
            lambda: f"table {record.name}: {progress_text(request, table)}",
        )
        return ms.Tables([msgspec.structs.replace(summary(table), table=answer_record(record, table.record))])


def answer_record(written: TableRecord, now: TableRecord) -> TableRecord:
    """The record that answers a request: the result of the request, in the state that the table is in by now."""
    if written.schema_version == now.schema_version and written.name == now.name and written.intent == now.intent:
        return now
    return written


def _after(table: TableRecord, event: str) -> TableState:
    """Raises InvalidTableStep."""
    state = table_after(table.state, event, subject=table.name)
    assert state is not None, f"{event} does not end a table"
    return state


# --- pure parts -------------------------------------------------------------------------------------------------------


def plan_create(request: ddl.CreateTable) -> tuple[Schema | str, list[RegionSpec]]:
    """Schema and key ranges of a table to be created. Raises RpcError(BAD_REQUEST) that says what is wrong."""
    try:
        check_table_name(request.name)
        check_group(request.group)
        if request.regions and (request.splits or request.hash_buckets):
            raise ValueError("give regions, or splits and hash buckets, not both")
        specs = list(request.regions) or partitioning.ranges(request.splits, request.hash_buckets)
        check_ranges(specs)
        if len(specs) > store.REGIONS_PER_TABLE_MAX:
            raise ValueError(f"{len(specs)} regions; a table has at most {store.REGIONS_PER_TABLE_MAX}")
        if not 1 <= request.replication <= REPLICATION_MAX:
            raise ValueError(f"replication is between 1 and {REPLICATION_MAX}, not {request.replication}")
        if request.columns and request.schema:
            raise ValueError("give columns or a schema of your own, not both")
        schema = columns.create(request.columns) if request.columns else request.schema
    except ValueError as error:
        raise RpcError(ms.BAD_REQUEST, str(error)) from error
    return schema, specs


def kind_for(request: ddl.CreateTable, world: ClusterState) -> str:
    """Return the kind of a table to be created.

    Raise RpcError(BAD_REQUEST) unless it is clear which one is meant, and for more replicas than the kind keeps copies.
    """
    servers = [one for one in world.servers.values() if one.fenced_until_ms is None]
    of_group = [one.kind for one in servers if one.group == request.group]
    try:
        kind = resolve(request.kind, of_group or [one.kind for one in servers])
    except ValueError as error:
        raise RpcError(ms.BAD_REQUEST, str(error)) from error
    objection = one_copy(kind, request.replication)
    if objection:
        raise RpcError(ms.BAD_REQUEST, f"{objection}; create the table with replication 1")
    return kind


def new_table(
    request: ddl.CreateTable,
    schema: Schema | str,
    specs: list[RegionSpec],
    table_id: str,
    now_ms: int,
    state: TableState,
    kind: str,
) -> tuple[TableRecord, list[RegionRecord]]:
    """A new table and its regions, PREPARING (DD-01)."""
    table = TableRecord(
        table_id,
        request.name,
        schema,
        state=state,
        replication=request.replication,
        regions=len(specs),
        group=request.group,
        system=request.system,
        created_ms=now_ms,
        hash_buckets=request.hash_buckets,
        kind=kind,
    )
    width = max(4, len(f"{len(specs) - 1:x}"))
    regions = [
        RegionRecord(
            table_id,
            f"{table_id}.{number:0{width}x}",
            spec.start_key,
            spec.end_key,
            spec.size_bytes,
            state=TabletState.PREPARING,
            hash_buckets=request.hash_buckets,
        )
        for number, spec in enumerate(specs)
    ]
    return table, regions


def alter(former: TableRecord, request: ddl.AlterTable) -> TableRecord:
    """The table's next record (DD-07): the same one, if the request changes nothing.

    Raises:
        ValueError: the schema, or the kind, cannot be changed like that.
    """
    schema, kind = former.schema, former.kind
    if request.kind not in ("", kind):
        if kind:
            raise ValueError(f"it is of kind {kind}, and a kind does not change")
        check_kind(request.kind)
        kind = request.kind
    if request.schema is not None:
        if request.steps or isinstance(schema, Schema):
            raise ValueError("its schema has columns: add, drop or rename them")
        schema = request.schema
    if request.steps:
        if not isinstance(schema, Schema):
            raise ValueError("it was created without columns; its schema is a text, which --schema replaces")
        schema = columns.evolve(schema, request.steps)
    name = request.name or former.name
    if (name, schema) == (former.name, former.schema):
        return msgspec.structs.replace(former, kind=kind)
    is_first = former.fully_applied_schema is None
    return msgspec.structs.replace(
        former,
        name=name,
        schema=schema,
        kind=kind,
        schema_version=former.schema_version + 1,
        state=_after(former, "alter"),
        fully_applied_schema=former.schema if is_first else former.fully_applied_schema,
        fully_applied_version=former.schema_version if is_first else former.fully_applied_version,
    )


def alter_finished(former: TableRecord) -> TableRecord:
    """The record of an altered table all of whose regions have said that they follow it."""
    return msgspec.structs.replace(
        former, state=_after(former, "all regions say"), fully_applied_schema=None, fully_applied_version=0
    )


def is_wait_over(request: ddl.DdlRequest, table: Table) -> bool:
    """Whether what a caller may wait for holds, or others have wished for something else since."""
    closed = table.open_replicas == 0 and table.rit == 0
    if table.record.state is TableState.REMOVED:
        return closed
    match request:
        case ddl.AlterTable():
            return table.record.state is TableState.RUNNING
        case ddl.SetTableIntent(intent=TableIntent.DISABLED):
            return closed or table.record.intent is TableIntent.ENABLED
        case _:
            return not table.wants_open or table.open_replicas + table.parked >= table.replicas


def progress_text(request: ddl.DdlRequest, table: Table) -> str:
    """How far that is."""
    if isinstance(request, ddl.AlterTable):
        version = table.record.schema_version
        return f"{table.altered} of {table.replicas} replicas have schema version {version}"
    return f"{table.open_replicas} of {table.replicas} replicas are open"
