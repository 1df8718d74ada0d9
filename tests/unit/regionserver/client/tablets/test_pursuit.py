"""The next server that a call asks: one row of the table after the other."""

from __future__ import annotations

import pytest

from coord.rpc.wire import Code
from regions.messages.codes import FORBIDDEN
from regionserver.client.tablets import pursuit as pursuit_module
from regionserver.client.tablets.answers import MEANINGS, NO_ADDRESS, UNLISTED, CallStep, meaning_of
from regionserver.client.tablets.pursuit import (
    FIRST_PAUSE_S,
    LAST_PAUSE_S,
    RESEND_FIRST_S,
    RETRY_LAST_S,
    SILENT_S,
    STALE_S,
    UNREACHABLE_S,
    Dispatch,
    Kind,
    Pursuit,
)
from regionserver.kv.messages import SCHEMA_CHANGED
from regionserver.tablets.messages import NO_REPLICA, OUTCOME_UNKNOWN, KnownLeader, TabletLeader

SERVERS = ["s1", "s2", "s3"]


def view(term: int = 0, leader: str = "") -> KnownLeader:
    return KnownLeader("t", term, TabletLeader(1, leader, "h", 1) if leader else None)


class Call:
    """A pursuit with its clock. Lists the requests that it sends."""

    def __init__(self, hint: tuple[int, str] | None = None, *, is_suspect: bool = False, is_ready: bool = True) -> None:
        self.now_s = 100.0
        self.pursuit = Pursuit(SERVERS, hint, lambda: 0.0, now_s=self.now_s, is_suspect=is_suspect, is_ready=is_ready)
        self.sent: list[Dispatch] = []

    def take(self) -> list[str]:
        found = self.pursuit.take(self.now_s)
        self.sent += found
        return [f"{one.kind.name} {one.server}" for one in found]

    def step(self) -> list[str]:
        """Advance to the time of the next action."""
        self.now_s = self.pursuit.wake_s(self.now_s)
        return self.take()

    def until(self, what: str, within_s: float) -> float:
        """Return the time until `what` is sent."""
        began_s = self.now_s
        while self.now_s <= began_s + within_s:
            if what in self.step():
                return self.now_s - began_s
        raise AssertionError(f"{what} was not sent within {within_s} s")

    def latest(self, kind: Kind, server: str) -> Dispatch:
        return [one for one in self.sent if (one.kind, one.server) == (kind, server)][-1]

    def inform(self, server: str, what: KnownLeader, kind: Kind = Kind.QUESTION) -> None:
        self.pursuit.informed(self.latest(kind, server), what, self.now_s)

    def fail(self, server: str, code: str, kind: Kind = Kind.REQUEST) -> CallStep:
        return self.pursuit.failed(self.latest(kind, server), code, f"failed: {code}", self.now_s)


def test_a_known_leader_is_sent_the_request_and_nobody_is_asked() -> None:
    call = Call((5, "s2"))
    assert call.take() == ["REQUEST s2"]
    assert call.take() == []
    assert call.pursuit.wake_s(call.now_s) == pytest.approx(call.now_s + SILENT_S)


def test_without_a_leader_members_are_asked_in_turn_at_growing_pauses() -> None:
    call = Call()
    assert call.take() == ["QUESTION s1"]
    times = []
    for server in ("s2", "s3"):
        assert call.step() == [f"QUESTION {server}"]
        times.append(call.now_s - 100.0)
    for server in SERVERS:
        call.inform(server, view(3))
    assert times[0] == pytest.approx(FIRST_PAUSE_S)
    for _ in range(10):
        before_s = call.now_s
        (sent,) = call.step()
        assert sent.startswith("QUESTION")
        assert FIRST_PAUSE_S - 1e-9 <= call.now_s - before_s <= LAST_PAUSE_S
        call.inform(sent.split()[1], view(3))


def test_the_named_leader_is_sent_the_request() -> None:
    call = Call()
    call.take()
    call.inform("s1", view(3, "s3"))
    assert call.take() == ["REQUEST s3"]
    assert call.pursuit.leader == (3, "s3")


def test_a_writer_that_knows_no_time_asks_the_leader_first() -> None:
    call = Call((5, "s2"), is_ready=False)
    assert call.take() == ["QUESTION s2"]
    call.inform("s2", view(5, "s2"))
    assert call.take() == ["REQUEST s2"]


