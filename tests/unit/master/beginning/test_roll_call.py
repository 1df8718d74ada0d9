"""The wait of a new active master for a first heartbeat: are registered servers alive, or left from before a crash?"""

from __future__ import annotations

from pathlib import Path

import pytest

from master.active import ActiveMaster
from master.beginning.roll_call import holders_of, wait_ms
from regions.records.members import Member
from regions.records.model import (
    Incarnation,
    RegionRecord,
    RegionState,
    ReplicaLocation,
    ServerRecord,
    TransitionRecord,
)
from regions.records.znodes import decode_region, encode
from regions.replication.recovery import NamedStarts
from tests.unit.master.active_fixture import LAYOUT, Bench

SERVERS = 3


class Young:
    """A master that has become active on a store with three registered servers, one of which has a region."""

    def __init__(self, folder: Path, heard: set[Incarnation] | None = None) -> None:
        self.heard: set[Incarnation] = set() if heard is None else heard
        self.bench = Bench(folder, servers=SERVERS, min_servers=SERVERS, has_heard=self.heard.__contains__)
        self.store = self.bench.store
        self.bench.go_on()

    @property
    def master(self) -> ActiveMaster:
        assert self.bench.active_master is not None
        return self.bench.active_master

    def go_on(self, seconds: float) -> None:
        """Let time pass in small steps."""
        for _ in range(round(seconds / 0.05)):
            self.bench.go_on(0.05)

    def register(self, number: int, start_code: int) -> None:
        """A new process of a server registers in place of the dead one."""
        record = ServerRecord(f"s{number}", "h", number + 1, start_code)
        self.store.change(LAYOUT.server(record.uuid), encode(record))
        self.heard.add(record.incarnation)

    def place(self) -> str | None:
        """The server of the region."""
        path = LAYOUT.region("t", "t.0")
        return decode_region(self.store.nodes[path][0], path).replicas[0].uuid


def test_a_crash_of_the_whole_cluster_is_a_startup(tmp_path: Path) -> None:
    """The master waits for all servers, although the sessions of dead ones have ended before they register again."""
    young = Young(tmp_path)
    young.go_on(1.0)
    assert (young.master.path, young.master.is_open) == ("", False)
    young.register(2, 8)
    young.go_on(0.5)
    assert (young.master.path, young.master.is_open) == ("", False)
    for number in (1, 3):
        young.store.drop(LAYOUT.server(f"s{number}"))
    young.go_on(0.5)
    assert (young.master.path, young.master.is_open) == ("startup", False)
    young.register(1, 8)
    young.go_on(2.0)
    assert not young.master.is_open
    assert young.place() == "s1"
    young.register(3, 8)
    young.go_on(2.0)
    assert young.master.is_open
    assert young.place() == "s1"


def test_a_heartbeat_of_a_holder_makes_it_a_failover_at_once(tmp_path: Path) -> None:
    young = Young(tmp_path, {Incarnation("s1", 7)})
    young.go_on(0.1)
    assert (young.master.path, young.master.is_open) == ("failover", True)


def test_a_heartbeat_ends_the_wait(tmp_path: Path) -> None:
    """The heartbeat of a server without regions does not, because such a server may have started after the crash."""
    young = Young(tmp_path)
    young.heard.add(Incarnation("s2", 7))
    young.go_on(1.0)
    assert young.master.path == ""
    young.heard.add(Incarnation("s1", 7))
    young.go_on(0.2)
    assert (young.master.path, young.master.is_open) == ("failover", True)


def test_the_wait_has_an_end(tmp_path: Path) -> None:
    """Sessions of dead servers have ended by then; a server that cannot reach this master holds its regions."""
    young = Young(tmp_path)
    limit_s = wait_ms(3_000) / 1000
    young.go_on(limit_s - 0.5)
    assert young.master.path == ""
    young.go_on(1.0)
    assert (young.master.path, young.master.is_open) == ("failover", True)


def test_the_end_of_the_tenure_ends_the_wait(tmp_path: Path) -> None:
    young = Young(tmp_path)
    young.go_on(0.2)
    young.master.end("the session has ended")
    young.heard.add(Incarnation("s1", 7))
    young.go_on(1.0)
    assert (young.master.path, young.master.is_open) == ("", False)


@pytest.mark.parametrize(("timeout_ms", "expected"), [(1_000, 5_000), (3_000, 6_000), (10_000, 20_000)])
def test_the_wait_covers_the_sessions_of_dead_servers(timeout_ms: int, expected: int) -> None:
    assert wait_ms(timeout_ms) == expected


def test_holders_are_the_registered_servers_of_shared_regions() -> None:
    """Servers of tablets are no holders, because a startup neither wipes nor plans tablets."""
    regions = [
        RegionRecord("t", "t.0", replicas=(ReplicaLocation(0, "s1", 7), ReplicaLocation(1, None, None))),
        RegionRecord("t", "t.1", replicas=(ReplicaLocation(0, "s2", 6),)),
        RegionRecord("u", "u.0", members=(Member(1, "s3"),), next_number=2),
    ]
    start = {number: Incarnation(f"s{number}", 7) for number in range(1, 6)}
    transitions = [
        TransitionRecord("t.1", "t", 0, RegionState.OPENING, None, start[4]),
        TransitionRecord("u.0", "u", 1, RegionState.OFFLINE, None, start[3]),
    ]
    servers = [ServerRecord(one.uuid, "h", 1, one.start_code) for one in start.values()]
    named = NamedStarts(transitions)
    for region in regions:
        named.add(region)
    assert holders_of(named, servers) == {start[1], start[4]}
