"""A server's heartbeats to a master (HB-01 to HB-10): reports by role, reports that lose nothing, both ends."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regions.cluster.state import ClusterState
from regions.liveness.reports import Reports
from regions.liveness.roster import Roster
from regions.messages.heartbeat import (
    Heartbeat,
    HeartbeatReply,
    ReplicaReport,
    ReplicaState,
    ServerFigures,
    TabletReport,
)
from regions.records.model import ServerRecord
from regionserver.replica.effects import Key
from regionserver.session.master_link import HeartbeatState, MasterLink, Role

RECORD = ServerRecord("s1", "h", 1, 7)
ADDRESS = ("m", 1)


class Server:
    """The server behind a master link: replicas with a schema version each."""

    def __init__(self, count: int = 0) -> None:
        self.held: dict[Key, int] = {(f"t.{number}", 0): 0 for number in range(count)}
        self.tablets: dict[Key, ReplicaState] = {}
        self.epoch = -1

    def heartbeat_state(self) -> HeartbeatState:
        def describe(key: Key) -> ReplicaReport | TabletReport | None:
            if key in self.tablets:
                return TabletReport(key[0], "t", key[1], self.tablets[key])
            return ReplicaReport(key[0], "t", key[1], "OPEN", self.held[key]) if key in self.held else None

        return HeartbeatState(
            "c", RECORD, self.epoch, ServerFigures(len(self.held)), describe, lambda: [*self.held, *self.tablets]
        )


def beat(link: MasterLink, server: Server) -> Heartbeat:
    made = link.next_heartbeat(server.heartbeat_state())
    assert made is not None
    return made


def leader(epoch: int = 3, **more: bool) -> HeartbeatReply:
    return HeartbeatReply("c", "m1", 5, True, epoch, **more)


STANDBY = HeartbeatReply("c", "m1", 5, False, 3)


def told(server: Server, report_max: int = 5_000) -> MasterLink:
    """Return a link to an active master that has received everything."""
    link = MasterLink(ADDRESS, report_max)
    for _ in range(2):
        beat(link, server)
        link.answered(leader(), 3)
    assert link.is_up_to_date
    return link


def test_the_first_heartbeat_registers_without_a_report() -> None:
    """HB-02, HB-07: whether this master leads is unknown yet."""
    link = MasterLink(ADDRESS)
    made = beat(link, Server(3))
    assert (made.registration, made.report, made.sequence, made.recipient) == (RECORD, None, 1, "")
    assert link.next_heartbeat(Server().heartbeat_state()) is None, "one is on its way"


def test_a_new_leader_gets_a_full_report_unasked() -> None:
    """HB-10, KUDU-1374: at once, without waiting for the next tick."""
    link, server = MasterLink(ADDRESS), Server(2)
    beat(link, server)
    link.answered(leader(), 3)
    assert link.is_urgent
    made = beat(link, server)
    assert made.registration is None
    assert made.recipient == "m1"
    assert made.report is not None
    assert (made.report.begins, made.report.ends, len(made.report.replicas)) == (True, True, 2)


@pytest.mark.parametrize(
    ("what", "reply", "full"),
    [
        ("the same tenure", leader(), False),
        ("another tenure of the same master", leader(4), True),
        ("another start of it", HeartbeatReply("c", "m1", 6, True, 3), True),
        ("it asks", leader(wants_full=True), True),
    ],
)
def test_when_a_leader_gets_a_full_report(what: str, reply: HeartbeatReply, full: bool) -> None:
    """HB-04, HB-10."""
    server = Server(1)
    link = told(server)
    beat(link, server)
    link.answered(reply, reply.epoch)
    report = beat(link, server).report
    assert (report is not None and report.begins) == full, what


def test_standbys_get_no_reports() -> None:
    """HB-08, X14."""
    link, server = MasterLink(ADDRESS), Server(2)
    for _ in range(3):
        assert beat(link, server).report is None
        link.answered(STANDBY, 3)
        link.changed(server.held)
    assert (link.role, link.unreported) == (Role.STANDBY, 0)


def test_a_claim_under_an_old_epoch_is_answered_with_the_higher_one() -> None:
    """FN-05: the next heartbeat carries the higher epoch."""
    server = Server(1)
    link = told(server)
    server.epoch = 9
    assert beat(link, server).epoch == 9
    link.answered(leader(3), 9)
    assert link.role is Role.STANDBY
    assert beat(link, server).report is None


def test_each_change_is_reported_once() -> None:
    """HB-03: in heartbeat N, absent from N+1; removed replicas are named."""
    server = Server(2)
    link = told(server)
    del server.held["t.0", 0]
    server.held["t.1", 0] = 4
    link.changed([("t.0", 0), ("t.1", 0)])
    report = beat(link, server).report
    assert report is not None
    assert ([one.schema_version for one in report.replicas], report.gone, report.begins) == ([4], ["t.0-0"], False)
    link.answered(leader(), 3)
    assert beat(link, server).report is None


def test_an_undelivered_report_is_repeated_at_the_next_tick() -> None:
    """HB-01: with later changes, in their present state."""
    server = Server(1)
    link = told(server)
    link.changed([("t.0", 0)])
    beat(link, server)
    server.held["t.0", 0], server.held["t.9", 0] = 7, 1
    link.changed([("t.9", 0)])
    link.failed("timeout")
    assert not link.is_urgent
    assert link.problem == "timeout"
    report = beat(link, server).report
    assert report is not None
    assert {one.key: one.schema_version for one in report.replicas} == {"t.0-0": 7, "t.9-0": 1}


def test_a_change_during_a_heartbeat_is_in_the_next_one() -> None:
    """HB-03: the heartbeat in flight was made before the change."""
    server = Server(1)
    link = told(server)
    link.changed([("t.0", 0)])
    beat(link, server)
    server.held["t.0", 0] = 2
    link.changed([("t.0", 0)])
    link.answered(leader(), 3)
    report = beat(link, server).report
    assert report is not None
    assert report.replicas[0].schema_version == 2


def test_a_full_report_is_sent_in_consecutive_parts() -> None:
    """The size of a frame does not depend on the server; a lost part is sent again, a lost first part restarts the
    report."""
    link, server = MasterLink(ADDRESS, 2), Server(5)
    beat(link, server)
    link.answered(leader(), 3)
    parts = []
    for _ in range(3):
        assert link.is_urgent
        parts.append(beat(link, server).report)
        link.answered(leader(), 3)
    assert [(len(one.replicas), one.begins, one.ends) for one in parts if one is not None] == [
        (2, True, False),
        (2, False, False),
        (1, False, True),
    ]
    assert link.is_up_to_date
    assert not link.is_urgent


def test_a_repeated_request_for_a_full_report_waits_for_the_next_tick() -> None:
    """A report that the master requests again, although it was just sent, waits for the next tick."""
    link, server = MasterLink(ADDRESS), Server(1)
    beat(link, server)
    link.answered(leader(wants_full=True, wants_registration=True), 3)
    beat(link, server)
    link.answered(leader(wants_full=True, wants_registration=True), 3)
    assert not link.is_urgent
    made = beat(link, server)
    assert made.registration is not None
    assert made.report is not None
    assert made.report.begins


def test_a_new_master_at_a_known_address_starts_from_nothing() -> None:
    """FN-08: it rejected a heartbeat meant for the former one, and gets registration and full report."""
    server = Server(1)
    link = told(server)
    beat(link, server)
    link.failed("this is master m2", is_other_master=True)
    made = beat(link, server)
    assert (made.recipient, made.registration, made.report) == ("", RECORD, None)


def test_an_overtaken_heartbeat_is_repeated_under_a_higher_number() -> None:
    """Its reply is not an acknowledgment if the master has received a later heartbeat."""
    server = Server(1)
    link = told(server)
    link.changed([("t.0", 0)])
    beat(link, server)
    link.answered(HeartbeatReply("c", "m1", 5, True, 3, overtaken=40), 3)
    assert not link.is_urgent
    made = beat(link, server)
    assert made.sequence == 41
    assert made.report is not None
    assert [one.key for one in made.report.replicas] == ["t.0-0"]


def test_a_master_with_two_addresses_gets_a_full_report() -> None:
    """Configured under one name and registered under another: two links, one roster."""
    server, ear = Server(3), Ear(1)
    ties = [MasterLink(ADDRESS), MasterLink(("alias", 1))]
    for number in range(40):
        if number % 3 == 0:
            server.held["t.0", 0] = number
            for link in ties:
                link.changed([("t.0", 0)])
        made = [link.next_heartbeat(server.heartbeat_state()) for link in ties]
        for link, one in zip(reversed(ties), reversed(made), strict=True):
            assert one is not None
            link.answered(ear.accept(one, leads=True), 0)
    holding = ear.reports.holding(RECORD.incarnation)
    assert holding is not None
    assert holding.versions == {"t.0-0": 39, "t.1-0": 0, "t.2-0": 0}


# --- both ends ---


class Ear:
    """A master's end: roster and reports of one tenure, as `master.heartbeats` uses them."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.roster = Roster()
        self.begin(0)

    def begin(self, epoch: int) -> None:
        self.epoch = epoch
        self.reports = Reports(ClusterState())

    def accept(self, made: Heartbeat, *, leads: bool) -> HeartbeatReply:
        member = self.roster.accept(made, 1)
        if leads and member is not None and made.report is not None:
            self.reports.take(made.server, made.report, 1)
        wants_full = leads and member is not None and self.reports.wants_full(made.server)
        wants_registration = member is not None and member.record is None
        name = f"m{self.number}"
        overtaken = 0 if member is not None else self.roster.latest_sequence(made)
        return HeartbeatReply(
            "c", name, self.number, leads, self.epoch, wants_registration, wants_full, overtaken=overtaken
        )


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("open", "close", "alter", "alter", "elect", "restart", "anew", "forget", *["beat"] * 12)),
        st.integers(0, 3),
        st.sampled_from(("ok", "ok", "lost", "unanswered", "late")),
    ),
    min_size=40,
    max_size=80,
)