def test_not_leader_is_followed_at_once_and_a_server_is_not_asked_again_at_once() -> None:
    call = Call((5, "s1"))
    call.take()
    call.inform("s1", view(6, "s2"), Kind.REQUEST)
    assert call.take() == ["REQUEST s2"]
    call.inform("s2", view(7, "s1"), Kind.REQUEST)
    assert "REQUEST s1" not in call.take()
    assert 0 < call.until("REQUEST s1", 0.1) < 0.1
    assert not call.pursuit.is_unknown


def test_servers_that_name_each_other_do_not_keep_the_call_busy() -> None:
    call = Call((5, "s1"))
    call.take()
    count = 0
    while call.now_s < 110.0:
        for sent in [one for one in call.sent if one.kind is Kind.REQUEST]:
            other = "s2" if sent.server == "s1" else "s1"
            call.pursuit.informed(sent, view(5, other), call.now_s)
            count += 1
        call.sent = [one for one in call.sent if one.kind is Kind.QUESTION]
        call.step()
    assert count < 10 / RETRY_LAST_S * 4 + 20


def test_a_leader_that_says_it_lost_its_leadership_is_not_believed_to_lead() -> None:
    call = Call((5, "s1"))
    call.take()
    call.inform("s1", view(5, "s1"), Kind.REQUEST)
    assert call.pursuit.leader is None
    assert call.take()[0].startswith("QUESTION")


@pytest.mark.parametrize("code", [Code.CONNECTION_LOST, Code.UNREACHABLE])
def test_a_broken_leader_has_the_members_asked_at_once(code: str) -> None:
    call = Call((5, "s1"))
    call.take()
    assert call.fail("s1", code) is CallStep.SEARCH
    assert call.pursuit.is_unknown is (code == Code.CONNECTION_LOST)
    assert call.take() == ["QUESTION s2"]
    call.inform("s2", view(5, "s1"))
    assert call.until("QUESTION s3", 0.05) <= LAST_PAUSE_S
    call.inform("s3", view(6, "s3"))
    assert "REQUEST s3" in call.take()


def test_a_member_that_cannot_be_reached_is_asked_after_the_others() -> None:
    call = Call((5, "s1"))
    call.take()
    call.fail("s1", Code.CONNECTION_LOST)
    call.pursuit.informed(Dispatch(Kind.QUESTION, "s2", 0), view(5), call.now_s)
    asked = []
    began_s = call.now_s
    while call.now_s < began_s + UNREACHABLE_S - LAST_PAUSE_S:
        for sent in call.take() + call.step():
            kind, server = sent.split()
            if kind == "QUESTION":
                asked.append(server)
                call.inform(server, view(5))
            else:
                call.fail(server, Code.UNREACHABLE)
    assert set(asked) == {"s2", "s3"}


def test_a_leader_that_came_back_is_sent_the_request_again() -> None:
    call = Call((5, "s1"))
    call.take()
    call.fail("s1", Code.CONNECTION_LOST)
    assert call.take() == ["QUESTION s2"]
    call.inform("s2", view(6, "s1"))
    assert call.until("REQUEST s1", 0.1) < 0.1


def test_a_silent_leader_keeps_the_request_and_the_others_are_asked() -> None:
    call = Call((5, "s1"))
    call.take()
    assert call.until("QUESTION s2", 1.0) == pytest.approx(SILENT_S)
    assert call.pursuit.is_out
    assert call.pursuit.silent(call.now_s) == ["s1"]
    call.inform("s2", view(6, "s2"))
    assert call.take() == ["REQUEST s2"]
    assert call.pursuit.is_out
    assert not any(one.kind is Kind.QUESTION and one.server == "s1" for one in call.sent)


def test_a_silent_leader_that_still_leads_is_sent_the_request_once_more_and_then_twice_as_late() -> None:
    call = Call((5, "s1"))
    call.take()
    times = []
    while call.now_s < 108:
        for sent in call.step():
            kind, server = sent.split()
            if kind == "REQUEST":
                times.append(round(call.now_s - 100, 1))
            else:
                call.inform(server, view(5, "s1"))
    assert times == [pytest.approx(RESEND_FIRST_S, abs=0.2), pytest.approx(3 * RESEND_FIRST_S, abs=0.3), 7.0]


