"""kill -9 between every two steps of the deletion of a table of tablets, and of the master during a copy.

A table of one tablet is deleted again and again, beside another one under writes. In each deletion a process dies at a
point: a server, the leader or the active master. Afterwards the table's rows are gone by themselves, its name is free,
no file is left over but the quarantine, and the other table has every acknowledged row.

Then members of the other table are copied anew, over replicas that run. At each point of that the server stops, and the
active master dies (`test_tablet_kill_points.py` does the same with server and leader, without a master).

    RK_ALL_POINTS=1    every point in every way (`make kill-points`); otherwise a few
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from coord.compiled import is_switched_on
from coord.rpc.wire import RpcError
from regions import messages as ms
from regions.records.members import MemberRole
from regions.records.znodes import decode_server, decode_table
from regionserver.client import connect
from regionserver.tablets.copying.messages import (
    CopyOutcome,
    CopySource,
    SeenReplica,
    StartTabletCopy,
    TabletCopyAnswer,
)
from tests.e2e.armed import CALL_S, COPY, DELETION, LOOK_S, SLOW_S, Armed, Case, Who, Writing, all_ways, armed_on
from tests.e2e.masters import Process, any_store
from tests.support.helpers import eventually

pytestmark = pytest.mark.e2e

KEPT: Final = "kept"
GONE: Final = "gone"
REPLICAS: Final = 3
#: Points in the order in which a deletion passes them. The table's record is written when the table is deleted, when
#: its replicas rest, when the removal of the rows begins, and when it has ended. Each replica closes twice: it rests
#: first, and its files are deleted after the time of grace.
POINTS: Final = (
    "SetData tables",
    "Delete names",
    "wrote CLOSING",
    "WriteBlock READY",
    "wrote CLOSED",
    "Delete unassigned",
    "SetData tables #2",
    "SetData tables #3",
    "wrote CLOSING #4",
    *DELETION,
    "wrote CLOSED #4",
    "Delete unassigned #4",
    "SetData tables #4",
)
ALL: Final = is_switched_on("RK_ALL_POINTS")
DELETIONS: Final = all_ways(POINTS) if ALL else [Case("SetData tables #3", Who.ITSELF), Case("ExportSlot", Who.MASTER)]
COPIES: Final = [Case(point, Who.MASTER) for point in ((*DELETION, *COPY) if ALL else ("DropSlot", "rows synced"))]


@pytest.fixture
def armed(tmp_path: Path) -> Iterator[Armed]:
    """Return two masters and three servers, with a table of one tablet that is kept."""
    with (
        any_store("one", tmp_path / "store") as hosts,
        armed_on(hosts, tmp_path / "cluster", servers=REPLICAS, options=["--purge-after", "1s"]) as running,
    ):
        create(running, KEPT)
        yield running


def create(armed: Armed, name: str) -> str:
    """Create a table of one tablet. Return its id."""
    order = ms.CreateTable(name, [], replication=REPLICAS, storage="tablet", wait_ms=60_000)
    table_id = armed.cluster.ask_active(order, ms.Tables).tables[0].table.table_id
    armed.wait_healthy(table_id, REPLICAS)
    return table_id


def wait_purged(armed: Armed, table_id: str) -> None:
    """Wait until all rows of a deleted table are removed."""
    cluster = armed.cluster
    path = cluster.layout.table(table_id)
    eventually(lambda: decode_table(cluster.zk.get(path)[0]).purged_ms > 0, SLOW_S, "the rows are removed")


def copy_anew(armed: Armed, tablet: str) -> None:
    """Have a member that does not lead copied from the leader, as the leader would."""
    cluster = armed.cluster

    def started() -> bool:
        leader = armed.leader(tablet)
        assert leader is not None, "nobody leads"
        target = next(one for one in cluster.servers if one is not leader)
        led, here = _own(armed, leader, tablet), _own(armed, target, tablet)
        source = decode_server(cluster.zk.get(cluster.layout.server(cluster.uuid_of(leader)))[0])
        order = StartTabletCopy(
            cluster.uuid_of(target), tablet, here.report.number, MemberRole.VOTER, led.report.term,
            CopySource(led.report.number, source.uuid, source.host, source.peer_port),
            SeenReplica(here.report.number, here.report.state, here.last_term, here.last_index), KEPT,
        )  # fmt: skip
        try:
            answer = cluster.ask(target, order, TabletCopyAnswer)
        except (RpcError, OSError) as error:
            raise AssertionError(str(error)) from error
        return answer.outcome is CopyOutcome.STARTED

    eventually(started, SLOW_S, "a copy begins")


def _own(armed: Armed, server: Process, tablet: str) -> ms.OwnReplica:
    (found,) = armed.cluster.ask(server, ms.ShowReplicas(tablets=[tablet]), ms.ReplicaList, LOOK_S).replicas
    assert isinstance(found, ms.OwnReplica)
    return found


def test_every_point_of_a_deletion_and_of_a_copy(armed: Armed) -> None:
    cluster = armed.cluster
    (tablet,) = cluster.regions()
    with connect(cluster.hosts, timeout_s=CALL_S) as client:
        with Writing(client, KEPT) as writing:
            for case in DELETIONS:
                table_id = create(armed, GONE)
                (region,) = (one.region_id for one in cluster.regions() if one.table_id == table_id)
                client.put(GONE, "a", case.point.encode())
                armed.take(
                    case,
                    lambda region=region: region,  # type: ignore[misc]
                    lambda: cluster.ask_active(ms.DeleteTable(GONE), ms.Tables),
                )
                wait_purged(armed, table_id)
                armed.wait_healthy(tablet.table_id, REPLICAS)
                writing.wait_for_more()
            for case in COPIES:
                armed.take(case, lambda: tablet.region_id, lambda: copy_anew(armed, tablet.region_id))
                armed.wait_healthy(tablet.table_id, REPLICAS)
                writing.wait_for_more()
        writing.check()
    armed.check_files()
