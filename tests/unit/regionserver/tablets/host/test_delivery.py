"""A server's answers to messages for a replica: one case for each row, and the order of the rows."""

from __future__ import annotations

import pytest

from regionserver.tablets.host.delivery import ABSENT, RULES, Delivery, ReplicaStanding, State, decide
from regionserver.tablets.host.envelope import Word

READY = ReplicaStanding(State.READY, number=3, term=7, last_index=20, last_term=6)


def at(state: State) -> ReplicaStanding:
    """Return a replica in that state, with the number and term of READY."""
    return ReplicaStanding(state, number=3, term=7, last_index=20, last_term=6)


CASES: dict[str, tuple[Delivery, ReplicaStanding, Word | None]] = {
    "wrong name": (Delivery(False, 3, 7), READY, Word.INVALID_NAME),
    "no superblock": (Delivery(True, 3, 7), ABSENT, Word.DOES_NOT_EXIST),
    "number below mine": (Delivery(True, 2, 7), READY, Word.OLD_NUMBER),
    "number above mine": (Delivery(True, 4, 7), READY, Word.OLDER),
    "term below mine": (Delivery(True, 3, 6), at(State.FAILED), Word.INVALID_TERM),
    "deleted": (Delivery(True, 3, 7), at(State.DELETED), Word.DELETED),
    "copying": (Delivery(True, 3, 7), at(State.COPYING), Word.COPYING),
    "failed": (Delivery(True, 3, 7), at(State.FAILED), Word.FAILED),
    "resting": (Delivery(True, 3, 7), at(State.RESTING), Word.RESTING),
    "ready": (Delivery(True, 3, 7), READY, None),
}


@pytest.mark.parametrize("name", CASES)
def test_each_row_decides_its_case(name: str) -> None:
    """Tried: without the row of older terms a FAILED replica answers FAILED to a deposed leader."""
    arrival, standing, word = CASES[name]
    rule = decide(arrival, standing)
    assert (rule.name, rule.word) == (name, word)
    assert rule.is_answered == (word is not Word.OLD_NUMBER)


def test_every_row_has_a_case() -> None:
    assert [rule.name for rule in RULES] == list(CASES)


#: Words of replicas that do not run.
WORDS = {
    State.DELETED: Word.DELETED,
    State.COPYING: Word.COPYING,
    State.FAILED: Word.FAILED,
    State.RESTING: Word.RESTING,
}


def word_of(arrival: Delivery, state: State) -> Word | None:
    """Return the answer by the rules: the name comes first, then the number, the term, and the state."""
    if not arrival.is_named_right:
        return Word.INVALID_NAME
    if state is State.ABSENT:
        return Word.DOES_NOT_EXIST
    if arrival.number != READY.number:
        return Word.OLD_NUMBER if arrival.number < READY.number else Word.OLDER
    if state is State.READY:
        return None
    return Word.INVALID_TERM if arrival.term < READY.term else WORDS[state]


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("number", [2, 3, 4])
@pytest.mark.parametrize("term", [6, 7, 8])
def test_cell(state: State, named: bool, number: int, term: int) -> None:
    """Each state with each kind of message: a lower, the same or a higher number and term, the right or a wrong name.

    Tried: with the row of older terms behind those of the states, a tombstone answers DELETED to a deposed leader."""
    arrival = Delivery(named, number, term)
    assert decide(arrival, ABSENT if state is State.ABSENT else at(state)).word is word_of(arrival, state)


@pytest.mark.parametrize("number", [1, 2, 4, 5])
def test_another_number_never_reaches_raft(number: int) -> None:
    """A late message to a former replica must not count for the present one, nor the reverse."""
    assert decide(Delivery(True, number, 99), READY).word is not None


def test_what_does_not_exist_is_not_made() -> None:
    assert decide(Delivery(True, 1, 1), ABSENT).word is Word.DOES_NOT_EXIST


def test_a_running_replica_answers_older_terms_itself() -> None:
    assert decide(Delivery(True, 3, 1), READY).word is None
