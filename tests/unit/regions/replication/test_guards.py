"""A server's answers to OPEN and CLOSE: all states, and the order of the checks."""

from __future__ import annotations

import itertools

import pytest

from regions.messages.heartbeat import ReplicaState
from regions.messages.server import ClosePurpose, MemberEndpoint, TabletClosing, TabletOpening
from regions.records.members import ConfigId
from regions.replication.guards import (
    CLOSE_CHECKS,
    OPEN_CHECKS,
    CloseFacts,
    OpenFacts,
    OrderAnswer,
    ReplicaOnDisk,
    answer_to_close,
    answer_to_open,
)

INITIAL = tuple(MemberEndpoint(number, f"s{number}", "127.0.0.1", 7000 + number) for number in (1, 2, 3))
CONFIG = ConfigId(3, 8)
S, N = ReplicaState, OrderAnswer


def opened(local: ReplicaOnDisk | None, number: int = 2, *, must_exist: bool = False) -> OrderAnswer:
    """Return the answer to an OPEN."""
    return answer_to_open(OpenFacts(number, TabletOpening(INITIAL, must_exist), local))


def closed(local: ReplicaOnDisk | None, purpose: ClosePurpose, number: int = 2) -> OrderAnswer:
    """Return the answer to a CLOSE based on configuration 3.8."""
    return answer_to_close(CloseFacts(number, TabletClosing(purpose, CONFIG), local))


def test_a_voter_is_made_once() -> None:
    """Without a superblock the order makes it, unless a server has begun before: then the disk was lost."""
    assert opened(None) is N.MAKE
    assert opened(None, must_exist=True) is N.AMNESIA
    assert opened(None, number=4) is N.ILLEGAL_STATE
    assert opened(ReplicaOnDisk(2, S.LOST)) is N.AMNESIA
    assert opened(ReplicaOnDisk(2, S.TOMBSTONE), must_exist=True) is N.AMNESIA


@pytest.mark.parametrize("must_exist", [False, True])
@pytest.mark.parametrize("state", [S.ASLEEP, S.RUNNING, S.RESTING])
def test_asking_again_does_no_harm(state: ReplicaState, must_exist: bool) -> None:
    """The answer to the first order was lost, or the master has died."""
    assert opened(ReplicaOnDisk(2, state), must_exist=must_exist) is N.WAKE


def test_numbers_decide_between_two_lives() -> None:
    """A late order for an earlier number changes nothing."""
    for state in ReplicaState:
        assert opened(ReplicaOnDisk(5, state)) is N.OLD_NUMBER
        assert opened(ReplicaOnDisk(1, state)) is N.ILLEGAL_STATE
        for purpose in ClosePurpose:
            assert closed(ReplicaOnDisk(5, state), purpose) is N.OLD_NUMBER
            assert closed(ReplicaOnDisk(1, state), purpose) is N.ILLEGAL_STATE


def test_a_known_member_does_not_become_a_tombstone() -> None:
    """The master's configuration may be old; the server's later one has the number (FN-03)."""
    later = ReplicaOnDisk(2, S.RUNNING, ConfigId(3, 9), is_member=True)
    assert closed(later, ClosePurpose.TOMBSTONE) is N.STALE_CONFIG
    assert closed(later._replace(is_member=False), ClosePurpose.TOMBSTONE) is N.CLOSE
    assert closed(later._replace(config_id=CONFIG), ClosePurpose.TOMBSTONE) is N.CLOSE
    assert closed(later, ClosePurpose.DELETE) is N.CLOSE
    assert closed(later, ClosePurpose.REST) is N.CLOSE


def test_closing_again_does_no_harm() -> None:
    """A completed close is not repeated; a deletion also removes the tombstone."""
    for purpose in ClosePurpose:
        assert closed(None, purpose) is N.DONE
        assert closed(ReplicaOnDisk(2, S.STOPPING), purpose) is N.IN_PROGRESS
        tombstone = N.CLOSE if purpose is ClosePurpose.DELETE else N.DONE
        assert closed(ReplicaOnDisk(2, S.TOMBSTONE), purpose) is tombstone
        assert closed(ReplicaOnDisk(2, S.LOST), purpose) is tombstone
    assert closed(ReplicaOnDisk(2, S.RESTING), ClosePurpose.REST) is N.DONE
    assert closed(ReplicaOnDisk(2, S.RESTING), ClosePurpose.DELETE) is N.CLOSE


def test_every_state_is_answered_and_every_row_is_used() -> None:
    """No earlier row shadows a row."""
    locals_ = [None, *(ReplicaOnDisk(n, s, ConfigId(4, 1)) for n, s in itertools.product((1, 2, 5), ReplicaState))]
    used = set()
    for local, number, must_exist in itertools.product(locals_, (2, 4), (False, True)):
        facts = OpenFacts(number, TabletOpening(INITIAL, must_exist), local)
        used.add(next(check.when for check in OPEN_CHECKS if check.applies(facts)))
    assert used == {check.when for check in OPEN_CHECKS}
    used = set()
    for local, purpose in itertools.product(locals_, ClosePurpose):
        order = CloseFacts(2, TabletClosing(purpose, CONFIG), local)
        used.add(next(check.when for check in CLOSE_CHECKS if check.applies(order)))
    assert used == {check.when for check in CLOSE_CHECKS}


#: The answer to an OPEN of the number of a replica in each state.
OPENED = {
    S.ASLEEP: N.WAKE,
    S.RUNNING: N.WAKE,
    S.RESTING: N.WAKE,
    S.STOPPING: N.ILLEGAL_STATE,
    S.COPYING: N.ILLEGAL_STATE,
    S.FAILED: N.FAILED,
    S.TOMBSTONE: N.AMNESIA,
    S.LOST: N.AMNESIA,
}


@pytest.mark.parametrize("must_exist", [False, True])
@pytest.mark.parametrize("number", [2, 4])
@pytest.mark.parametrize("state", [None, *ReplicaState])
def test_cell_of_an_open(state: ReplicaState | None, number: int, must_exist: bool) -> None:
    """Each state; a number that is among the first members, or not; the number was begun before, or not."""
    answer = opened(None if state is None else ReplicaOnDisk(number, state), number, must_exist=must_exist)
    if state is not None:
        assert answer is OPENED[state]
    elif must_exist:
        assert answer is N.AMNESIA
    else:
        assert answer is (N.MAKE if number == 2 else N.ILLEGAL_STATE)


@pytest.mark.parametrize("purpose", ClosePurpose)
@pytest.mark.parametrize("config", [ConfigId(3, 7), CONFIG, ConfigId(3, 9)])
@pytest.mark.parametrize("is_member", [False, True])
@pytest.mark.parametrize("state", ReplicaState)
def test_cell_of_a_close(state: ReplicaState, is_member: bool, config: ConfigId, purpose: ClosePurpose) -> None:
    """Each state and purpose; the server's configuration is earlier, the same or later, and has the number or not."""
    is_done = {ClosePurpose.REST: (S.RESTING, S.TOMBSTONE, S.LOST), ClosePurpose.TOMBSTONE: (S.TOMBSTONE, S.LOST)}
    answer = closed(ReplicaOnDisk(2, state, config, is_member), purpose)
    if purpose is ClosePurpose.TOMBSTONE and is_member and config > CONFIG:
        assert answer is N.STALE_CONFIG
    elif state is S.STOPPING:
        assert answer is N.IN_PROGRESS
    else:
        assert answer is (N.DONE if state in is_done.get(purpose, ()) else N.CLOSE)
