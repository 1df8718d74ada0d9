"""Operations on tables: create, alter, rename, delete, enable, disable (OC-01 to OC-11, DD-01 to DD-07).

Each operation takes these steps:

1. Take locks: table before names before regions (OC-03, `master/catalog/locks.py`).
2. Build the new records beside the current ones (OC-04). No reader sees them yet.
3. Write all records in one fenced multi, together with the request's result if it has an id (OC-05,
   `master/catalog/tables.py`). If the store rejects the multi, drop the records, release the locks and reject the
   request. If the outcome is unknown, reply so.
4. From here on the operation cannot fail (OC-06): the remaining steps only change memory.
5. Update the cluster state from the written records, regions before the table (OC-07). Replies now show the change
   (OC-08).
6. Only now send orders to servers (OC-09). This work depends on nothing but records and reports, so this master or the
   next one repeats it until it is done.

If the id of a request is in the store, a master has carried the request out, and the same result is returned again.
After a lost reply, or an unexplained rejection by the store, the id is looked up before the request is rejected.

A request is rejected only after the store has confirmed this master's epoch. Otherwise a master that has been replaced
could reject a request that its successor's changes have made legal.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import msgspec
from twisted.logger import Logger

from coord.errors import BadVersion, MultiFailed
from coord.rpc.server import RpcError
from master.catalog import store, tables, tablet_progress
from master.catalog.forgetting import forgotten_ms
from master.catalog.locks import Lock, LockTable, Rank
from master.catalog.lookup import find_table, summary
from master.catalog.servers_for import kind_for, missing_group, storage_of, tablet_hosts
from master.context import ActiveContext
from regions import messages as ms
from regions.assign.resharding.automatic import objection_to_settings
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.entities import Server, Table
from regions.messages import ddl
from regions.records import partitioning
from regions.records import schema as columns
from regions.records.formats import TABLETS
from regions.records.kinds import check_group, check_kind
from regions.records.members import REPLICAS_MAX, Storage
from regions.records.model import RegionRecord, RequestRecord, TableIntent, TableRecord, TableState, TabletState
from regions.records.partitioning import RegionSpec, check_ranges
from regions.records.schema import Schema
from regions.records.znodes import CorruptZnode, check_table_name, decode_name, decode_table
from regions.replication.creation import first_records, objection_to_tablets
from regions.transitions import purging
from regions.transitions.table_states import VISIBLE, table_after

log = Logger()

#: Attempts of an operation whose record another operation changes at the same time.
TRIES_MAX: Final = 3


#: Restores a deleted table. The second argument returns the operations that record the result.
Undeletes = Callable[[ddl.UndeleteTable, Callable[[TableRecord], tables.Ops]], Awaitable[TableRecord]]


async def _nobody_undeletes(request: ddl.UndeleteTable, _: Callable[[TableRecord], tables.Ops]) -> TableRecord:
    raise RpcError(ms.NOT_FOUND, f"there is no deleted table {request.table!r}")


class TableOperations:
    """Carries out requests about tables during one tenure, one at a time for each table."""

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
        #: Carries out UndeleteTable (`master/catalog/undelete.py`); set by `ActiveMaster`.
        self.undelete: Undeletes = _nobody_undeletes
        #: Tables that are being created, by id. They are PREPARING and not visible yet (DD-01).
        self.preparing: dict[str, TableRecord] = {}

    async def perform(self, request: ddl.DdlRequest) -> ms.Tables:
        """Carry out a request, or return its result again. Raise RpcError, or as the functions of
        `master.catalog.tables`."""
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
            # The cluster state in memory forbids the request. Reject it only if no other master has changed the store.
            await self._active_master.fence.verify()
            raise
        return await self._answer(request, record)

    # --- requests with an id ------------------------------------------------------------------------------------------

    async def _perform_once(self, request: ddl.DdlRequest) -> TableRecord:
        """Carry out a request that an earlier attempt may have carried out already."""
        done = await self._find_result(request)
        if done is not None:
            return done
        try:
            return await self._perform(request)
        except (RpcError, tables.AlreadyDone, MultiFailed):
            # The refusal may be the effect of this request's own earlier write, whose reply was lost.
            done = await self._find_result(request)
            if done is None:
                raise
            return done

    async def _find_result(self, request: ddl.DdlRequest) -> TableRecord | None:
        """Return the table record that the same request has written, or None if it has not been carried out.

        Raises:
            RpcError: another request has used the id.
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
        """Return the operations that record the result in the multi."""
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
            raise RpcError(ms.ALREADY_EXISTS, f"table {error} already exists") from error
        raise AssertionError(f"{type(request).__name__} is no DDL request")

    async def _create(self, request: ddl.CreateTable) -> TableRecord:
        """Create a table (DD-01). Its name is locked and its state PREPARING until the write that makes it RUNNING."""
        schema, specs = plan_create(request)
        world = self._active_master.world
        kind = kind_for(request, world)
        storage = storage_of(request, kind, world)
        sites = await self._sites(request, kind) if storage is Storage.TABLET else []
        async with self.locks.hold(Lock(Rank.NAME, request.name)):
            if request.name in world.names:
                raise RpcError(ms.ALREADY_EXISTS, f"table {request.name!r} already exists")
            table, regions = new_table(
                request, schema, specs, await self._fresh_id(), self._now_ms(), TableState.PREPARING, kind
            )
            if storage is Storage.TABLET:
                table = msgspec.structs.replace(table, storage=storage)
                bulk_min = self._active_master.assigner.config.tablets_bulk_min
                regions = first_records(regions, sites, request.replication, bulk_min)
            self.preparing[table.table_id] = table
            try:
                written = msgspec.structs.replace(table, state=_after(table, "written"))
                await self._write_new(written, regions, self._result_ops(request, written))
            finally:
                del self.preparing[table.table_id]
            self._active_master.observe(ev.TableSeen(written, 0, [(region, 0) for region in regions]))
        return written

    async def _fresh_id(self) -> str:
        """Return an id that no table has had (MD-06). The store itself refuses the id of a table that has a record."""
        while True:
            table_id = tables.new_table_id(self._token)
            if not await forgotten_ms(self._active_master.fence, table_id):
                return table_id

    async def _sites(self, request: ddl.CreateTable, kind: str) -> list[Server]:
        """Return the servers that may host a new table's tablets. Raise RpcError if the table cannot be created."""
        missing = missing_group(request.group, self._active_master.world)
        if missing:
            raise RpcError(ms.BAD_REQUEST, missing)
        registered, hosts = tablet_hosts(request.group, kind, self._active_master.world)
        sites = [one for one in hosts if self._active_master.keeper.has_room(one.uuid)]
        if sites and await store.format_in_force(self._active_master.fence) < TABLETS:
            await self._active_master.formats.look()  # all may have upgraded since it was checked last
        objection = objection_to_tablets(
            sites,
            replicas=request.replication,
            racks_min=request.racks_min,
            allow_under_replicated=request.allow_under_replicated,
            format_in_force=await store.format_in_force(self._active_master.fence),
            registered=registered,
        )
        if objection:
            full = ", ".join(one.uuid for one in hosts if one not in sites)
            note = f"; the disk of {full} has less free space than its reserve" if full else ""
            raise RpcError(ms.BAD_REQUEST, objection + note)
        return sites

    async def _write_new(self, table: TableRecord, regions: list[RegionRecord], entry: tables.Ops) -> None:
        """Write a new table. First remove the remains of an unfinished creation of the same name."""
        fence = self._active_master.fence
        try:
            await tables.create(fence, table, regions, entry)
        except tables.AlreadyExists:
            if not await self._clear_remains(table.name):
                raise
            await tables.create(fence, table, regions, entry)

    async def _clear_remains(self, name: str) -> bool:
        """Remove the remains of an unfinished creation. Return True if the name is free now."""
        fence = self._active_master.fence
        path = fence.layout.name(name)
        found = await store.read_all(fence.client, [path])
        if not found:
            return True
        try:
            table_id = decode_name(found[0][1], path)
        except CorruptZnode as error:
            log.error("cannot use table name, its znode is damaged: {error}", error=error)
            return False
        if table_id in self.preparing or await fence.client.exists(fence.layout.table(table_id)) is not None:
            await self.refresh_table(table_id)
            return False
        await tables.remove_orphan(fence, table_id, path)
        return True

    async def _alter(self, request: ddl.AlterTable) -> TableRecord:
        """Alter or rename a table (DD-07). A new name is locked after the table."""
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
        """Change a table by `write` under the table's lock. Retry if its record was changed at the same time."""
        for tries in range(1, TRIES_MAX + 1):
            table_id = self._visible(request.table).record.table_id
            async with self.locks.hold(Lock(Rank.TABLE, table_id), *names):
                table = self._visible(request.table)  # the table may have been renamed or deleted during the wait
                if table.record.table_id != table_id:
                    continue
                try:
                    return await write(request, table)
                except MultiFailed as error:
                    if not isinstance(error.error, BadVersion) or tries == TRIES_MAX:
                        raise
                    await self.refresh_table(table_id)
        raise RpcError(ms.BUSY, f"table {request.table} is being changed by other requests, try again")

    async def _write_alter(self, request: ddl.AlterTable, table: Table) -> TableRecord:
        former = table.record
        if request.name and request.name != former.name and request.name in self._active_master.world.names:
            raise RpcError(ms.ALREADY_EXISTS, f"table {request.name!r} already exists")
        try:
            altered = alter(former, request)
        except ValueError as error:
            raise RpcError(ms.BAD_REQUEST, f"table {former.name}: {error}") from error
        objection = self._active_master.keeper.objection_to_replicas(former, request.replicas)
        if objection:
            raise RpcError(ms.BAD_REQUEST, f"table {former.name} keeps {former.replication} replicas: {objection}")
        return altered if request.dry_run else await self._put(request, table, altered)

    async def _set_intent(self, request: ddl.SetTableIntent, table: Table) -> TableRecord:
        former = table.record
        wanted = msgspec.structs.replace(former, intent=request.intent, state=_after(former, "intent"))
        return await self._put(request, table, wanted)

    async def _put(
        self, request: ddl.AlterTable | ddl.SetTableIntent, table: Table, changed: TableRecord
    ) -> TableRecord:
        """Write a table's next record and update the cluster state. If nothing changes, only record the result."""
        fence, former = self._active_master.fence, table.record
        entry = self._result_ops(request, changed)
        if changed == former:
            await tables.record_only(fence, former, table.version, entry)
            return former
        version = await tables.change(fence, changed, table.version, entry, former_name=former.name)
        self._active_master.observe(ev.TableSeen(changed, version))
        return changed

    async def _delete(self, request: ddl.DeleteTable, table: Table) -> TableRecord:
        """Delete a table (DD-06): one write sets REMOVED and frees the name. The assigner then closes the regions."""
        removed = purging.deleted(table.record, self._now_ms(), self._grace_ms)
        version = await tables.remove(
            self._active_master.fence, removed, table.version, self._result_ops(request, removed)
        )
        self._active_master.observe(ev.TableSeen(removed, version))
        return removed

    # --- background work ----------------------------------------------------------------------------------------------

    async def finish_altering(self, effect: fx.FinishAltering) -> None:
        """Set an ALTERING table to RUNNING: every region has the latest schema (DD-07).

        Do nothing if the table has been altered again.
        """
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
                log.info("table {table} stays ALTERING, its record was changed at the same time: {error}",
                         table=done.name, error=error)  # fmt: skip
                await self.refresh_table(effect.table_id)
                return
            self._active_master.observe(ev.TableSeen(done, version))

    async def refresh_table(self, table_id: str) -> None:
        """Read a table again: its record in memory may be out of date or missing.

        If the znode's value is damaged, keep the record in memory with the znode's new version.
        """
        fence = self._active_master.fence
        path = fence.layout.table(table_id)
        for _, data, stat in await store.read_all(fence.client, [path]):
            known = self._active_master.world.tables.get(table_id)
            try:
                record = decode_table(data, path)
            except CorruptZnode as error:
                log.error("{what}: {error}", what="ignoring a damaged table" if known is None else
                          "table record is damaged, keeping its former value", error=error)  # fmt: skip
                if known is None:
                    return
                record = known.record
            if known is not None:
                if known.version != stat.version:
                    self._active_master.observe(ev.TableSeen(record, stat.version))
            elif not record.finished_ms:
                regions = await store.load_regions(fence.client, fence.layout, table_id)
                self._active_master.observe(ev.TableSeen(record, stat.version, regions))

    # --- replies ------------------------------------------------------------------------------------------------------

    def _visible(self, name: str) -> Table:
        """Return the table of that name or id. Raise RpcError(NOT_FOUND) for an unknown or a deleted table."""
        table = find_table(self._active_master.world, name)
        if table.record.state not in VISIBLE:
            raise RpcError(ms.NOT_FOUND, f"table {name!r} is deleted")
        return table

    async def _answer(self, request: ddl.DdlRequest, record: TableRecord) -> ms.Tables:
        """Return the written record with the table's current counts, after the wait that the request asks for."""
        table = self._active_master.world.tables.get(record.table_id)
        if table is None or self._active_master.is_over:
            # The table is deleted and closed, or another master has taken over. The operation was done (OC-06).
            if request.wait_ms > 0 and self._active_master.is_over:
                raise RpcError(
                    ms.TIMED_OUT, f"the change of table {record.name} is stored; another master completes it"
                )
            return ms.Tables([ms.TableSummary(record, record.regions, 0, 0, 0, 0)])
        keeper = self._active_master.keeper
        tablets = keeper.counts(record.table_id) if record.is_tablet else None

        counts = keeper.with_count(record) if isinstance(request, ddl.AlterTable) and request.replicas else None

        def is_over() -> bool:
            if tablets is None:
                return is_wait_over(request, table)
            if counts is not None and not counts.is_reached():
                return False
            return tablet_progress.is_wait_over(request, tablets, is_closed=keeper.is_closed(record.table_id))

        def so_far() -> str:
            if tablets is None:
                how_far = progress_text(request, table)
            elif counts is not None:
                how_far = counts.words()
            else:
                how_far = tablet_progress.progress_text(request, tablets)
            return f"table {record.name}: {how_far}"

        await self._active_master.wait(is_over, request.wait_ms, so_far)
        return ms.Tables([msgspec.structs.replace(summary(table, tablets), table=answer_record(record, table.record))])


