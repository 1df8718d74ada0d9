"""The catalog in the store: creation of the root, loading, and all writes except those of tables.

`master/catalog/tables.py` has the writes of tables. Loading also finds the remains of unfinished table creations
(`orphans`).
"""

from __future__ import annotations

import contextlib
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.logger import Logger

from coord.client.ops import Create, Delete, GetChildren, GetData, SetData, WriteOp
from coord.client.requests import gather
from coord.client.session import ZkClient
from coord.daemon import keep_new_objects
from coord.errors import BadVersion, ConfigError, MultiFailed, NodeExists, NoNode, OperationError
from coord.wire.records import Stat
from master.leadership.fence import Fence, in_batches
from regions.cluster.state import ClusterState
from regions.records.acts.resharding import ReshardingRecord
from regions.records.formats import objection
from regions.records.intents import TabletIntents
from regions.records.model import (
    BarRecord,
    ClusterRecord,
    EpochRecord,
    FenceRecord,
    Move,
    MoveBatch,
    PlanRecord,
    RegionRecord,
    TableRecord,
    TransitionRecord,
    WorkOrigin,
)
from regions.records.znodes import (
    FORMAT_VERSION,
    CorruptZnode,
    Layout,
    RegionDecoder,
    decode_bar,
    decode_cluster,
    decode_intents,
    decode_moves,
    decode_name,
    decode_plan,
    decode_region,
    decode_resharding,
    decode_server,
    decode_table,
    decode_transition,
    encode,
)

log = Logger()

#: Znodes in one multi-read.
READ_MAX: Final = 500
#: Znodes in one of the multi-reads that read whole tables.
PART_MAX: Final = 250
#: How many of these multi-reads are sent before the first is answered.
IN_FLIGHT: Final = 3
#: The list of this many region names is about 2 MB in one reply of the store. Our clients accept up to 64 MB.
REGIONS_PER_TABLE_MAX: Final = 200_000
#: Moves in one batch. The batch's znode must stay well below the store's limit for one value.
MOVES_PER_BATCH: Final = 2_000

Found = list[tuple[str, bytes, Stat]]
T = TypeVar("T")


class Loaded:
    """State read from the store. Transitions were read before regions, which `Assigner.load` relies on."""

    def __init__(self) -> None:
        self.cluster = ClusterRecord("")
        self.transitions: list[tuple[TransitionRecord, int]] = []
        self.tables: list[tuple[TableRecord, int]] = []
        self.regions: list[tuple[RegionRecord, int]] = []
        self.plans: list[PlanRecord] = []
        self.moves: list[MoveBatch] = []
        self.intents: list[TabletIntents] = []
        self.reshardings: list[tuple[ReshardingRecord, int]] = []
        #: Tables with a name or a region directory but without a record: (table id, path of the name or "").
        self.orphans: list[tuple[str, str]] = []
        #: A standby's mirror, which replaces `tables` and `regions`. `transitions` are then those of the mirror.
        self.world: ClusterState | None = None


def drained(items: list[T]) -> Iterator[T]:
    """Yield all items, and remove each from the list before it is used.

    So a long list is released in parts: the release of a million records at once would take 80 ms.
    """
    items.reverse()
    while items:
        yield items.pop()


async def initialize_root(
    client: ZkClient,
    layout: Layout,
    now_ms: int,
    token: Callable[[int], bytes] = secrets.token_bytes,
    known_id: str = "",
) -> ClusterRecord:
    """Create the missing directories of the layout, the epoch and the cluster record. Return the cluster record.

    Several masters may call this at the same time. `known_id` is the cluster's id if this master has read it before.
    Raise ConfigError for a cluster of a newer format. Raise CorruptZnode if the record is damaged and the id unknown.
    """
    if await client.exists(layout.cluster) is None:
        await gather(ensureDeferred(_create_if_missing(client, path)) for path in layout.parents())
        await _create_if_missing(client, layout.epoch, encode(EpochRecord("", 0, now_ms)))
        await _create_if_missing(
            client, layout.cluster, encode(ClusterRecord(token(8).hex(), FORMAT_VERSION, at_ms=now_ms))
        )
    else:
        await gather(ensureDeferred(_create_if_missing(client, path)) for path in layout.records())
    data, _ = await client.get(layout.cluster)
    record = _cluster_of(data, layout.cluster, known_id)
    why = objection(record.format_version, layout.cluster)
    if why:
        raise ConfigError(why)
    return record


