"""The checker accepts possible histories of a register, rejects impossible ones, and agrees with a search through all
orders."""

from __future__ import annotations

from itertools import permutations

import pytest

from simulation.checks import linearizable
from simulation.checks.linearizable import Access, KeyOperation, TooHard, objection
from simulation.engine.chance import SeededRandom

A, B, C = b"a", b"b", b"c"


def wrote(value: bytes | None, invoked: int, answered: int | None) -> KeyOperation:
    return KeyOperation("writer", Access.WRITE, invoked, answered, value)


def read(value: bytes | None, invoked: int, answered: int | None) -> KeyOperation:
    return KeyOperation("reader", Access.READ, invoked, answered, value)


def cas(
    expected: bytes | None, value: bytes | None, invoked: int, answered: int | None, ok: bool = True
) -> KeyOperation:
    return KeyOperation("cas", Access.CAS, invoked, answered, value, expected, ok)


SOUND = {
    "nothing": [],
    "one after the other": [wrote(A, 1, 2), read(A, 3, 4), wrote(B, 5, 6), read(B, 7, 8)],
    "no row before the first write": [read(None, 1, 2), wrote(A, 3, 4), read(A, 5, 6)],
    "a deleted row": [wrote(A, 1, 2), wrote(None, 3, 4), read(None, 5, 6)],
    "a read beside a write sees the old value": [wrote(A, 1, 2), wrote(B, 3, 6), read(A, 4, 5)],
    "a read beside a write sees the new value": [wrote(A, 1, 2), wrote(B, 3, 6), read(B, 4, 5)],
    "two reads beside a write see old, then new": [wrote(A, 1, 2), wrote(B, 3, 9), read(A, 4, 5), read(B, 6, 7)],
    "a write without an answer happened": [wrote(A, 1, None), read(A, 5, 6)],
    "a write without an answer never happened": [wrote(A, 1, None), read(None, 5, 6), read(None, 7, 8)],
    "a write without an answer happened late": [wrote(A, 1, None), read(None, 5, 6), read(A, 7, 8)],
    "a read without an answer": [wrote(A, 1, 2), read(C, 3, None), read(A, 4, 5)],
    "of two compare-and-sets one succeeds": [cas(None, A, 1, 4), cas(None, B, 2, 3, ok=False), read(A, 5, 6)],
    "a compare-and-set without an answer": [wrote(A, 1, 2), cas(A, B, 3, None), read(B, 4, 5), cas(B, A, 6, 7)],
    "a refused compare-and-set beside a write": [wrote(A, 1, 2), wrote(B, 3, 6), cas(A, C, 4, 5, ok=False)],
    "touching times are concurrent": [wrote(A, 1, 2), wrote(B, 2, 3), read(A, 3, 4)],
}

UNSOUND = {
    "a stale read": [wrote(A, 1, 2), wrote(B, 3, 4), read(A, 5, 6)],
    "a lost write": [wrote(A, 1, 2), read(None, 3, 4)],
    "a value that nobody wrote": [wrote(A, 1, 2), read(B, 3, 4)],
    "a value read before it was written": [read(A, 1, 2), wrote(A, 3, 4)],
    "reads that go back": [wrote(A, 1, 2), wrote(B, 3, 9), read(B, 4, 5), read(A, 6, 7)],
    "a write without an answer is undone": [wrote(A, 1, None), read(A, 5, 6), read(None, 7, 8)],
    "a write happened twice": [wrote(A, 1, 2), wrote(B, 3, 4), read(B, 5, 6), read(A, 7, 8)],
    "two compare-and-sets from one value succeed": [cas(None, A, 1, 4), cas(None, B, 2, 3)],
    "a compare-and-set succeeds against the value": [wrote(A, 1, 2), cas(B, C, 3, 4)],
    "a compare-and-set is refused although it agrees": [wrote(A, 1, 2), cas(A, B, 3, 4, ok=False)],
    "a compare-and-set succeeds and is not seen": [wrote(A, 1, 2), cas(A, B, 3, 4), read(A, 5, 6)],
    "a late copy undoes a later write": [wrote(A, 1, 2), wrote(None, 3, 4), read(A, 5, 6)],
}


@pytest.mark.parametrize("name", SOUND)
def test_what_a_register_can_do(name: str) -> None:
    assert objection(SOUND[name]) == ""


@pytest.mark.parametrize("name", UNSOUND)
def test_what_a_register_cannot_do(name: str) -> None:
    assert "not linearizable" in objection(UNSOUND[name])


def test_the_first_value_may_be_given() -> None:
    assert objection([read(A, 1, 2)], first=A) == ""
    assert objection([read(None, 1, 2)], first=A) != ""


def test_the_objection_names_the_operation() -> None:
    said = objection([*SOUND["one after the other"], read(A, 9, 10)])
    assert "4 of 5" in said
    assert "[9, 10] reader read b'a'" in said


def brute_force(operations: list[KeyOperation]) -> bool:
    """Try every order of every choice of open operations."""
    known = [each for each in operations if each.answered is not None]
    maybe = [each for each in operations if each.answered is None and each.access is not Access.READ]
    for mask in range(1 << len(maybe)):
        chosen = known + [each for bit, each in enumerate(maybe) if mask >> bit & 1]
        if any(_is_legal(order) for order in permutations(chosen)):
            return True
    return False


def _is_legal(order: tuple[KeyOperation, ...]) -> bool:
    value: bytes | None = None
    for position, each in enumerate(order):
        if any(later.answered is not None and later.answered < each.invoked for later in order[position + 1 :]):
            return False
        if each.access is Access.READ:
            if each.value != value:
                return False
        elif each.access is Access.WRITE:
            value = each.value
        elif each.answered is None:
            value = each.value if each.expected == value else value
        elif each.succeeded != (each.expected == value):
            return False
        elif each.succeeded:
            value = each.value
    return True


def test_it_agrees_with_a_search_through_all_orders() -> None:
    chance = SeededRandom("histories")
    verdicts = {True: 0, False: 0}
    for _ in range(1500):
        operations = []
        for _ in range(1 + chance.below(5)):
            invoked = chance.below(12)
            answered = None if chance.happens(0.15) else invoked + 1 + chance.below(6)
            values = [None, A, B]
            operations.append(
                KeyOperation(
                    "client",
                    chance.pick(list(Access)),
                    invoked,
                    answered,
                    chance.pick(values),
                    chance.pick(values),
                    chance.happens(0.5),
                )
            )
        expected = brute_force(operations)
        verdicts[expected] += 1
        assert (objection(operations) == "") == expected, "\n".join(map(str, operations))
    assert min(verdicts.values()) > 200


def test_a_long_history_of_a_few_clients_is_decided_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linearizable, "CONFIGURATIONS_MAX", 5000)
    chance = SeededRandom("long")
    operations = []
    value: bytes | None = None
    for moment in range(400):
        start, end = 10 * moment - chance.below(25), 10 * moment + chance.below(25)
        if chance.happens(0.5):
            value = b"%d" % moment
            operations.append(KeyOperation(f"c{moment % 4}", Access.WRITE, start, end + 1, value))
        else:
            operations.append(KeyOperation(f"c{moment % 4}", Access.READ, start, end + 1, value))
    assert objection(operations) == ""


def test_what_cannot_be_decided_is_not_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linearizable, "CONFIGURATIONS_MAX", 50)
    operations = [wrote(b"%d" % n, 0, 100) for n in range(12)]
    with pytest.raises(TooHard):
        objection([*operations, read(b"x", 101, 102)])
