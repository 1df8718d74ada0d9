"""The checks of `tests.torture`: each finds its fault, and accepts valid histories."""

from __future__ import annotations

import pytest

from tests.torture import checks
from tests.torture.clients import Deserter, Owner, Pairs, Register, Sequencer, Worker
from tests.torture.plan import FORGETFUL, OF_LINKS, OF_ONE, WEIGHTS, make_plan

Operation = checks.Operation


def read(began: float, ended: float, version: int, value: bytes) -> Operation:
    """Return an answered read."""
    return (began, ended, version, value, False)


def write(began: float, ended: float, version: int, value: bytes) -> Operation:
    """Return an acknowledged write."""
    return (began, ended, version, value, True)


#: Operations, writes with an unknown result, rejected values; and a word of the expected violation, "" for none.
HISTORIES: list[tuple[list[Operation], dict[bytes, float], list[bytes], str]] = [
    ([write(0, 1, 1, b"a"), read(2, 3, 1, b"a"), write(4, 5, 2, b"b")], {}, [], ""),
    # During a write either value may be read, but not first the new one and then the old one.
    ([write(0, 9, 1, b"a"), read(1, 2, 0, b""), read(3, 4, 1, b"a")], {}, [], ""),
    ([write(0, 9, 1, b"a"), read(1, 2, 1, b"a"), read(3, 4, 0, b"")], {}, [], "after version 1 had been told"),
    ([write(0, 1, 1, b"a"), read(2, 3, 0, b"")], {}, [], "read after version 1"),
    # A lost write: its version is used again.
    ([write(0, 1, 1, b"a"), write(2, 3, 1, b"b")], {}, [], "is b'a' and b'b'"),
    ([write(0, 1, 2, b"a"), write(2, 3, 1, b"b")], {}, [], "written after version 2"),
    # A write that was done twice.
    ([write(0, 1, 1, b"a"), read(2, 3, 2, b"a")], {}, [], "written twice"),
    ([write(0, 1, 1, b"a"), read(2, 3, 2, b"b")], {b"b": 1.5}, [], ""),
    ([write(0, 1, 1, b"a"), read(2, 3, 2, b"b")], {b"b": 3.5}, [], "read before it was written"),
    ([read(2, 3, 1, b"b")], {}, [b"b"], "was refused"),
]


@pytest.mark.parametrize(("history", "maybe", "refused", "found"), HISTORIES)
def test_histories(history: list[Operation], maybe: dict[bytes, float], refused: list[bytes], found: str) -> None:
    """Linearizability of one znode."""
    violations = checks.linearizable(history, maybe, refused)
    assert (found in violations[0]) if found else not violations, violations


def test_register_that_ends_older_than_it_was() -> None:
    """The final state counts like a read."""
    worker = Register([], 1, 1)
    worker.history = [write(0, 1, 1, b"1:1"), write(2, 3, 2, b"1:2")]
    worker.maybe = {}
    worker.refused = []
    assert checks.check_register([worker], (b"1:2", 2)) == []
    assert checks.check_register([worker], (b"1:1", 1))


def sequencer(asked: dict[bytes, str | None]) -> list[Worker]:
    """Return a sequencer with these answers."""
    worker = Sequencer([], 1, 1)
    worker.asked = asked
    return [worker]


def test_sequences() -> None:
    """Acknowledged znodes exist once under their name, in the order of their session."""
    first, second, third = b"1 7 1 ", b"1 7 2 ", b"1 8 3 "
    told = sequencer({first: "/seq/n-0000000001", second: None, third: "/seq/n-0000000003"})
    well = {"n-0000000001": first, "n-0000000003": third}
    assert checks.check_sequences(told, well) == []
    assert checks.check_sequences(told, well | {"n-0000000002": second}) == []
    assert "found as []" in checks.check_sequences(told, {"n-0000000001": first})[0]
    assert "created 2 times" in checks.check_sequences(told, well | {"n-0000000002": first})[0]
    assert "comes behind 2" in checks.check_sequences(told, well | {"n-0000000000": second})[0]
    assert "nobody asked" in checks.check_sequences(told, well | {"n-0000000009": b"1 9 9 "})[0]


def test_pairs() -> None:
    """Both or none, as answered."""
    worker = Pairs([], 1, 1)
    worker.asked = {"done": True, "refused": False, "maybe": None}
    assert checks.check_pairs([worker], {"a-done", "b-done"}) == []
    assert checks.check_pairs([worker], {"a-done", "b-done", "a-maybe", "b-maybe"}) == []
    assert checks.check_pairs([worker], set())
    assert checks.check_pairs([worker], {"a-done", "b-done", "a-maybe"})
    assert checks.check_pairs([worker], {"a-done", "b-done", "a-refused", "b-refused"})


def test_ephemerals() -> None:
    """Of sessions that were closed, and of abandoned ones."""
    owner, deserter = Owner([], 1, 1), Deserter([], 2, 1)
    owner.closed = ["/eph/1-1"]
    deserter.left = ["/eph/left-2-1"]
    assert checks.check_ephemerals([owner, deserter], {"1-2"}) == []
    assert len(checks.check_ephemerals([owner, deserter], {"1-1", "left-2-1"})) == 2


def test_plan_is_its_seed() -> None:
    """The same seed gives the same faults; a lone node never loses acknowledged writes; no faults of links without
    proxies."""
    for seed in range(200):
        plan = make_plan(seed, length_s=20)
        assert plan == make_plan(seed, length_s=20)
        names = {fault.name for fault in plan.faults}
        assert names <= WEIGHTS.keys()
        assert plan.nodes > 1 or names <= set(OF_ONE)
        assert plan.has_proxies or not names & set(OF_LINKS)
        assert plan.has_disks or "full" not in names
        assert all(0 <= fault.node <= plan.nodes and fault.at_s < plan.length_s for fault in plan.faults)
    assert not set(FORGETFUL) & set(OF_ONE)
