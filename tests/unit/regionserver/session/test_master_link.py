"""What a server owes a master (HB-01 to HB-10): a table of roles, reports that lose nothing, and both ends."""

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
    """What a tie describes: replicas with a schema version each."""

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
    """A tie with a leader that has been told everything."""
    link = MasterLink(ADDRESS, report_max)
    for _ in range(2):
        beat(link, server)
        link.answered(leader(), 3)
    assert link.is_up_to_date
    return link


def test_the_first_heartbeat_introduces_and_reports_nothing() -> None:
    """HB-02, HB-07: who we are; whether this master leads is not known yet."""
    link = MasterLink(ADDRESS)
    made = beat(link, Server(3))
    assert (made.registration, made.report, made.sequence, made.recipient) == (RECORD, None, 1, "")
    assert link.next_heartbeat(Server().heartbeat_state()) is None, "one is on its way"


def test_a_new_leader_is_told_everything_unasked() -> None:
    """HB-10, KUDU-1374: it did not ask; and it is not left to wait for the next tick."""
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
        ("the same reign", leader(), False),
        ("another reign of the same master", leader(4), True),
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


def test_standbys_are_told_of_no_replica() -> None:
    """HB-08, X14: whatever changes."""
    link, server = MasterLink(ADDRESS), Server(2)
    for _ in range(3):
        assert beat(link, server).report is None
        link.answered(STANDBY, 3)
        link.changed(server.held)
    assert (link.role, link.unreported) == (Role.STANDBY, 0)


def test_a_claim_under_an_epoch_that_is_over_is_not_believed_and_told_so() -> None:
    """FN-05: the next heartbeat carries the higher epoch."""
    server = Server(1)
    link = told(server)
    server.epoch = 9
    assert beat(link, server).epoch == 9
    link.answered(leader(3), 9)
    assert link.role is Role.STANDBY
    assert beat(link, server).report is None


def test_changes_are_told_once() -> None:
    """HB-03: in heartbeat N, absent from N+1; what is gone is named."""
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


def test_what_could_not_be_delivered_is_told_at_the_next_tick() -> None:
    """HB-01: with what has changed since, and as it is then."""
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


def test_a_change_while_a_heartbeat_is_on_its_way_is_not_taken_for_told() -> None:
    """HB-03: it was described before."""
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


def test_a_full_report_comes_in_parts_one_right_after_the_other() -> None:
    """A frame does not grow with the server; a lost part is sent again, a lost beginning begins anew."""
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


def test_a_master_that_never_has_enough_is_not_served_without_pause() -> None:
    """What it asks for again, although it was just sent, waits for the next tick."""
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


def test_another_master_at_the_same_address_is_a_stranger() -> None:
    """FN-08: it refused what was meant for the former one; it is introduced to us from the beginning."""
    server = Server(1)
    link = told(server)
    beat(link, server)
    link.failed("this is master m2", is_other_master=True)
    made = beat(link, server)
    assert (made.recipient, made.registration, made.report) == ("", RECORD, None)


def test_what_was_overtaken_is_told_again_under_a_higher_number() -> None:
    """An answer is no acknowledgement when the master has heard a later heartbeat already."""
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


def test_a_master_with_two_addresses_is_told_everything_all_the_same() -> None:
    """Given by hand under one name and registered under another: two ties, one roster."""
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
    """A master's end: roster and reports of one reign, as `master.heartbeats` uses them."""

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
def test_whatever_is_lost_the_leader_knows_everything_in_the_end(
    steps: list[tuple[str, int, str]], report_max: int
) -> None:
    """HB-01, HB-03, HB-10, KUDU-1374: heartbeats lost, answers lost, heartbeats that arrive after later ones, leaders
    that change, masters that start anew and masters that are gone for a moment: after two quiet ticks the leader's
    picture is what the server has."""
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
        elif what == "forget":  # the master was gone from the store for a moment, and is another peer since
            number %= 2
            ties[number] = MasterLink(ADDRESS, report_max, ties[number].sent)
        elif what == "anew":  # the master's ephemeral was gone for a moment: whatever was on its way arrives late
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


def test_replicas_of_tablets_have_reports_of_their_own() -> None:
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
