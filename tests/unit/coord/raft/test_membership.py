"""Configurations: their encoding, single steps, and their place in the log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coord.raft.log import ConfigLog
from coord.raft.membership import CatchUp, Configuration, decode_configuration, objection


@given(st.lists(st.integers(1, 2**62), max_size=9, unique=True), st.integers(0, 9), st.integers(0, 9), st.binary())
def test_encoding_round_trip(ids: list[int], a: int, b: int, attachment: bytes) -> None:
    """A replica reads the proposed configuration."""
    a, b = min(a, b), max(a, b)
    config = Configuration(ids[:a], ids[a:b], ids[b:], attachment)
    assert decode_configuration(config.encode()) == config


@given(st.binary(max_size=60))
def test_decoding_any_bytes_ends_in_a_configuration_or_a_clear_error(data: bytes) -> None:
    """Hostile or damaged bytes have no other result."""
    try:
        decode_configuration(data)
    except (ValueError, AssertionError):
        return


@pytest.mark.parametrize(
    ("new", "allowed"),
    [
        (Configuration([1, 2, 3, 4]), True),
        (Configuration([1, 2]), True),
        (Configuration([1, 2, 3], [4]), True),
        (Configuration([1, 2], [], [3]), True),
        (Configuration([1, 2, 3], [4, 5], [6]), True),
        (Configuration([1]), False),
        (Configuration([1, 2, 4]), False),
        (Configuration([1, 2, 3, 4, 5]), False),
        (Configuration([], [1, 2, 3]), False),
    ],
)
def test_only_one_voter_changes_at_a_time(new: Configuration, allowed: bool) -> None:
    """Dissertation §4.1; members without a vote may come and go freely."""
    assert (objection(Configuration([1, 2, 3]), new) == "") is allowed


def test_the_log_knows_the_configuration_of_every_index() -> None:
    """A configuration is in force when appended, reverted when truncated, and forgotten below a snapshot."""
    log = ConfigLog(0, Configuration([1]))
    log.append(4, Configuration([1, 2]), 2)
    log.append(9, Configuration([1, 2, 3]), 2)
    assert [len(log.at(i).voters) for i in (0, 3, 4, 8, 9, 50)] == [1, 1, 2, 2, 3, 3]
    assert not log.truncate(10)
    assert log.truncate(9)
    assert log.current == Configuration([1, 2])
    log.append(9, Configuration([2]), 3)
    log.forget_before(6)
    assert log.at(6) == Configuration([1, 2])
    with pytest.raises(AssertionError):
        log.at(3)


def test_the_committed_configuration_has_the_id_of_its_entry() -> None:
    """It is the newest one up to the commit index; the first one has the id that the shell knows, or none."""
    log = ConfigLog(5, Configuration([1]), (2, 3))
    log.append(7, Configuration([1, 2]), 4)
    log.append(9, Configuration([1, 2, 3]), 6)

    def found(commit: int) -> tuple[int, int, int]:
        committed = log.committed(commit)
        return committed.term, committed.index, len(committed.config.voters)

    assert [found(commit) for commit in (5, 6, 7, 8, 9)] == [(2, 3, 1), (2, 3, 1), (4, 7, 2), (4, 7, 2), (6, 9, 3)]
    log.truncate(9)
    assert found(20) == (4, 7, 2)
    log.forget_before(8)
    assert found(20) == (4, 7, 2), "the id outlives the entry"
    log.restart(30, Configuration([1, 2]))
    assert found(30) == (0, 0, 2)


def test_a_slow_newcomer_is_not_promoted_until_a_round_is_short() -> None:
    """After a round longer than an election timeout it would delay commits for that long: Dissertation §4.2.1."""
    newcomer = CatchUp(target=100, now=0)
    assert not newcomer.advance(match=99, last=150, now=10, limit_ticks=12)
    assert not newcomer.advance(match=100, last=200, now=40, limit_ticks=12)
    assert not newcomer.advance(match=199, last=210, now=45, limit_ticks=12)
    assert newcomer.advance(match=200, last=220, now=50, limit_ticks=12)
    assert newcomer.advance(match=200, last=999, now=90, limit_ticks=12)


def test_two_roles_for_one_member_are_refused() -> None:
    """A member is a voter or not."""
    with pytest.raises(AssertionError, match="two roles"):
        Configuration([1, 2], [2])
