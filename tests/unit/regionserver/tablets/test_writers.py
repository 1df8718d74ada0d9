"""Exactly-once writes: repetitions, late copies, forgotten writers, bounds."""

from __future__ import annotations

import random
from typing import Any, Final

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sortedcontainers import SortedDict

from regionserver.tablets import writers as writers_module
from regionserver.tablets.commands import (
    AHEAD_MS,
    CONDITION_FAILED,
    DONE,
    KEPT_MS,
    SUPERSEDED,
    TOO_OLD,
    KvCommand,
    PutRow,
    WriteOutcome,
)
from regionserver.tablets.writers import Totals, WriterResults

#: The first time, so that nothing is older than the first horizon.
START_MS: Final = 1_000_000_000


class DictStore:
    """The store as a sorted dictionary."""

    def __init__(self) -> None:
        self.rows: SortedDict = SortedDict()

    def get(self, key: bytes) -> bytes | None:
        return self.rows.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        self.rows[key] = value

    def delete(self, key: bytes) -> None:
        del self.rows[key]

    def first(self, prefix: bytes) -> bytes | None:
        found = next(self.rows.irange(prefix), None)
        return found if found is not None and found.startswith(prefix) else None


class Tablet:
    """Writes carried out, with their counts; each entry in a separate commit unless `together`."""

    def __init__(self, **bounds: int) -> None:
        self.store = DictStore()
        self.totals = Totals()
        self._bounds = bounds
        #: As a tablet keeps it from one commit to the next.
        self._next_expiry_ms = 0
        self.index = 0
        self.done: list[tuple[str, int]] = []
        self._round: WriterResults | None = None

    def send(
        self, writer: str, number: int, *, now: int, began: int = -1, below: int = 0, code: int = DONE
    ) -> WriteOutcome:
        """Apply the entry of one copy; return its outcome."""
        self.index += 1
        began = now if began < 0 else began
        command = KvCommand(writer, number, below, START_MS + began, START_MS + now, [PutRow("k", b"v")])
        work = self._round or self._begin()
        outcome = work.check(command, 1, self.index)
        if outcome is None:
            self.done.append((writer, number))
            outcome = WriteOutcome(code, 1, self.index)
            work.keep(command, outcome)
        if self._round is None:
            self._flush(work)
        self.check()
        return outcome

    def _begin(self) -> WriterResults:
        return WriterResults(self.store, self.totals, next_expiry_ms=self._next_expiry_ms, **self._bounds)

    def _flush(self, work: WriterResults) -> None:
        work.flush()
        self._next_expiry_ms = work.next_expiry_ms

    def together(self) -> None:
        """Let entries share a commit from now on, until the next call."""
        self.end_round()
        self._round = self._begin()

    def end_round(self) -> None:
        if self._round is not None:
            self._flush(self._round)
            self._round = None

    def check(self) -> None:
        """Check that counts and order match the records."""
        if self._round is not None:
            return
        records = {
            key[1:]: writers_module._DECODER.decode(value) for key, value in self.store.rows.items() if key[:1] == b"w"
        }
        order = {key[9:]: int.from_bytes(key[1:9], "big") for key in self.store.rows if key[:1] == b"t"}
        assert order == {writer: record.indexed_ms for writer, record in records.items()}
        assert sum(1 for key in self.store.rows if key[:1] == b"t") == len(order)
        assert self.totals.kept == sum(1 + len(record.results) for record in records.values())


def test_a_repetition_gets_the_first_answer_and_changes_nothing() -> None:
    tablet = Tablet()
    first = tablet.send("a", 1, now=10)
    tablet.send("a", 2, now=11)
    assert tablet.send("a", 1, now=900, began=10) == first == WriteOutcome(DONE, 1, 1)
    assert tablet.done == [("a", 1), ("a", 2)]


def test_a_refusal_is_repeated_as_well() -> None:
    """The condition may hold by now, but the copy must not be carried out after the first answer."""
    tablet = Tablet()
    first = tablet.send("a", 1, now=10, code=CONDITION_FAILED)
    assert tablet.send("a", 1, now=20, began=10) == first
    assert first.code == CONDITION_FAILED


