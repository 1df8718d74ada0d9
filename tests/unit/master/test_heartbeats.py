"""Heartbeats at a master: roles, clusters, reports, and the faults KUDU-1358 and KUDU-1374."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from coord.rpc.wire import RpcError
from coord.security.principal import NOBODY, Principal
from master.heartbeats import HeartbeatReceiver
from regions import messages as ms
from regions.liveness.reports import PATIENCE_MS
from regions.liveness.roster import SILENT_MS
from regions.messages.heartbeat import OPEN, Heartbeat, ReplicaReport, Report, ServerFigures
from regions.records.model import (
    ActiveRecord,
    Incarnation,
    RegionRecord,
    RegionState,
    ReplicaLocation,
    ServerRecord,
    TableRecord,
    TableState,
    TransitionRecord,
)
from regions.records.znodes import decode_transition, encode
from tests.unit.master.active_fixture import LAYOUT, Bench

S1 = Incarnation("s1", 7)


class Reviews:
    """Stands for the dispatcher: records the replicas that servers were asked to review."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, list[tuple[str, int]]]] = []

    def review(self, server: ServerRecord, replicas: list[tuple[str, int]], cause_id: str) -> None:
        assert cause_id.startswith("e")
        self.sent.append((server.uuid, replicas))


class Elected:
    """An election of which only the outcome matters."""

    active = ActiveRecord("m2", "other", 9, 1, 6)


class Standby:
    """A master that is not active."""

    uuid, start_code, role, cluster_id, active_master = "m", 3, "standby", "c", None
    election: Any = Elected()

    def caller_principal(self) -> Principal:
        return NOBODY


