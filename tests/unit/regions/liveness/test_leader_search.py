"""The masters that a caller asks, and its handling of the answers (MF-15, MF-16)."""

from __future__ import annotations

import pytest

from coord.rpc.wire import Code, RpcError
from regions import messages as ms
from regions.liveness.leader_search import Next, Search, is_repeatable

READ, CHANGE = ms.ListTables(), ms.DeleteTable("t")
ONCE = ms.DeleteTable("t", request_id="a1")


def round_of(search: Search, answers: dict[str, RpcError | None], message: object = READ) -> list[str]:
    """Ask until a master answers or the round is over. Return the masters that were asked."""
    asked = []
    search.begin()
    while (address := search.next()) is not None:
        asked.append(address)
        error = answers[address]
        if error is None:
            search.answered(address)
            break
        if search.refused(address, message, error) is Next.GIVE_UP:  # type: ignore[arg-type]
            asked.append("gave up")
            break
    return asked


def standby(hint: str = "") -> RpcError:
    return RpcError(ms.NOT_LEADER, "this master is not the active one", hint)


def test_the_hint_is_followed_at_once() -> None:
    """MF-15: NOT_LEADER names the active master, even one that the caller did not know."""
    search = Search(["a:1", "b:1", "c:1"])
    assert round_of(search, {"a:1": standby("d:1"), "d:1": None}) == ["a:1", "d:1"]
    assert round_of(search, {"d:1": None}) == ["d:1"], "who answered last is asked first"


def test_two_that_point_at_each_other_are_each_asked_once() -> None:
    """In the middle of a failover both may be wrong."""
    search = Search(["a:1", "b:1", "c:1"])
    answers = {"a:1": standby("b:1"), "b:1": standby("a:1"), "c:1": standby("b:1")}
    assert round_of(search, answers) == ["a:1", "b:1", "c:1"]


def test_a_leader_that_is_gone_is_forgotten() -> None:
    """MF-15: again on NOT_THE_LEADER, until one is found."""
    search = Search(["a:1", "b:1"])
    assert round_of(search, {"a:1": None}) == ["a:1"]
    dead = RpcError(Code.UNREACHABLE, "a:1 does not answer: Connection refused")
    assert round_of(search, {"a:1": dead, "b:1": standby()}) == ["a:1", "b:1"]
    assert search.leader == ""
    assert search.story() == "a:1 does not answer: Connection refused; b:1 is a standby"


@pytest.mark.parametrize(
    ("message", "code", "follows"),
    [
        (READ, Code.CONNECTION_LOST, Next.ASK),
        (READ, Code.TIMEOUT, Next.ASK),
        (CHANGE, Code.CONNECTION_LOST, Next.GIVE_UP),
        (CHANGE, Code.TIMEOUT, Next.GIVE_UP),
        (ONCE, Code.CONNECTION_LOST, Next.ASK),
        (ONCE, Code.TIMEOUT, Next.ASK),
        (ONCE, Code.INTERNAL, Next.GIVE_UP),
        (CHANGE, Code.UNREACHABLE, Next.ASK),
        (CHANGE, ms.BUSY, Next.ASK),
        (READ, ms.TOO_STALE, Next.ASK),
        (READ, ms.NOT_FOUND, Next.GIVE_UP),
        (ONCE, ms.TIMED_OUT, Next.GIVE_UP),
        (CHANGE, ms.ALREADY_EXISTS, Next.GIVE_UP),
    ],
)
def test_what_may_be_sent_again(message: ms.MasterRequest, code: str, follows: Next) -> None:
    """OC-08: a request with an unknown outcome is repeated only if it cannot be carried out twice."""
    assert Search(["a:1"]).refused("a:1", message, RpcError(code, "so it is")) is follows


def test_a_request_id_makes_an_operation_repeatable() -> None:
    """DDL: the master recognizes the request (regions/messages/ddl.py)."""
    assert (is_repeatable(CHANGE), is_repeatable(ONCE), is_repeatable(READ)) == (False, True, True)


def test_nobody_known_is_said() -> None:
    """The error names the masters that were asked; here there was none."""
    assert Search().story() == "no master is known"
