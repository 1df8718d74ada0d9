"""The catalogue in the store: laying the ground, loading it, and creating tables (DD-01, OC-01 to OC-09).

A table is created from the bottom up: name and region directory, region records, and last the table's own record, in
one fenced multi if it fits and in several if not. Only the last makes the table exist, so a crash in between leaves
nothing that anybody sees; the next master removes it (`orphans`).
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
from twisted.internet.defer import ensureDeferred
from twisted.logger import Logger

from coord.client.ops import Create, Delete, GetChildren, GetData, SetData, WriteOp
from coord.client.session import ZkClient
from coord.errors import BadVersion, ConfigError, MultiFailed, NodeExists, NoNode, OperationError
from coord.wire.records import Stat
from master.aio import gather
from master.fence import Fence, in_batches
from regions.layout import (
    FORMAT_VERSION,
    CorruptZnode,
    Layout,
    decode_cluster,
    decode_moves,
    decode_plan,
    decode_region,
    decode_server,
    decode_table,
    decode_transition,
    encode,
)
from regions.messages import CreateTable
from regions.model import (
    ClusterRecord,
    EpochRecord,
    FenceRecord,
    MoveBatch,
    PlanRecord,
    RegionRecord,
    RegionSpec,
    TableRecord,
    TransitionRecord,
)

log = Logger()

#: Znodes in one multi-read.
READ_MAX: Final = 500
#: Names of that many regions are about 2 MB in one reply of the store, to clients of ours, which take up to 64 MB.
REGIONS_PER_TABLE_MAX: Final = 200_000
#: Moves in one batch: its znode must stay well below the store's limit for one value.
MOVES_PER_BATCH: Final = 2_000

Found = list[tuple[str, bytes, Stat]]
T = TypeVar("T")


class AlreadyExists(Exception):  # noqa: N818 - an answer, not a fault
    """A table of that name exists."""


class Loaded:
    """What the store held: transitions first, regions after them (`Assigner.load` relies on it)."""

    def __init__(self) -> None:
        self.cluster = ClusterRecord("")
        self.transitions: list[tuple[TransitionRecord, int]] = []
        self.tables: list[tuple[TableRecord, int]] = []
        self.regions: list[tuple[RegionRecord, int]] = []
        self.plans: list[PlanRecord] = []
        self.moves: list[MoveBatch] = []
        #: Table ids that have a name or a region directory and no table: (table id, name or "").
        self.orphans: list[tuple[str, str]] = []


async def lay_ground(
    client: ZkClient, layout: Layout, now_ms: int, token: Callable[[int], bytes] = secrets.token_bytes
) -> None:
    """Create every directory of the layout, the epoch and the cluster's record, unless they exist.

    Several masters may do it at once. Raises ConfigError for a cluster of a newer format.
    """
    if await client.exists(layout.cluster) is None:
        await gather(ensureDeferred(_create_if_missing(client, path)) for path in layout.parents())
        await _create_if_missing(client, layout.epoch, encode(EpochRecord("", 0, now_ms)))
        await _create_if_missing(client, layout.cluster, encode(ClusterRecord(token(8).hex(), at_ms=now_ms)))
    else:
        await gather(ensureDeferred(_create_if_missing(client, path)) for path in layout.records())
    data, _ = await client.get(layout.cluster)
    found = decode_cluster(data, layout.cluster).format_version
    if found > FORMAT_VERSION:
        raise ConfigError(f"{layout.cluster} has format {found}; this program knows formats up to {FORMAT_VERSION}")


async def _create_if_missing(client: ZkClient, path: str, data: bytes = b"") -> None:
    with contextlib.suppress(NodeExists):
        await client.create(path, data)


async def read_all(client: ZkClient, paths: list[str]) -> Found:
    """(path, data, Stat) of each of `paths` that exists, in order; all requests are on their way at once."""
    parts = [paths[at : at + READ_MAX] for at in range(0, len(paths), READ_MAX)]
    answers = await gather(client.multi_read([GetData(path) for path in part]) for part in parts)
    found: Found = []
    for part, answer in zip(parts, answers, strict=True):
        for path, result in zip(part, answer, strict=True):
            if isinstance(result, NoNode):
                continue
            if isinstance(result, OperationError):
                raise result
            assert isinstance(result, tuple), path
            found.append((path, result[0], result[1]))
    return found


async def list_all(client: ZkClient, parents: list[str]) -> list[str]:
    """Paths of all children of `parents`; a parent that does not exist has none."""
    found: list[str] = []
    answers = await gather([client.multi_read([GetChildren(path) for path in parents])])
    for parent, names in zip(parents, answers[0], strict=True):
        if isinstance(names, NoNode):
            continue
        if isinstance(names, OperationError):
            raise names
        assert isinstance(names, list), parent
        found.extend(f"{parent}/{name}" for name in sorted(names))
    return found


async def load(client: ZkClient, layout: Layout) -> Loaded:
    """Read everything that a new reign starts from (MF-02, MF-11)."""
    loaded = Loaded()
    data, _ = await client.get(layout.cluster)
    loaded.cluster = decode_cluster(data, layout.cluster)
    loaded.transitions = await load_transitions(client, layout)
    tables, names, directories, plans = await gather(
        client.children(path) for path in (layout.tables, layout.names, layout.regions, layout.plans)
    )
    loaded.tables = await _load_tables(client, layout, tables)
    for table, _ in loaded.tables:
        if not table.finished_ms:
            loaded.regions += await load_regions(client, layout, table.table_id)
    found = await read_all(client, [layout.plan(plan_id) for plan_id in sorted(plans)])
    loaded.plans = [plan for plan, _ in _decoded(found, decode_plan)]
    loaded.moves = await load_moves(client, layout)
    loaded.orphans = await _orphans(client, layout, set(tables), names, directories)
    return loaded


async def load_transitions(client: ZkClient, layout: Layout) -> list[tuple[TransitionRecord, int]]:
    """Every transition with its version."""
    return _decoded(await read_all(client, await list_all(client, layout.shard_paths())), decode_transition)


async def load_tables(client: ZkClient, layout: Layout) -> list[tuple[TableRecord, int]]:
    """Every table with its version."""
    return await _load_tables(client, layout, await client.children(layout.tables))


async def _load_tables(client: ZkClient, layout: Layout, table_ids: list[str]) -> list[tuple[TableRecord, int]]:
    return _decoded(await read_all(client, [layout.table(one) for one in sorted(table_ids)]), decode_table)


async def load_regions(client: ZkClient, layout: Layout, table_id: str) -> list[tuple[RegionRecord, int]]:
    """A table's regions with their versions."""
    paths = await list_all(client, [layout.table_regions(table_id)])
    return _decoded(await read_all(client, paths), decode_region)