async def format_in_force(fence: Fence) -> int:
    """Return the cluster's format; the lowest one if the record is damaged, so that nothing relies on a higher one."""
    data, _ = await fence.client.get(fence.layout.cluster)
    try:
        return decode_cluster(data, fence.layout.cluster).format_version
    except CorruptZnode as error:
        log.error("taken for the lowest format: {error}", error=error)
        return FORMAT_VERSION


def _cluster_of(data: bytes, path: str, known_id: str) -> ClusterRecord:
    """Return the cluster record. If it is damaged, return one with `known_id`, or raise CorruptZnode without an id."""
    try:
        return decode_cluster(data, path)
    except CorruptZnode as error:
        if not known_id:
            raise
        log.error("the cluster record is damaged, continuing with the id read before: {error}", error=error)
        return ClusterRecord(known_id, FORMAT_VERSION)


async def _create_if_missing(client: ZkClient, path: str, data: bytes = b"") -> None:
    with contextlib.suppress(NodeExists):
        await client.create(path, data)


async def read_all(client: ZkClient, paths: list[str]) -> Found:
    """Return (path, data, Stat) of each of `paths` that exists, in order. All requests are sent at once."""
    parts = [paths[at : at + READ_MAX] for at in range(0, len(paths), READ_MAX)]
    answers = await gather(client.multi_read([GetData(path) for path in part]) for part in parts)
    return [one for part, answer in zip(parts, answers, strict=True) for one in _present(part, answer)]


def _present(paths: list[str], results: list[Any]) -> Found:
    """Return (path, data, Stat) of each of `paths` that exists, by the results of a multi-read."""
    found: Found = []
    for path, result in zip(paths, results, strict=True):
        if isinstance(result, NoNode):
            continue
        if isinstance(result, OperationError):
            raise result
        assert isinstance(result, tuple), path
        found.append((path, result[0], result[1]))
    return found


async def read_decoded(
    client: ZkClient, paths: Iterable[str], decode: Callable[[bytes, str], T]
) -> list[tuple[T, int]]:
    """Return the records at `paths` with their versions, as `decoded` does.

    Only IN_FLIGHT requests of PART_MAX znodes are sent at once, and each reply is decoded as it arrives. So a turn
    decodes at most these replies, for any number of paths.
    """
    found: list[tuple[T, int]] = []
    waiting: deque[tuple[list[str], Deferred[list[Any]]]] = deque()
    left = iter(paths)
    try:
        while (part := list(islice(left, PART_MAX))) or waiting:
            if part:
                waiting.append((part, client.multi_read([GetData(path) for path in part])))
            if len(waiting) == IN_FLIGHT or not part:
                asked, answer = waiting.popleft()
                found += _decoded_results(asked, await answer, decode)
                keep_new_objects()
    finally:
        for _, unread in waiting:
            unread.addErrback(lambda _: None)
    return found


def _decoded_results(paths: list[str], results: list[Any], decode: Callable[[bytes, str], T]) -> list[tuple[T, int]]:
    """Return what `decoded` returns for `_present`, in one pass: a cold take-over does this for each region."""
    records: list[tuple[T, int]] = []
    for path, result in zip(paths, results, strict=True):
        if isinstance(result, tuple):
            try:
                records.append((decode(result[0], path), result[1].version))
            except CorruptZnode as error:
                log.error("ignoring a damaged znode: {error}", error=error)
        elif not isinstance(result, NoNode):
            raise result
    return records


async def list_all(client: ZkClient, parents: list[str]) -> list[str]:
    """Return the paths of all children of `parents`. A parent that does not exist has no children."""
    return list(await _paths_below(client, parents))


async def _paths_below(client: ZkClient, parents: list[str]) -> Iterator[str]:
    """Return an iterator that makes the paths of `list_all` one by one: a table may have a million regions."""
    found: list[tuple[str, list[str]]] = []
    answers = await client.multi_read([GetChildren(path) for path in parents])
    for parent, names in zip(parents, answers, strict=True):
        if isinstance(names, NoNode):
            continue
        if isinstance(names, OperationError):
            raise names
        assert isinstance(names, list), parent
        names.sort()
        found.append((parent, names))
    return (f"{parent}/{name}" for parent, names in found for name in names)