#: Fields in which the results of requests are.
_RESULTS: Final = ("schema_version", "name", "intent", "replication")


def answer_record(written: TableRecord, now: TableRecord) -> TableRecord:
    """Return the record for the reply: the current one if the request's result still holds, else the written one."""
    if all(getattr(written, name) == getattr(now, name) for name in _RESULTS):
        return now
    return written


def _after(table: TableRecord, event: str) -> TableState:
    """Return the table's state after `event`. Raise InvalidTableStep."""
    state = table_after(table.state, event, subject=table.name)
    assert state is not None, f"{event} does not end a table"
    return state


# --- pure parts -------------------------------------------------------------------------------------------------------


def plan_create(request: ddl.CreateTable) -> tuple[Schema | str, list[RegionSpec]]:
    """Return schema and key ranges of a table to be created. Raise RpcError(BAD_REQUEST) for an invalid request."""
    try:
        check_table_name(request.name)
        check_group(request.group)
        if request.regions and (request.splits or request.hash_buckets):
            raise ValueError("give regions, or splits and hash buckets, not both")
        specs = list(request.regions) or partitioning.ranges(request.splits, request.hash_buckets)
        check_ranges(specs)
        if len(specs) > store.REGIONS_PER_TABLE_MAX:
            raise ValueError(f"{len(specs)} regions; a table has at most {store.REGIONS_PER_TABLE_MAX}")
        if not 1 <= request.replication <= REPLICAS_MAX:
            raise ValueError(f"replication is between 1 and {REPLICAS_MAX}, not {request.replication}")
        if sum(map(bool, (request.columns, request.schema, request.restored_schema))) > 1:
            raise ValueError("give columns, a schema text or a restored schema, not several")
        schema = columns.create(request.columns) if request.columns else request.schema
        if request.restored_schema is not None:
            columns.check_restored(request.restored_schema)
            schema = request.restored_schema
        if why := _objection_to_limits(request.split_above, request.merge_below, request.replication, request.storage):
            raise ValueError(why)
        if request.schema_version < 0:
            raise ValueError(f"a schema version is not negative, unlike {request.schema_version}")
    except ValueError as error:
        raise RpcError(ms.BAD_REQUEST, str(error)) from error
    return schema, specs