async def load_moves(client: ZkClient, layout: Layout) -> list[MoveBatch]:
    """The batches of moves that are not finished."""
    found = await read_all(client, await list_all(client, [layout.moves]))
    return [batch for batch, _ in _decoded(found, decode_moves)]


async def load_orphans(client: ZkClient, layout: Layout) -> list[tuple[str, str]]:
    """Table ids that have a name or a region directory and no table: (table id, path of the name or "")."""
    tables, names, directories = await gather(
        client.children(path) for path in (layout.tables, layout.names, layout.regions)
    )
    return await _orphans(client, layout, set(tables), names, directories)


async def _orphans(
    client: ZkClient, layout: Layout, tables: set[str], names: list[str], directories: list[str]
) -> list[tuple[str, str]]:
    named = {data.decode(): path for path, data, _ in await read_all(client, [layout.name(name) for name in names])}
    return [(table_id, named.get(table_id, "")) for table_id in sorted((set(named) | set(directories)) - tables)]


def _decoded(found: Found, decode: Callable[[bytes, str], T]) -> list[tuple[T, int]]:
    """Records with their versions. One that cannot be read is left alone, loudly: the others still want a master."""
    records: list[tuple[T, int]] = []
    for path, data, stat in found:
        try:
            records.append((decode(data, path), stat.version))
        except CorruptZnode as error:
            log.error("left alone: {error}", error=error)
    return records


async def remove_orphan(fence: Fence, table_id: str, name_path: str) -> None:
    """Remove what a master left behind that died while it created a table."""
    layout = fence.layout
    ops: list[WriteOp] = [Delete(path) for path in await list_all(fence.client, [layout.table_regions(table_id)])]
    if await fence.client.exists(layout.table_regions(table_id)) is not None:
        ops.append(Delete(layout.table_regions(table_id)))
    if name_path:
        ops.append(Delete(name_path))
    for batch in in_batches(ops):
        await fence.write(batch)
    log.info("removed the remains of table {table_id}, whose creation was not finished", table_id=table_id)


async def create_table(
    fence: Fence, request: CreateTable, specs: list[RegionSpec], table_id: str, now_ms: int
) -> tuple[TableRecord, list[RegionRecord]]:
    """Write a table; it exists when this returns.

    Raises:
        AlreadyExists: the name is taken; nothing was written.
        Deposed, ConnectionLoss, SessionExpired: the table may or may not exist.
    """
    layout = fence.layout
    table = TableRecord(
        table_id,
        request.name,
        request.schema,
        replication=request.replication,
        regions=len(specs),
        group=request.group,
        system=request.system,
        created_ms=now_ms,
    )
    width = max(4, len(f"{len(specs) - 1:x}"))
    regions = [
        RegionRecord(table_id, f"{table_id}.{number:0{width}x}", spec.start_key, spec.end_key, spec.size_bytes)
        for number, spec in enumerate(specs)
    ]
    ops: list[WriteOp] = [
        Create(layout.name(request.name), table_id.encode()),
        Create(layout.table_regions(table_id)),
        *(Create(layout.region(table_id, one.region_id), encode(one)) for one in regions),
        Create(layout.table(table_id), encode(table)),
    ]
    batches = in_batches(ops)
    try:
        await fence.write(batches[0])
    except MultiFailed as error:
        if error.index == 0 and isinstance(error.error, NodeExists):
            raise AlreadyExists(request.name) from error
        raise
    await gather(fence.send(batch) for batch in batches[1:-1])
    if len(batches) > 1:
        await fence.write(batches[-1])
    return table, regions


