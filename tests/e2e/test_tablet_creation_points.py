"""kill -9 between every two steps of the creation of a table of tablets, in real masters and servers.

Each case creates a table of one tablet. A process dies at a point of the creation: a server, the active master, or the
server that leads by then. Afterwards the table is there once, its tablet becomes healthy by itself and keeps rows, and
no file is left over.

    RK_ALL_POINTS=1    every point in every way (`make kill-points`); otherwise a few
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coord.compiled import is_switched_on
from regions import messages as ms
from regionserver.client import connect
from tests.e2e.armed import CALL_S, Armed, Case, Who, all_ways, armed_on
from tests.e2e.masters import any_store

pytestmark = pytest.mark.e2e

#: Points in the order in which a creation passes them.
POINTS = (
    "Create tables",
    "Create regions",
    "SetData regions",
    "Create unassigned",
    "wrote OPENING",
    "WriteMeta",
    "BeginSlot",
    "WriteBlock READY",
    "wrote OPENED",
    "Delete unassigned",
)
ALL = is_switched_on("RK_ALL_POINTS")
CASES = (
    all_ways(POINTS)
    if ALL
    else [
        Case("Create unassigned", Who.ITSELF),
        Case("wrote OPENING", Who.ITSELF),
        Case("WriteBlock READY", Who.MASTER),
        Case("wrote OPENED", Who.LEADER),
    ]
)


@pytest.fixture
def armed(tmp_path: Path) -> Iterator[Armed]:
    """Return two masters and four servers."""
    with any_store("one", tmp_path / "store") as hosts, armed_on(hosts, tmp_path / "cluster", servers=4) as running:
        yield running


def test_every_point_of_a_creation(armed: Armed) -> None:
    cluster = armed.cluster
    with connect(cluster.hosts, timeout_s=CALL_S) as client:
        for number, case in enumerate(CASES):
            before = {one.region_id for one in cluster.regions()}

            def made(before: set[str] = before) -> str:
                found = [one.region_id for one in cluster.regions() if one.region_id not in before]
                return found[-1] if found else "none"

            name = f"t{number:02}"
            create = ms.CreateTable(name, [], replication=3, wait_ms=60_000)
            armed.take(case, made, lambda create=create: cluster.ask_active(create, ms.Tables))  # type: ignore[misc]
            (table,) = (
                one.table for one in cluster.ask_active(ms.ListTables(), ms.Tables).tables if one.table.name == name
            )
            armed.wait_healthy(table.table_id, 3)
            client.put(name, "a", case.point.encode())
            assert client.get(name, "a") == case.point.encode()
        for number, case in enumerate(CASES):
            assert dict(client.scan(f"t{number:02}")) == {"a": case.point.encode()}
    armed.check_files()