def test_the_failure_of_an_older_copy_leaves_the_later_one_out() -> None:
    call = Call((5, "s1"))
    call.take()
    first = call.latest(Kind.REQUEST, "s1")
    while [one.kind for one in call.sent].count(Kind.REQUEST) < 2:
        for sent in call.step():
            if sent.startswith("QUESTION"):
                call.inform(sent.split()[1], view(5, "s1"))
    call.pursuit.failed(first, Code.CONNECTION_LOST, "reset", call.now_s)
    assert call.pursuit.is_out
    assert call.pursuit.is_unknown


def test_a_leader_that_was_silent_lately_is_asked_about_first() -> None:
    call = Call((5, "s1"), is_suspect=True)
    assert call.take() == ["QUESTION s2"], "the others know more of it"
    call.inform("s2", view(6, "s3"))
    assert call.take() == ["REQUEST s3"]
    alone = Call((5, "s1"), is_suspect=True)
    alone.take()
    assert alone.until("REQUEST s1", 1.0) == pytest.approx(SILENT_S, abs=LAST_PAUSE_S)


def test_a_busy_leader_is_asked_again_after_a_pause_and_nobody_else() -> None:
    call = Call((5, "s1"))
    call.take()
    pauses = []
    for _ in range(8):
        assert call.fail("s1", Code.BUSY) is CallStep.PAUSE
        before_s = call.now_s
        assert call.step() == ["REQUEST s1"]
        pauses.append(call.now_s - before_s)
    assert pauses == sorted(pauses)
    assert pauses[-1] <= RETRY_LAST_S
    assert not call.pursuit.is_unknown


def test_outcome_unknown_is_kept_although_later_copies_do_nothing() -> None:
    call = Call((5, "s1"))
    call.take()
    call.fail("s1", OUTCOME_UNKNOWN)
    call.until("REQUEST s1", 1.0)
    call.inform("s1", view(6, "s2"), Kind.REQUEST)
    assert call.pursuit.is_unknown


@pytest.mark.parametrize("code", [NO_REPLICA, NO_ADDRESS])
def test_a_member_without_replica_or_address_makes_the_record_doubtful(code: str) -> None:
    call = Call((5, "s1"))
    call.take()
    call.fail("s1", code)
    assert "s1" in call.pursuit.doubt
    call.pursuit.reconsider(["s2", "s3", "s4"], call.now_s)
    assert call.pursuit.doubt == ""
    assert call.until("QUESTION s4", 1.0)


def test_members_without_a_leader_make_the_record_doubtful() -> None:
    call = Call()
    call.take()
    while not call.pursuit.doubt:
        call.step()
    assert call.now_s == pytest.approx(100 + STALE_S, abs=LAST_PAUSE_S)


def test_a_dead_leader_of_a_higher_term_does_not_hide_one_that_says_it_leads() -> None:
    call = Call((100, "s1"))
    call.take()
    call.fail("s1", Code.UNREACHABLE)
    assert call.take() == ["QUESTION s2"]
    call.inform("s2", view(50, "s3"))
    assert call.pursuit.leader == (100, "s1")
    call.until("QUESTION s3", 0.1)
    call.inform("s3", view(50, "s3"))
    assert "REQUEST s3" in call.take()


def test_the_error_names_every_member() -> None:
    call = Call((5, "s1"))
    call.take()
    call.fail("s1", Code.UNREACHABLE)
    assert call.take() == ["QUESTION s2"]
    call.now_s += 1
    problems = call.pursuit.problems(call.now_s)
    assert problems["s1"].startswith("failed") or problems["s1"].startswith("no reply")
    assert problems["s2"].startswith("no reply for 1.0 s")
    assert set(problems) == set(SERVERS)


def test_every_code_has_a_meaning_and_no_rejection_is_taken_for_done() -> None:
    assert meaning_of("a later build's code") == UNLISTED
    assert UNLISTED.is_unknown
    ends = {code for code, meaning in MEANINGS.items() if meaning.step is CallStep.END}
    assert ends == {Code.BAD_REQUEST, Code.TOO_LARGE, SCHEMA_CHANGED, FORBIDDEN}


def test_nothing_waits_for_a_second() -> None:
    assert max(SILENT_S, LAST_PAUSE_S, RETRY_LAST_S, pursuit_module.CONFIRMED_PAUSE_S) < 0.4
