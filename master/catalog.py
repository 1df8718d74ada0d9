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
from coord.errors import ConfigError, MultiFailed, NodeExists, NoNode, OperationError
from coord.wire.records import Stat
from master.aio import gather
from master.fence import Fence, in_batches
from regions.layout import (
    FORMAT_VERSION,
    CorruptZnode,
    Layout,
    decode_cluster,
    decode_plan,
    decode_region,
    decode_table,
    decode_transition,
    encode,
)
from regions.messages import CreateTable
from regions.model import (
    ClusterRecord,
    EpochRecord,
    PlanRecord,
    RegionRecord,
    RegionSpec,
    TableRecord,
    TransitionRecord,
)

log = Logger()

#: Znodes in one multi-read.
READ_MAX: Final = 500
#: A table's regions are the children of one znode, and their list must fit into one reply of the store.
REGIONS_PER_TABLE_MAX: Final = 30_000

Found = list[tuple[str, bytes, Stat]]
T = TypeVar("T")


class AlreadyExists(Exception):  # noqa: N818 - an answer, not a fault
    """A table of that name exists."""


class Loaded:
    """What the store held: transitions first, regions after them (`Assigner.load` relies on it)."""

    def __init__(self) -> None:
        self.cluster = ClusterRecord("")
        self.cluster_version = 0
        self.transitions: list[tuple[TransitionRecord, int]] = []
        self.tables: list[tuple[TableRecord, int]] = []
        self.regions: list[tuple[RegionRecord, int]] = []
        self.plans: list[PlanRecord] = []
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
    data, stat = await client.get(layout.cluster)
    loaded.cluster, loaded.cluster_version = decode_cluster(data, layout.cluster), stat.version
    loaded.transitions = _decoded(
        await read_all(client, await list_all(client, layout.shard_paths())), decode_transition
    )
    tables, names, directories, plans = await gather(
        client.children(path) for path in (layout.tables, layout.names, layout.regions, layout.plans)
    )
    found = await read_all(client, [layout.table(table_id) for table_id in sorted(tables)])
    loaded.tables = _decoded(found, decode_table)
    known = set(tables)
    regions = await list_all(client, [layout.table_regions(table_id) for table_id in sorted(known)])
    loaded.regions = _decoded(await read_all(client, regions), decode_region)
    found = await read_all(client, [layout.plan(plan_id) for plan_id in sorted(plans)])
    loaded.plans = [plan for plan, _ in _decoded(found, decode_plan)]
    named = {data.decode(): path for path, data, _ in await read_all(client, [layout.name(name) for name in names])}
    for table_id in sorted((set(named) | set(directories)) - known):
        loaded.orphans.append((table_id, named.get(table_id, "")))
    return loaded


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


async def mark_run(fence: Fence, cluster: ClusterRecord, version: int, *, clean: bool, now_ms: int) -> int:
    """Write the clean-shutdown mark (X7); returns the new version of `/cluster`."""
    record = msgspec.structs.replace(cluster, clean_shutdown=clean, epoch=fence.epoch, at_ms=now_ms)
    [stat] = await fence.write([SetData(fence.layout.cluster, encode(record), version)])
    assert isinstance(stat, Stat), fence.layout.cluster
    return stat.version