def new_table(
    request: ddl.CreateTable,
    schema: Schema | str,
    specs: list[RegionSpec],
    table_id: str,
    now_ms: int,
    state: TableState,
    kind: str,
) -> tuple[TableRecord, list[RegionRecord]]:
    """Return the records of a new table and its regions, in state PREPARING (DD-01)."""
    table = TableRecord(
        table_id,
        request.name,
        schema,
        request.schema_version,
        state=state,
        replication=request.replication,
        regions=len(specs),
        group=request.group,
        system=request.system,
        created_ms=now_ms,
        hash_buckets=request.hash_buckets,
        kind=kind,
        split_above=request.split_above,
        merge_below=request.merge_below,
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
    """Return the table's next record (DD-07), or `former` if the request changes nothing.

    Raises:
        ValueError: the request's change of schema or kind is not allowed.
    """
    schema, kind = former.schema, former.kind
    if request.kind not in ("", kind):
        if kind:
            raise ValueError(f"its kind is {kind}, and the kind of a table cannot be changed")
        check_kind(request.kind)
        kind = request.kind
    if request.schema is not None:
        if request.steps or isinstance(schema, Schema):
            raise ValueError("its schema has columns: add, drop or rename columns instead")
        schema = request.schema
    if request.steps:
        if not isinstance(schema, Schema):
            raise ValueError("its schema is a text without columns: replace the text with --schema")
        schema = columns.evolve(schema, request.steps)
    name, replication = request.name or former.name, request.replicas or former.replication
    former = _with_limits(former, request)
    if (name, schema) == (former.name, former.schema):
        return msgspec.structs.replace(former, kind=kind, replication=replication)
    is_first = former.fully_applied_schema is None
    return msgspec.structs.replace(
        former,
        name=name,
        schema=schema,
        kind=kind,
        replication=replication,
        schema_version=former.schema_version + 1,
        state=_after(former, "alter"),
        fully_applied_schema=former.schema if is_first else former.fully_applied_schema,
        fully_applied_version=former.schema_version if is_first else former.fully_applied_version,
    )


def _with_limits(former: TableRecord, request: ddl.AlterTable) -> TableRecord:
    """Return the record with the request's limits of sizes. Raise ValueError."""
    split_above = former.split_above if request.split_above is None else request.split_above
    merge_below = former.merge_below if request.merge_below is None else request.merge_below
    if (split_above, merge_below) == (former.split_above, former.merge_below):
        return former
    if why := _objection_to_limits(split_above, merge_below, former.replication, former.storage):
        raise ValueError(why)
    return msgspec.structs.replace(former, split_above=split_above, merge_below=merge_below)


def _objection_to_limits(split_above: int, merge_below: int, replication: int, storage: str) -> str:
    if storage == Storage.SHARED and replication > 1 and (split_above or merge_below):
        return "--split-above and --merge-below are for tablets, and for shared storage with one replica"
    return objection_to_settings(split_above, merge_below)


def alter_finished(former: TableRecord) -> TableRecord:
    """Return the record of an altered table after all its replicas have reported the latest schema version."""
    return msgspec.structs.replace(
        former, state=_after(former, "all regions say"), fully_applied_schema=None, fully_applied_version=0
    )


def is_wait_over(request: ddl.DdlRequest, table: Table) -> bool:
    """Return True if the state that the caller waits for is reached, or if a later request has changed the goal."""
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
    """Return how far the table is from that state."""
    if isinstance(request, ddl.AlterTable):
        version = table.record.schema_version
        return f"{table.altered} of {table.replicas} replicas have schema version {version}"
    return f"{table.open_replicas} of {table.replicas} replicas are open"
