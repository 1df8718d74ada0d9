"""Writes a cluster's content directly to the store, as masters would have left it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

from kazoo.client import KazooClient

from benchmarks.assign.open_regions import commit
from regions.records import znodes
from regions.records.model import ClusterRecord, EpochRecord, RegionRecord, TableRecord

CLUSTER_ID: Final = "filled"
_STEPS_AT_ONCE: Final = 5_000

#: A method of a kazoo transaction, and its arguments.
Step = tuple[str, tuple[Any, ...]]


def cluster_steps(paths: znodes.Layout) -> Iterator[Step]:
    """Yield the creates of a cluster without tables."""
    for path in paths.parents():
        yield "create", (path,)
    yield "create", (paths.epoch, znodes.encode(EpochRecord("", 0, 0)))
    yield "create", (paths.cluster, znodes.encode(ClusterRecord(CLUSTER_ID)))


def table_steps(
    paths: znodes.Layout, table: TableRecord, region: Callable[[int, str, str], RegionRecord]
) -> Iterator[Step]:
    """Yield the creates of a table with its regions, its own record last.

    `region` makes the record of a region from its number, and the start and end of its keys.
    """
    yield "create", (paths.table_regions(table.table_id),)
    for number in range(table.regions):
        start, end = f"{number:08}" if number else "", f"{number + 1:08}" if number + 1 < table.regions else ""
        record = region(number, start, end)
        yield "create", (paths.region(table.table_id, record.region_id), znodes.encode(record))
    yield "create", (paths.name(table.name), table.table_id.encode())
    yield "create", (paths.table(table.table_id), znodes.encode(table))


def write(client: KazooClient, steps: Iterator[Step]) -> None:
    """Carry out the steps, some thousands at a time."""
    while some := list(itertools.islice(steps, _STEPS_AT_ONCE)):
        commit(client, some)