def test_a_late_first_copy_of_a_write_that_was_given_up_does_nothing() -> None:
    tablet = Tablet()
    tablet.send("a", 2, now=20, below=2)
    assert tablet.send("a", 1, now=21, began=10).code == SUPERSEDED
    assert tablet.done == [("a", 2)]


def test_numbers_may_come_in_any_order_above_what_is_done() -> None:
    tablet = Tablet()
    assert [tablet.send("a", number, now=1).code for number in (5, 3, 9, 4)] == [DONE] * 4


def test_done_below_forgets_results() -> None:
    tablet = Tablet()
    for number in range(20):
        tablet.send("a", number, now=number)
    tablet.send("a", 20, now=20, below=18)
    assert tablet.totals.kept == 1 + 3


def test_a_copy_older_than_the_kept_results_is_rejected() -> None:
    """At the limit: a result is kept until its time ends; a moment later its copies are rejected."""
    tablet = Tablet()
    first = tablet.send("a", 1, now=0)
    assert tablet.send("a", 1, now=KEPT_MS - 1, began=0) == first
    assert tablet.send("b", 1, now=KEPT_MS - 1, began=0).code == DONE
    assert tablet.send("b", 2, now=KEPT_MS, began=0).code == TOO_OLD
    assert tablet.send("a", 1, now=KEPT_MS, began=0).code == TOO_OLD
    assert tablet.done == [("a", 1), ("b", 1)]


def test_a_write_that_began_ahead_of_the_clock_is_kept_longer() -> None:
    tablet = Tablet()
    first = tablet.send("a", 1, now=0, began=AHEAD_MS)
    assert tablet.send("a", 1, now=AHEAD_MS + KEPT_MS - 1, began=AHEAD_MS) == first
    assert tablet.send("a", 1, now=AHEAD_MS + KEPT_MS, began=AHEAD_MS).code == TOO_OLD


def test_the_clock_never_goes_back() -> None:
    """A new leader's clock may be behind."""
    tablet = Tablet()
    tablet.send("a", 1, now=KEPT_MS)
    assert tablet.send("a", 2, now=0, began=0).code == TOO_OLD
    assert tablet.totals.clock_ms == START_MS + KEPT_MS


def test_quiet_writers_are_forgotten() -> None:
    tablet = Tablet()
    for number in range(100):
        tablet.send(f"w{number}", 1, now=number)
    for number in range(51):
        tablet.send("late", number, now=2 * KEPT_MS, below=number)
    assert [key for key in tablet.store.rows if key[:1] == b"w"] == [b"wlate"]


def test_the_results_of_a_writer_are_bounded() -> None:
    tablet = Tablet(results_max=10)
    for number in range(11):
        tablet.send("a", number, now=number)
    assert tablet.send("a", 0, now=11, began=0).code == SUPERSEDED
    assert tablet.send("a", 1, now=11, began=1) == WriteOutcome(DONE, 1, 2)
    assert tablet.totals.kept == 11


def test_the_results_of_a_tablet_are_bounded() -> None:
    """The least recently active writer is dropped first, and its writes are rejected from then on."""
    tablet = Tablet(kept_max=20)
    for number in range(10):
        tablet.send(f"w{number}", 1, now=number)
    assert tablet.totals.kept == 20
    tablet.send("w0", 2, now=100)
    assert tablet.totals.kept <= 20
    assert tablet.send("w1", 1, now=100, began=1).code == TOO_OLD
    assert tablet.send("w0", 1, now=100, began=0) == WriteOutcome(DONE, 1, 1)
    for number in range(200):
        tablet.send(f"w{number % 30}", 10 + number, now=200 + number)
        assert tablet.totals.kept <= 20


def test_real_bounds_are_what_the_module_says() -> None:
    assert (writers_module.WRITER_RESULTS_MAX, writers_module.KEPT_MAX, KEPT_MS) == (1024, 100_000, 600_000)


# --- any history ------------------------------------------------------------------------------------------------------