def new_table_id(token: Callable[[int], bytes] = secrets.token_bytes) -> str:
    """Eight hexadecimal digits; a clash is refused by the store, as the directory of its regions exists."""
    return token(4).hex()


async def change_table(fence: Fence, table: TableRecord, version: int) -> int:
    """Replace a table's record at `version`; returns the new version. Raises MultiFailed when it has moved on."""
    [stat] = await fence.write([SetData(fence.layout.table(table.table_id), encode(table), version)])
    assert isinstance(stat, Stat), table.table_id
    return stat.version


async def rename_table(fence: Fence, table: TableRecord, version: int, former_name: str) -> int:
    """Replace a table's record, and with it its name; returns the new version.

    Raises:
        AlreadyExists: the new name is taken.
        MultiFailed: the table has moved on.
    """
    layout = fence.layout
    try:
        _, _, stat = await fence.write(
            [
                Create(layout.name(table.name), table.table_id.encode()),
                Delete(layout.name(former_name)),
                SetData(layout.table(table.table_id), encode(table), version),
            ]
        )
    except MultiFailed as error:
        if error.index == 0 and isinstance(error.error, NodeExists):
            raise AlreadyExists(table.name) from error
        raise
    assert isinstance(stat, Stat), table.table_id
    return stat.version


async def remove_table(fence: Fence, table: TableRecord, version: int) -> int:
    """Write the record of a removed table and give its name free, in one step; returns the new version."""
    layout = fence.layout
    [stat, _] = await fence.write(
        [SetData(layout.table(table.table_id), encode(table), version), Delete(layout.name(table.name))]
    )
    assert isinstance(stat, Stat), table.table_id
    return stat.version


async def change_region(
    fence: Fence, table_id: str, region_id: str, change: Callable[[RegionRecord], RegionRecord]
) -> tuple[RegionRecord, int]:
    """Read, change and write a region's record until nobody came in between; returns what is there then.

    Servers write these records too, at the end of an open. Raises NoNode for an unknown region.
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


async def accept_moves(fence: Fence, batches: list[MoveBatch]) -> None:
    """Persist accepted moves, all together if they fit into one multi."""
    layout = fence.layout
    ops: list[WriteOp] = [Create(layout.move_batch(batch.move_id), encode(batch)) for batch in batches]
    await gather(fence.send(part) for part in in_batches(ops))


async def fence_server(fence: Fence, mark: FenceRecord) -> bool:
    """Delete a server's registration and leave the mark, in one multi (X10); False if that start is not registered.

    Should the server register again between the look and the write, its new start is fenced: it has nothing yet, and
    joins again.
    """
    layout, server = fence.layout, mark.server
    path = layout.server(server.uuid)
    found = await read_all(fence.client, [path])
    if not found or decode_server(found[0][1], path).incarnation != server.incarnation:
        return False
    marked = await fence.client.exists(layout.fence_mark(server.uuid))
    put = layout.fence_mark(server.uuid)
    leave: WriteOp = Create(put, encode(mark)) if marked is None else SetData(put, encode(mark), marked.version)
    try:
        await fence.write([leave, Delete(path, found[0][2].version)])
    except MultiFailed:
        return False
    return True


async def create_if_missing(fence: Fence, path: str) -> None:
    """Create an empty znode, unless it exists."""
    try:
        await fence.write([Create(path)])
    except MultiFailed as error:
        if not isinstance(error.error, NodeExists):
            raise


async def delete_if_there(fence: Fence, path: str) -> None:
    """Delete a znode that has done its work."""
    try:
        await fence.write([Delete(path)])
    except MultiFailed as error:
        if not isinstance(error.error, NoNode):
            raise


async def mark_run(fence: Fence, *, clean: bool, now_ms: int) -> None:
    """Write or take away the clean-shutdown mark (X7); may be repeated."""
    path = fence.layout.cluster
    data, stat = await fence.client.get(path)
    record = msgspec.structs.replace(decode_cluster(data, path), clean_shutdown=clean, epoch=fence.epoch, at_ms=now_ms)
    await fence.write([SetData(path, encode(record), stat.version)])
