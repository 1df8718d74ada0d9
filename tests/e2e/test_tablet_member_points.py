"""kill -9 between every two steps of a change of members, in real masters and servers under writes.

A tablet grows from one to three members, a member moves, and the tablet shrinks to one, again and again. In each of
these changes a process dies at a point: a server, the leader or the active master. Afterwards the members are as wanted
by themselves, no acknowledged row is missing, and no file is left over.

    RK_ALL_POINTS=1    every point in every way (`make kill-points`); otherwise a few
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path

import pytest

from coord.compiled import is_switched_on
from regions import messages as ms
from regions.records.model import RegionRecord
from regionserver.client import connect
from tests.e2e.armed import CALL_S, COPY, DELETION, Armed, Case, Who, Writing, all_ways, armed_on
from tests.e2e.masters import any_store

pytestmark = pytest.mark.e2e

TABLE = "rows"
#: Points of the copy that makes a new member, and of the end of a removed member.
NEWCOMER = ("wrote OPENING", *COPY)
REMOVAL = ("wrote CLOSING", *DELETION, "wrote CLOSED", "Delete unassigned")


def changed(size: str) -> tuple[str, ...]:
    """Return the points of a configuration with these numbers of voters and newcomers."""
    return tuple(f"config {fate} {size}" for fate in ("appended", "committed", "noted"))


#: Points in the order in which a change passes them.
GROWTH = (
    "SetData tables",
    "Create unassigned",
    *changed("1+1"),
    *NEWCOMER,
    *changed("2+0"),
    "wrote OPENED",
    "Delete unassigned",
    *changed("2+1"),
    *changed("3+0"),
)
MOVE = (
    "Create intents",
    "Create unassigned",
    *changed("3+1"),
    *NEWCOMER,
    *changed("4+0"),
    "wrote OPENED",
    *changed("3+0"),
    "SetData regions",
    *REMOVAL,
    "Delete intents",
)
SHRINKAGE = (*changed("2+0"), *changed("1+0"), *REMOVAL)
ALL = is_switched_on("RK_ALL_POINTS")
GROWTHS, MOVES, SHRINKAGES = (
    (all_ways(GROWTH), all_ways(MOVE), all_ways(SHRINKAGE))
    if ALL
    else (
        [Case("Create unassigned", Who.ITSELF), Case("config appended 2+0", Who.ITSELF)],
        [Case("WriteBlock READY", Who.LEADER), Case("config committed 4+0", Who.MASTER)],
        [Case("wrote CLOSING", Who.ITSELF), Case("Delete unassigned", Who.SERVER)],
    )
)


@pytest.fixture
def armed(tmp_path: Path) -> Iterator[Armed]:
    """Return two masters and four servers, with a table of one tablet with one member."""
    with any_store("one", tmp_path / "store") as hosts, armed_on(hosts, tmp_path / "cluster", servers=4) as running:
        create = ms.CreateTable(TABLE, [], replication=1, storage="tablet", wait_ms=60_000)
        running.cluster.ask_active(create, ms.Tables)
        yield running


class Changes:
    """The changes of the only tablet."""

    def __init__(self, armed: Armed) -> None:
        self.armed = armed
        self.cluster = armed.cluster

    def tablet(self) -> RegionRecord:
        (found,) = self.cluster.regions()
        return found

    def _take(self, case: Case | None, begin: Callable[[], object]) -> None:
        if case is None:
            begin()
        else:
            self.armed.take(case, lambda: self.tablet().region_id, begin)

    def resize(self, case: Case | None, count: int) -> None:
        alter = ms.AlterTable(TABLE, replicas=count)
        self._take(case, lambda: self.cluster.ask_active(alter, ms.Tables))
        self.armed.wait_healthy(self.tablet().table_id, count)

    def move(self, case: Case | None) -> None:
        """Move a member that is not the leader's to the fourth server."""
        tablet = self.tablet()
        leader = self.armed.leader(tablet.region_id)
        leads = "" if leader is None else self.cluster.uuid_of(leader)
        there = {one.uuid for one in tablet.members}
        source = min(there - {leads})
        target = min({self.cluster.uuid_of(one) for one in self.cluster.servers} - there)
        order = ms.MoveTablet(tablet.region_id, target, source)
        self._take(case, lambda: self.cluster.ask_active(order, ms.MemberIntent))
        moved = self.armed.wait_healthy(tablet.table_id, 3)
        assert {one.uuid for one in moved.members} == there - {source} | {target}, case


def test_every_point_of_a_change_of_members(armed: Armed) -> None:
    changes = Changes(armed)
    with connect(armed.cluster.hosts, timeout_s=CALL_S) as client:
        with Writing(client, TABLE) as writing:
            for growth, move, shrinkage in zip_longest(GROWTHS, MOVES, SHRINKAGES):
                changes.resize(growth, 3)
                writing.wait_for_more()
                changes.move(move)
                writing.wait_for_more()
                changes.resize(shrinkage, 1)
                writing.wait_for_more()
        writing.check()
    armed.check_files()