async def load(client: ZkClient, layout: Layout, world: ClusterState | None = None, *, cluster_id: str = "") -> Loaded:
    """Read the state from which a new active master starts (MF-02, MF-11), except the records that the mirror `world`
    has."""
    loaded = Loaded()
    data, _ = await client.get(layout.cluster)
    loaded.cluster = _cluster_of(data, layout.cluster, cluster_id)
    loaded.world = world
    if world is None:
        loaded.transitions = await load_transitions(client, layout)
    else:
        loaded.transitions = [(one.transition, one.version) for one in world.rit() if one.transition is not None]
    tables, names, directories, plans = await gather(
        client.children(path) for path in (layout.tables, layout.names, layout.regions, layout.plans)
    )
    if world is None:
        loaded.tables = await _load_tables(client, layout, tables)
        for table, _ in loaded.tables:
            if not table.finished_ms:
                loaded.regions += await load_regions(client, layout, table.table_id)
    found = await read_all(client, [layout.plan(plan_id) for plan_id in sorted(plans)])
    loaded.plans = [plan for plan, _ in decoded(found, decode_plan)]
    loaded.moves = await load_moves(client, layout)
    loaded.reshardings = await load_reshardings(client, layout)
    found = await read_all(client, await list_all(client, [layout.intents]))
    loaded.intents = [one for one, _ in decoded(found, decode_intents)]
    loaded.orphans = await _orphans(client, layout, set(tables), names, directories)
    return loaded


async def load_transitions(client: ZkClient, layout: Layout) -> list[tuple[TransitionRecord, int]]:
    """Return every transition with its version."""
    return await read_decoded(client, await list_all(client, layout.shard_paths()), decode_transition)


async def load_tables(client: ZkClient, layout: Layout) -> list[tuple[TableRecord, int]]:
    """Return every table with its version."""
    return await _load_tables(client, layout, await client.children(layout.tables))


async def _load_tables(client: ZkClient, layout: Layout, table_ids: list[str]) -> list[tuple[TableRecord, int]]:
    return decoded(await read_all(client, [layout.table(one) for one in sorted(table_ids)]), decode_table)


async def load_regions(client: ZkClient, layout: Layout, table_id: str) -> list[tuple[RegionRecord, int]]:
    """Return a table's regions with their versions."""
    decode = RegionDecoder().decode
    return await read_decoded(client, await _paths_below(client, [layout.table_regions(table_id)]), decode)


async def load_moves(client: ZkClient, layout: Layout) -> list[MoveBatch]:
    """Return the batches of moves that are not finished."""
    found = await read_all(client, await list_all(client, [layout.moves]))
    return [batch for batch, _ in decoded(found, decode_moves)]


async def load_reshardings(client: ZkClient, layout: Layout) -> list[tuple[ReshardingRecord, int]]:
    """Return the splits and merges under way with their versions."""
    return decoded(await read_all(client, await list_all(client, [layout.reshardings])), decode_resharding)


async def load_orphans(client: ZkClient, layout: Layout) -> list[tuple[str, str]]:
    """Return the tables with a name or a region directory but without a record: (table id, path of the name or "")."""
    tables, names, directories = await gather(
        client.children(path) for path in (layout.tables, layout.names, layout.regions)
    )
    return await _orphans(client, layout, set(tables), names, directories)


async def _orphans(
    client: ZkClient, layout: Layout, tables: set[str], names: list[str], directories: list[str]
) -> list[tuple[str, str]]:
    named: dict[str, str] = {}
    for path, data, _ in await read_all(client, [layout.name(name) for name in names]):
        try:
            named[decode_name(data, path)] = path
        except CorruptZnode as error:
            log.error("ignoring a damaged table name: {error}", error=error)
    return [(table_id, named.get(table_id, "")) for table_id in sorted((set(named) | set(directories)) - tables)]


def decoded(found: Found, decode: Callable[[bytes, str], T]) -> list[tuple[T, int]]:
    """Return the records with their versions. Log and skip damaged records, so that the others still have a master."""
    records: list[tuple[T, int]] = []
    for path, data, stat in found:
        try:
            records.append((decode(data, path), stat.version))
        except CorruptZnode as error:
            log.error("ignoring a damaged znode: {error}", error=error)
    return records