@settings(max_examples=150)
@given(STEPS, st.integers(1, 3))
def test_the_leader_knows_every_replica_after_any_losses(steps: list[tuple[str, int, str]], report_max: int) -> None:
    """HB-01, HB-03, HB-10, KUDU-1374: heartbeats lost, answers lost, heartbeats that arrive after later ones, changes
    of the leader, restarts of masters, short absences of masters: after two quiet ticks the leader's state equals the
    server's."""
    server = Server(3)
    ears = [Ear(0), Ear(1)]
    ties = [MasterLink(ADDRESS, report_max), MasterLink(ADDRESS, report_max)]
    late: list[list[Heartbeat]] = [[], []]
    leads, epoch = 0, 0

    def exchange(at: int, fate: str) -> None:
        nonlocal epoch
        made = ties[at].next_heartbeat(server.heartbeat_state())
        if made is None:
            return
        if fate in ("lost", "late"):
            if fate == "late":
                late[at].append(made)
            ties[at].failed(fate)
            return
        reply = ears[at].accept(made, leads=at == leads)
        for old in late[at]:
            ears[at].accept(old, leads=at == leads)
        late[at].clear()
        if fate == "unanswered":
            ties[at].failed(fate)
            return
        server.epoch = max(server.epoch, reply.epoch)
        ties[at].answered(reply, server.epoch)

    for what, number, fate in steps:
        key = (f"t.{number}", 0)
        if what == "open":
            server.held[key] = 0
        elif what == "close":
            server.held.pop(key, None)
        elif what == "alter" and key in server.held:
            server.held[key] += 1
        elif what == "elect":
            leads, epoch = number % 2, epoch + 1
            ears[leads].begin(epoch)
        elif what == "restart":
            number %= 2
            ears[number] = Ear(number)
            ears[number].epoch = epoch
        elif what == "forget":  # the master's registration was missing for a moment, and since then it is a new peer
            number %= 2
            ties[number] = MasterLink(ADDRESS, report_max, ties[number].sent)
        elif what == "anew":  # the master's ephemeral was missing for a moment: heartbeats in flight arrive late
            number %= 2
            made = ties[number].next_heartbeat(server.heartbeat_state())
            late[number] += [] if made is None else [made]
            ties[number] = MasterLink(ADDRESS, report_max)
        if what in ("open", "close", "alter"):
            for link in ties:
                link.changed([key])
        if what == "beat":
            exchange(number % 2, fate)
    for at, _ in itertools.product((0, 1), range(30)):
        exchange(at, "ok")
    holding = ears[leads].reports.holding(RECORD.incarnation)
    assert holding is not None
    assert holding.is_complete
    assert holding.versions == {f"{region_id}-{number}": held for (region_id, number), held in server.held.items()}
    assert all(ear.roster.find("s1") is not None for ear in ears)


def test_replicas_of_tablets_have_their_own_reports() -> None:
    """In one report with shared regions: full to a new leader, then changes, and gone by the same keys."""
    server = Server(1)
    server.tablets = {("t.7", 2): ReplicaState.RUNNING, ("t.8", 1): ReplicaState.RESTING}
    link = MasterLink(ADDRESS)
    beat(link, server)
    link.answered(leader(), 3)
    full = beat(link, server).report
    assert full is not None
    assert ([one.key for one in full.replicas], [one.key for one in full.tablets]) == (["t.0-0"], ["t.7-2", "t.8-1"])
    assert (full.begins, full.ends) == (True, True)
    link.answered(leader(), 3)
    server.tablets.pop(("t.7", 2))
    server.tablets["t.8", 1] = ReplicaState.RUNNING
    link.changed([("t.7", 2), ("t.8", 1)])
    changes = beat(link, server).report
    assert changes is not None
    assert (changes.replicas, changes.gone) == ([], ["t.7-2"])
    assert [(one.key, one.state) for one in changes.tablets] == [("t.8-1", ReplicaState.RUNNING)]