class Master(Bench):
    """The active master of the bench, and its handler of heartbeats."""

    start_code, cluster_id = 3, "c"

    def __init__(self, folder: Path, servers: int = 1) -> None:
        super().__init__(folder, servers=servers)
        self.ear = HeartbeatReceiver(cast(Any, self), self.now_ms)
        self.reviews = Reviews()
        assert self.active_master is not None
        self.active_master.misplaced._dispatcher = cast(Any, self.reviews)
        self.sequence = self.tokens = 0

    def beat(self, report: Report | None = None, server: Incarnation = S1, **more: Any) -> Any:
        self.sequence += 1
        return self.ear.answer(Heartbeat("c", server, self.sequence, report=report, **more))

    def token(self, size: int) -> bytes:
        self.tokens += 1
        return self.tokens.to_bytes(size, "big")

    def wait(self, ms_: int) -> None:
        """Let time pass, tick by tick."""
        for _ in range(ms_ // 500):
            self.go_on(0.5)


@pytest.fixture
def master(tmp_path: Path) -> Master:
    return Master(tmp_path)


def full(*keys: str, state: str = "OPEN", version: int = 0) -> Report:
    found = [key.rpartition("-") for key in keys]
    replicas = [ReplicaReport(name, name.rpartition(".")[0], int(number), state, version) for name, _, number in found]
    return Report(replicas, begins=True, ends=True)


# --- who answers what ---


def test_a_standby_uses_liveness_registration_and_load_only() -> None:
    """HB-08, X14, HB-09: it names the active master, and ignores reports."""
    ear = HeartbeatReceiver(cast(Any, Standby()), lambda: 10_000)
    record = ServerRecord("s1", "h", 2, 7)
    reply = ear.answer(Heartbeat("c", S1, 1, registration=record, report=full("t.0-0"), figures=ServerFigures(4)))
    assert (reply.is_leader, reply.leader, reply.epoch, reply.wants_full) == (False, "other:9", 6, False)
    member = ear.roster.find("s1")
    assert member is not None
    assert (member.record, member.figures.open) == (record, 4)
    assert [(one.server, one.heard_ms) for one in ear.contacts().contacts] == [(S1, 0)]


def test_an_unknown_server_is_asked_for_registration_and_full_report(master: Master) -> None:
    """HB-05: until both have arrived."""
    reply = master.beat()
    assert (reply.is_leader, reply.wants_registration, reply.wants_full, reply.epoch) == (True, True, True, 4)
    reply = master.beat(full("t.0-0"), registration=ServerRecord("s1", "h", 2, 7))
    assert (reply.wants_registration, reply.wants_full) == (False, False)


@pytest.mark.parametrize(
    ("change", "code"),
    [({"cluster_id": "other"}, ms.WRONG_CLUSTER), ({"cluster_id": ""}, ms.WRONG_CLUSTER),
     ({"recipient": "m9"}, ms.WRONG_MASTER)],
)  # fmt: skip
def test_a_heartbeat_of_another_cluster_is_rejected_without_effect(
    master: Master, change: dict[str, str], code: str
) -> None:
    """FN-04, FN-08: its server does not enter the roster."""
    beat = msgspec.structs.replace(Heartbeat("c", S1, 1, report=full("t.7-0")), **change)
    with pytest.raises(RpcError) as caught:
        master.ear.answer(beat)
    assert caught.value.code == code
    assert (len(master.ear.roster), master.ear.refused) == (0, 1)
    assert master.active_master is not None
    assert master.active_master.reports.count == 0


def test_a_late_heartbeat_is_answered_and_ignored(master: Master) -> None:
    """One of an earlier start, and one overtaken over another connection."""
    master.beat(full("t.0-0", version=5))
    master.beat()
    late = master.ear.answer(Heartbeat("c", S1, 1, report=full("t.0-0", version=1)))
    assert late.overtaken == 2, "what it told is still to be told"
    master.ear.answer(Heartbeat("c", Incarnation("s1", 6), 99, report=full()))
    assert master.active_master is not None
    holding = master.active_master.reports.holding(S1)
    assert holding is not None
    assert (holding.versions, master.ear.roster.stale) == ({"t.0-0": 5}, 2)


def test_a_higher_epoch_in_a_heartbeat_makes_the_master_read_the_store(master: Master) -> None:
    """FN-05: the store decides; many such heartbeats cause one read."""
    master.store.put(LAYOUT.epoch, b"", 5)
    before = len(master.store.waiting)
    for _ in range(5):
        master.beat(epoch=5)
    assert len(master.store.waiting) == before + 1
    master.go_on()
    assert master.ended == ["another master is active"]


def test_a_live_server_without_heartbeats_is_reported_as_a_problem(master: Master) -> None:
    """HB-12: its session alone would not show the lost connectivity."""
    assert master.ear.problems() == []
    master.wait(SILENT_MS + 1_000)
    assert "server s1 is registered, but the active master has received no heartbeat" in master.ear.problems()[0]
    master.beat()
    assert master.ear.problems() == []


def test_what_a_server_wants_an_operator_to_know_is_a_problem(master: Master) -> None:
    master.beat(figures=ServerFigures(alarms=["replicas of tablet t differ"]))
    assert master.ear.problems() == ["server s1: replicas of tablet t differ"]
    master.beat()
    assert master.ear.problems() == []


def test_a_newly_registered_server_is_not_a_problem(master: Master) -> None:
    """Its first heartbeat is in flight."""
    master.wait(60_000)
    master.beat()
    active_master = master.active_master
    assert active_master is not None
    both = [*active_master.registry.servers, ServerRecord("s2", "h", 3, 7)]
    active_master.registry.servers = both
    active_master._servers_changed(both, [], [], [])
    assert master.ear.problems() == []
    master.wait(SILENT_MS + 1_000)
    assert "server s2 is registered, but the active master has received no heartbeat for 6 s" in "".join(
        master.ear.problems()
    )


# --- KUDU-1358 ---


def test_a_create_right_after_a_failover_uses_all_servers(tmp_path: Path) -> None:
    """HB-11, DD-10: five servers live and none has sent this leader a heartbeat; nothing fails, nothing piles up."""
    master = Master(tmp_path, servers=5)
    assert len(master.ear.roster) == 0
    for name in "abcdefghijklmnopqrst":  # one by one: together they would be planned, from the same servers
        assert master.ask(ms.CreateTable(name)).tables[0].regions == 1
        master.go_on()
    paths = [path for path in master.store.nodes if LAYOUT.parse_transition(path) is not None]
    transitions = [decode_transition(master.store.nodes[path][0]) for path in paths]
    towards = Counter(one.destination.uuid for one in transitions if one.destination is not None)
    assert sorted(towards.values()) in ([4] * 5, [3, 4, 4, 4, 5]), "s1 had one region before"


# --- reports that contradict the store ---


def gone_table(master: Master) -> None:
    """Delete a table while s1 has its region open, and record the close without the server."""
    master.store.put(LAYOUT.table("old"), encode(TableRecord("old", "old", state=TableState.REMOVED, finished_ms=1)))
    master.store.put(LAYOUT.table_regions("old"))
    master.store.put(LAYOUT.region("old", "old.0"), encode(RegionRecord("old", "old.0")))


def test_a_lost_order_is_repeated_until_a_report_shows_its_effect(master: Master) -> None:
    """KUDU-1374, DD-09: the order that follows the report is lost, twice; the next report causes it again."""
    gone_table(master)
    master.beat(full("t.0-0", "old.0-0"))
    master.wait(PATIENCE_MS + 11_000)
    assert len(master.reviews.sent) >= 2
    assert set(map(repr, master.reviews.sent)) == {repr(("s1", [("old.0", 0)]))}
    master.beat(Report(gone=["old.0-0"]))
    count = len(master.reviews.sent)
    master.wait(12_000)
    assert len(master.reviews.sent) == count


def test_the_next_leader_repeats_a_lost_order(tmp_path: Path) -> None:
    """KUDU-1374: the leader dies after the report and before its order. The full report to the next leader (HB-10,
    `test_tie`) is enough; no event has to be seen twice."""
    first = Master(tmp_path / "1")
    gone_table(first)
    first.beat(full("t.0-0", "old.0-0"))
    assert first.active_master is not None
    first.active_master.end("killed")
    assert first.reviews.sent == []
    second = Master(tmp_path / "2")
    gone_table(second)
    assert second.beat().wants_full
    second.beat(full("t.0-0", "old.0-0"))
    second.wait(PATIENCE_MS + 2_000)
    assert second.reviews.sent == [("s1", [("old.0", 0)])]


def test_a_misplaced_region_is_closed_by_the_next_report_at_the_latest(tmp_path: Path) -> None:
    """FN-02."""
    master = Master(tmp_path, servers=2)
    master.beat(full("t.0-0"), server=Incarnation("s2", 7))
    master.wait(PATIENCE_MS + 2_000)
    assert master.reviews.sent == [("s2", [("t.0", 0)])]


def test_an_orphan_is_reported_and_not_closed(master: Master) -> None:
    """FN-04: for a region that the store does not know, no server gets an order; it is a problem and one alarm."""
    found: list[str] = []
    assert master.active_master is not None
    master.active_master.misplaced.orphan_found = lambda one: found.append(one.key)
    master.beat(full("alien.0-0"))
    master.wait(70_000)
    assert (master.reviews.sent, found) == ([], ["alien.0-0"])
    assert "orphan: server s1@7 serves alien.0-0" in "".join(master.active_master.problems(20))
    master.beat(Report(gone=["alien.0-0"]))
    assert master.active_master.misplaced.problems() == []


@pytest.mark.parametrize("party", ["source", "destination"])
def test_a_region_in_transition_causes_no_order_from_a_report(master: Master, party: str) -> None:
    """A transition that names the server decides what the server may hold; a report may be older."""
    gone_table(master)
    record = TransitionRecord("old.0", "old", 0, RegionState.OPENING)
    record = msgspec.structs.replace(record, **{party: S1})
    master.store.put(LAYOUT.transition("old.0", 0), encode(record))
    master.beat(full("old.0-0"))
    master.wait(PATIENCE_MS + 6_000)
    assert master.reviews.sent == []


def test_a_report_ahead_of_its_watch_event_is_no_contradiction(master: Master) -> None:
    """Once the master's state has caught up, the mismatch is dropped."""
    assert master.active_master is not None
    master.beat(full("u.0-0"))
    master.wait(1_000)
    region = RegionRecord("u", "u.0", replicas=(ReplicaLocation(0, "s1", 7),))
    master.store.put(LAYOUT.table("u"), encode(TableRecord("u", "more")))
    master.store.put(LAYOUT.table_regions("u"))
    master.store.put(LAYOUT.region("u", "u.0"), encode(region))
    master.wait(PATIENCE_MS + 3_000)
    assert (master.reviews.sent, master.active_master.reports.orphans) == ([], [])


def test_unchanged_replicas_cost_nothing(master: Master) -> None:
    """A thousand heartbeats without a report touch no replica and send no request to the store."""
    assert master.active_master is not None
    master.beat(full("t.0-0"))
    before = (master.active_master.reports.replica_count, len(master.store.waiting), len(master.store.multis))
    for _ in range(1_000):
        assert master.beat().is_leader
    assert (master.active_master.reports.replica_count, len(master.store.waiting), len(master.store.multis)) == before


def test_loads_follow_their_replica(master: Master) -> None:
    """A former server's last report does not remove the load reported by the new server."""
    assert master.active_master is not None
    reports = master.active_master.reports
    busy = ReplicaReport("t.0", "t", 0, "OPEN", 0, 12.5)
    master.beat(Report([busy], begins=True, ends=True))
    assert reports.loads == {"t.0-0": 12.5}
    moved = ReplicaReport("t.0", "t", 0, "OPEN", 0, 10.0)
    master.beat(Report([moved], begins=True, ends=True), server=Incarnation("s2", 7))
    master.beat(Report(gone=["t.0-0"]))
    assert reports.loads == {"t.0-0": 10.0}
    reports.forget("s2")
    assert reports.loads == {}


def test_the_free_bytes_of_a_servers_disk_reach_the_keeper(master: Master) -> None:
    """The registration has those of the server's start."""
    assert master.active_master is not None
    keeper = master.active_master.keeper.keeper
    master.beat(figures=ServerFigures(disk_free=5))
    assert keeper.servers["s1"].disk_free == 5
    master.go_on(1.0)
    master.beat(figures=ServerFigures())
    assert keeper.servers["s1"].disk_free == 5


def test_invented_servers_leave_nothing_behind(master: Master) -> None:
    """Their contacts and reports are dropped within two minutes; those of the registered server stay."""
    assert master.active_master is not None
    report = Report([ReplicaReport("x.0", "x", 0, OPEN)], begins=True, ends=True)
    for server in (S1, *(Incarnation(f"ghost-{number}", 1) for number in range(50))):
        master.beat(report, server)
    assert (len(master.ear.roster), len(master.active_master.reports.lists())) == (51, 51)
    for _ in range(122):
        master.beat()
        master.wait(1_000)
    master.beat()
    assert [one.server for one in master.ear.contacts().contacts] == [S1]
    assert list(master.active_master.reports.lists()) == [S1]


def test_a_server_sends_no_heartbeats_of_another_one(master: Master) -> None:
    """Its certificate is that of a server, but not of this one. A new start may prove another identity, for instance a
    certificate instead of a key, once the former one is silent.

    Fails if `answer` does not ask `Roster.objection`.
    """
    own, other = Principal("server", "server-1"), Principal("server", "server-2")
    senders = [own]
    master.caller_principal = lambda: senders[-1]  # type: ignore[method-assign]
    master.beat()
    senders.append(other)
    for server in (S1, Incarnation(S1.uuid, S1.start_code + 1)):
        with pytest.raises(
            RpcError, match="server:server-1 sends the heartbeats of server s1, and server:server-2 may"
        ):
            master.beat(server=server)
    assert master.ear.refused == 2
    master.wait(SILENT_MS + 1_000)
    with pytest.raises(RpcError):
        master.beat()
    master.beat(server=Incarnation(S1.uuid, S1.start_code + 1))
    member = master.ear.roster.find(S1.uuid)
    assert member is not None
    assert member.sender == other