async def change_region(
    fence: Fence, table_id: str, region_id: str, change: Callable[[RegionRecord], RegionRecord]
) -> tuple[RegionRecord, int]:
    """Change a region's record by compare-and-set, with retries. Return the record and its version.

    Servers also write these records, at the end of an open. Raise NoNode for an unknown region.
    """
    path = fence.layout.region(table_id, region_id)
    while True:
        data, stat = await fence.client.get(path)
        record = decode_region(data, path)
        changed = change(record)
        if changed == record:
            return record, stat.version
        try:
            [written] = await fence.write([SetData(path, encode(changed), stat.version)])
        except MultiFailed as error:
            if isinstance(error.error, BadVersion):
                continue
            raise
        assert isinstance(written, Stat), path
        return changed, written.version


def move_batches(
    moves: list[Move],
    name: Callable[[], str],
    reason: str,
    plan_id: str,
    epoch: int,
    now_ms: int,
    origin: WorkOrigin | None,
) -> list[MoveBatch]:
    """Divide accepted moves among batches. `name` returns a new id."""
    parts = (tuple(moves[at : at + MOVES_PER_BATCH]) for at in range(0, len(moves), MOVES_PER_BATCH))
    return [MoveBatch(name(), part, reason, plan_id, epoch, now_ms, origin) for part in parts]


async def accept_moves(fence: Fence, batches: list[MoveBatch]) -> None:
    """Persist accepted moves, in one multi if they fit."""
    layout = fence.layout
    ops: list[WriteOp] = [Create(layout.move_batch(batch.move_id), encode(batch)) for batch in batches]
    await gather(fence.send(part) for part in in_batches(ops, fence.acl_bytes))


async def fence_server(fence: Fence, mark: FenceRecord, bar: BarRecord | None = None) -> bool:
    """Delete a server's registration and write its fence record in one multi (X10).

    Return False if this start of the server is not registered. `bar` is written in the same multi, so the server cannot
    register again before the bar exists. If the server registers again between the read and the multi, the new start is
    fenced. The new start has no regions yet, and registers once more.
    """
    layout, server = fence.layout, mark.server
    path = layout.server(server.uuid)
    found = await read_all(fence.client, [path])
    if [one.incarnation for one, _ in decoded(found, decode_server)] != [server.incarnation]:
        return False
    marked = await fence.client.exists(layout.fence_mark(server.uuid))
    put = layout.fence_mark(server.uuid)
    leave: WriteOp = Create(put, encode(mark)) if marked is None else SetData(put, encode(mark), marked.version)
    try:
        barred = [] if bar is None else [await _put_bar(fence, bar)]
        await fence.write([leave, Delete(path, found[0][2].version), *barred])
    except MultiFailed:
        return False
    return True


async def _put_bar(fence: Fence, bar: BarRecord) -> WriteOp:
    """Return the operation that writes `bar`, replacing a former one."""
    path = fence.layout.bar(bar.uuid)
    there = await fence.client.exists(path)
    return Create(path, encode(bar)) if there is None else SetData(path, encode(bar), there.version)


async def bar_server(fence: Fence, bar: BarRecord) -> None:
    """Write a bar for a server that is fenced already. May be repeated."""
    await fence.write([await _put_bar(fence, bar)])


async def end_bar(fence: Fence, bar: BarRecord) -> None:
    """Delete an expired bar, unless an operator has replaced it. May be repeated."""
    path = fence.layout.bar(bar.uuid)
    for found, version in decoded(await read_all(fence.client, [path]), decode_bar):
        if found == bar:
            await delete_if_there(fence, path, version)


async def create_if_missing(fence: Fence, path: str) -> None:
    """Create an empty znode, unless it exists."""
    try:
        await fence.write([Create(path)])
    except MultiFailed as error:
        if not isinstance(error.error, NodeExists):
            raise


async def delete_if_there(fence: Fence, path: str, version: int = -1) -> None:
    """Delete a znode if it exists at `version` (-1: any version)."""
    try:
        await fence.write([Delete(path, version)])
    except MultiFailed as error:
        if not isinstance(error.error, NoNode | BadVersion):
            raise


async def write_clean_shutdown(fence: Fence, *, clean: bool, now_ms: int) -> None:
    """Set or clear the clean-shutdown flag in the cluster record (X7). May be repeated.

    This also raises the format to FORMAT_VERSION and restores a damaged record.
    """
    path = fence.layout.cluster
    data, stat = await fence.client.get(path)
    found = _cluster_of(data, path, fence.cluster_id)
    record = msgspec.structs.replace(
        found,
        format_version=max(found.format_version, FORMAT_VERSION),
        clean_shutdown=clean,
        epoch=fence.epoch,
        at_ms=now_ms,
    )
    await fence.write([SetData(path, encode(record), stat.version)])