class Client:
    """A writer that follows the protocol: numbers and beginnings rise, and all copies of one write are equal."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.writes: list[dict[str, int]] = []
        self.finished: set[int] = set()
        self.answers: dict[int, WriteOutcome] = {}
        #: Numbers below this were given up before a later write was carried out.
        self.given_up = 0

    def begin(self, now: int) -> int:
        number = len(self.writes)
        below = next((one for one in range(number) if one not in self.finished), number)
        began = max([now, *(one["began"] for one in self.writes[-1:])])
        self.writes.append({"began": began, "below": below})
        return number


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write"] * 4 + ["copy"] * 4 + ["begin", "finish", "wait", "long", "back", "round"]),
        st.integers(0, 3),
        st.integers(0, 400),
    ),
    min_size=20,
    max_size=100,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_every_write_is_carried_out_once_whatever_is_repeated(steps: list[tuple[str, int, int]]) -> None:
    """Copies of any write arrive at any time, at leaders with different clocks; the bounds are small."""
    old = writers_module.KEPT_MAX, writers_module.WRITER_RESULTS_MAX
    writers_module.KEPT_MAX, writers_module.WRITER_RESULTS_MAX = 10, 4
    try:
        _run(steps)
    finally:
        writers_module.KEPT_MAX, writers_module.WRITER_RESULTS_MAX = old


def _run(steps: list[tuple[str, int, int]]) -> None:
    tablet, clients, now = Tablet(), [Client(f"c{number}") for number in range(4)], 0
    for kind, which, size in steps:
        client = clients[which]
        if kind in ("begin", "write"):
            # The client's estimate of the tablet's time, from its answers.
            ahead = size * AHEAD_MS // 400 if size % 7 == 0 else 0
            size = client.begin(max(now, tablet.totals.clock_ms - START_MS) + ahead)
        if kind in ("copy", "write") and client.writes:
            number = size % len(client.writes)
            write = client.writes[number]
            if write["began"] > now + AHEAD_MS:
                continue  # the leader rejects it
            done_before = len(tablet.done)
            outcome = tablet.send(client.name, number, now=now, began=write["began"], below=write["below"])
            if len(tablet.done) > done_before:
                assert number >= client.given_up, "a late copy could undo a later write"
                client.given_up = max(client.given_up, write["below"])
            if outcome.code == DONE:
                assert client.answers.setdefault(number, outcome) == outcome, "every copy has the first one's answer"
        elif kind == "finish" and client.writes:
            client.finished.add(size % len(client.writes))
        elif kind == "wait":
            now += size
        elif kind == "long":
            now += KEPT_MS // 2 + size
        elif kind == "back":
            now = max(0, now - KEPT_MS // 3)
        elif kind == "round":
            tablet.end_round() if size % 2 else tablet.together()
    tablet.end_round()
    tablet.check()
    assert len(tablet.done) == len(set(tablet.done)), "a write was carried out twice"


def test_commits_of_any_size_leave_the_same_results() -> None:
    """Replicas group entries as they come."""
    for seed in range(10):
        rng = random.Random(seed)
        sends: list[tuple[str, int, dict[str, Any]]] = []
        now = 0
        for number in range(400):
            now += rng.choice((0, 1, 1000, 60_000))
            below = rng.randint(max(0, number - 20), number)
            sends.append((f"w{rng.randrange(20)}", number - rng.randrange(3) * (number > 30), {"now": now, "below": 0}))
            if rng.random() < 0.2 and below <= sends[-1][1]:
                sends[-1][2]["below"] = below
        images, outcomes = [], []
        for largest in (1, 7, 400):
            tablet, found = Tablet(kept_max=40, results_max=5), []
            grouping = random.Random(seed + largest)
            for writer, number, options in sends:
                if largest > 1 and grouping.random() < 2 / largest:
                    tablet.together()
                found.append(tablet.send(writer, number, **options))
            tablet.end_round()
            tablet.check()
            totals = tablet.totals
            images.append((dict(tablet.store.rows), totals.clock_ms, totals.horizon_ms, totals.kept))
            outcomes.append(found)
        assert images[0] == images[1] == images[2], f"seed {seed}"
        assert outcomes[0] == outcomes[1] == outcomes[2], f"seed {seed}"
