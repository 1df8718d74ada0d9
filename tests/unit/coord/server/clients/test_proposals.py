"""Commands of a node's own clients during changes of leader: each is applied once, in order."""

from __future__ import annotations

from typing import Any

import pytest

from coord.server.clients.connection import Connection, Pending
from coord.server.clients.proposals import Forwarded, Proposals, Sent
from coord.wire.opcodes import OP_SET_DATA


def sent(number: int, session_id: int = 7) -> Sent:
    """Return a command without a waiting client."""
    nobody: Any = None
    connection = Connection(1, nobody, "", 0, 0)
    return Sent(session_id, 1, number, b"command-%d" % number, connection, Pending(number, OP_SET_DATA, 0))


def queued(*numbers: int) -> Proposals:
    """Return a queue with waiting commands."""
    proposals = Proposals()
    proposals.waiting.extend(sent(n) for n in numbers)
    return proposals


def cxids(commands: list[Sent]) -> list[int]:
    """Return the cxids of these commands."""
    return [c.cxid for c in commands]


def test_commands_are_numbered_within_a_term() -> None:
    """The leader can tell a repetition from a new command."""
    proposals = queued(1, 2)
    assert proposals.take(5)[0] == 1
    proposals.waiting.append(sent(3))
    first, taken = proposals.take(5)
    assert (first, cxids(taken)) == (3, [3])
    proposals.match(7, 1, 1)
    assert proposals.first_number == 2
    first, again = proposals.unapplied(5)
    assert (first, cxids(again)) == (2, [2, 3])


def test_nothing_new_is_sent_while_older_commands_may_live() -> None:
    """Rule 3: before an entry of the new term is applied, commands of the old one may still be committed."""
    proposals = queued(1, 2)
    proposals.take(5)
    proposals.waiting.append(sent(3))
    assert proposals.take(6) == (0, [])
    assert cxids(list(proposals.waiting)) == [3]


def test_an_entry_of_a_later_term_kills_what_was_sent_before() -> None:
    """Rule 2: the commands wait again, before all newer ones, and are sent in the new term."""
    proposals = queued(1, 2, 3)
    proposals.take(5)
    proposals.waiting.append(sent(4))
    assert proposals.match(7, 1, 1) is not None
    proposals.entry_applied(5)
    assert cxids(list(proposals.sent)) == [2, 3]
    proposals.entry_applied(6)
    assert not proposals.sent
    assert proposals.resent == 2
    first, taken = proposals.take(6)
    assert (first, cxids(taken)) == (1, [2, 3, 4])


def test_command_applied_late_in_its_own_term_is_not_sent_again() -> None:
    """The old leader's entry survives the election: it is applied before the new leader's first entry."""
    proposals = queued(1, 2)
    proposals.take(5)
    proposals.entry_applied(5)
    assert proposals.match(7, 1, 1) is not None
    proposals.entry_applied(6)
    assert cxids(proposals.take(6)[1]) == [2]


def test_outcomes_of_others_match_nothing() -> None:
    """Only the oldest command sent can be the next one applied."""
    proposals = queued(1)
    proposals.take(5)
    assert proposals.match(8, 1, 1) is None
    assert proposals.match(7, 2, 1) is None
    assert proposals.match(7, 1, 2) is None
    assert proposals.match(7, 1, 1) is not None


def test_forget_drops_everything() -> None:
    """After a snapshot the outcome of the commands is unknown."""
    proposals = queued(1)
    proposals.take(5)
    proposals.waiting.append(sent(2))
    proposals.forget()
    assert proposals.outstanding() == 0
    proposals.waiting.append(sent(3))
    assert proposals.take(6)[0] == 1


def test_leader_skips_what_it_has_taken() -> None:
    """Rule 4: a new connection brings again all commands that are not applied."""
    forwarded = Forwarded()
    assert forwarded.accept(5, 2, 99, 1, [b"a", b"b"]) == [b"a", b"b"]
    assert forwarded.accept(5, 2, 99, 2, [b"b", b"c"]) == [b"c"]
    assert forwarded.accept(5, 2, 99, 1, [b"a"]) == []
    assert forwarded.accept(5, 2, 99, 4, [b"d"]) == [b"d"]


def test_numbers_begin_anew_with_term_and_incarnation() -> None:
    """A restarted follower, or one in a later term, counts from one."""
    forwarded = Forwarded()
    forwarded.accept(5, 2, 99, 1, [b"a", b"b"])
    assert forwarded.accept(5, 2, 100, 1, [b"x"]) == [b"x"]
    assert forwarded.accept(6, 2, 99, 1, [b"a"]) == [b"a"]


def test_missing_numbers_are_refused() -> None:
    """An ordered connection has no gaps; guessing would lose a command."""
    forwarded = Forwarded()
    forwarded.accept(5, 2, 99, 1, [b"a"])
    with pytest.raises(ValueError, match="expected 2"):
        forwarded.accept(5, 2, 99, 3, [b"c"])
