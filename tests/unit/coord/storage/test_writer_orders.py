"""The log's thread, and the loop that may write itself, in every order of their lines.

Nodes in the simulation write inline, so only these tests cover the time between the submission of a batch and its
processing by the thread. In each order: all submitted batches are in the log once, in order; no batch is reported
durable that a power cut would lose; no record is written twice or empty; no caller waits forever.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from coord.storage import writer as module
from coord.storage.records import WriteBatch
from coord.storage.wal import open_wal
from coord.storage.writer import ThreadWriter
from tests.support.disks import MemoryDisk
from tests.support.interleave import Interleaving, plans
from tests.support.interpreted import needs_interpreted

#: The orders are switched at lines and opcodes of the log, which a compiled module does not have.
pytestmark = needs_interpreted


class Bench:
    """A writer between a disk in memory and a loop that the test runs."""

    def __init__(self, turns: Interleaving, *, may_wait: Callable[[int], bool]) -> None:
        self.turns = turns
        self.disk = MemoryDisk()
        self.calls = 0
        self.submitted = 0
        self.persisted = 0
        self.full: list[bool] = []
        self.failed: list[Exception] = []
        #: Batches whose write has returned.
        self.written = 0
        # Small, because otherwise nearly all the time would go into zeros written ahead.
        wal, _ = open_wal(self.disk, "wal", segment_bytes=1 << 12)
        write = wal.write

        def counted(batches: list[WriteBatch]) -> None:
            write(batches)
            self.written += len(batches)

        wal.write = counted  # type: ignore[method-assign]
        #: Indexes up to which the log was asked to prune.
        self.pruned: list[int] = []
        wal.prune = self.pruned.append  # type: ignore[assignment, method-assign]

        def may() -> bool:
            self.calls += 1
            return may_wait(self.calls)

        self.writer = ThreadWriter(wal, may)
        self.writer.start(self)

    # Notifications to the node.

    def on_persisted(self, number: int) -> None:
        assert self.persisted <= number <= self.written <= self.submitted
        self.persisted = number

    def on_full(self, is_full: bool) -> None:
        self.full.append(is_full)

    def on_failed(self, error: Exception) -> None:
        self.failed.append(error)

    # Actions of the node.

    def submit(self, count: int = 1) -> None:
        """Submit batches of one entry."""
        for _ in range(count):
            self.submitted += 1
            batch = WriteBatch()
            batch.add_entry(1, self.submitted, 0, b"data")
            assert self.writer.submit(batch) == self.submitted

    def flush(self) -> None:
        self.writer.flush()

    def look(self) -> None:
        """Run the reactor's handler of a readable descriptor."""
        if self.turns.os.is_readable(self.writer.done_fd):
            self.writer.collect()

    def until(self, is_so: Callable[[], bool]) -> None:
        """Run turns of the reactor until the condition holds."""

        def turn() -> bool:
            self.look()
            return is_so()

        self.turns.wait(turn)

    def until_durable(self) -> None:
        """Run turns until everything is durable."""
        self.until(lambda: self.persisted == self.submitted)


def lone(bench: Bench) -> None:
    """Simulate one client that waits for every answer."""
    for _ in range(2):
        bench.submit()
        bench.flush()
        bench.until_durable()
    bench.writer.close()


def bursts(bench: Bench) -> None:
    """Simulate turns that do not wait for the disk."""
    bench.submit()
    bench.flush()
    bench.submit(2)
    bench.flush()
    bench.look()
    bench.submit()
    bench.flush()
    bench.until_durable()
    bench.writer.close()


def unflushed(bench: Bench) -> None:
    """Simulate a turn with a long pause between submit and flush, in which the thread runs for another reason."""
    bench.submit()
    bench.writer.prune(1)
    bench.submit()
    bench.flush()
    bench.until_durable()
    bench.writer.close()


def ended(bench: Bench) -> None:
    """Close the writer before anything is flushed or reported."""
    bench.submit()
    bench.flush()
    bench.submit()
    bench.writer.close()


def filled(bench: Bench) -> None:
    """Simulate a disk that is full for two attempts of either side."""
    attempts = []

    def full_twice(name: str) -> None:
        if name == "write" and len(attempts) < 2:
            attempts.append(name)
            raise OSError(errno.ENOSPC, "no room")

    bench.disk.on_call = full_twice
    bench.submit()
    bench.flush()
    bench.submit()
    bench.flush()
    bench.until_durable()
    assert bench.full in ([True, False], [])
    bench.writer.close()


def pruned(bench: Bench) -> None:
    """Prune for two snapshots in a row; the second one counts."""
    bench.writer.prune(1)
    bench.writer.prune(2)
    bench.until(lambda: bench.pruned[-1:] == [2])
    bench.writer.close()


#: Number of orders with several switches that are tried in each case.
SAMPLE = 60
SCENARIOS = [lone, bursts, unflushed, ended, filled]
#: How the loop decides whether it may write itself, by the number of the question.
HABITS: dict[str, Callable[[int], bool]] = {
    "always": lambda call: True,
    "never": lambda call: False,
    "second": lambda call: call % 2 == 0,
    "first": lambda call: call % 2 == 1,
}


def perform(
    scenario: Callable[[Bench], None],
    habit: str,
    switches: tuple[int, ...],
    patch: pytest.MonkeyPatch,
    step: str = "line",
) -> tuple[Bench, int]:
    """Run once. Return the bench afterwards, and the number of steps."""
    turns = Interleaving(module.__file__, switches, step)
    patch.setattr(module, "os", turns.os)
    patch.setattr(module, "threading", turns.threading)
    patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 0.0))
    benches = []

    def play() -> None:
        bench = Bench(turns, may_wait=HABITS[habit])
        benches.append(bench)
        scenario(bench)

    try:
        turns.run(play)
    finally:
        patch.undo()
    return benches[0], turns.steps


@pytest.mark.parametrize("habit", sorted(HABITS))
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_orders(scenario: Callable[[Bench], None], habit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each single switch between the two, and a sample of several at a time (RK_SWITCHES=2: all)."""
    _, steps = perform(scenario, habit, (), monkeypatch)
    steps += 10
    rng = random.Random(f"{scenario.__name__} {habit}")
    chosen = [tuple(sorted(rng.sample(range(steps), rng.choice([2, 3, 4])))) for _ in range(SAMPLE)]
    for switches in [*plans(steps, int(os.environ.get("RK_SWITCHES", "1"))), *chosen]:
        bench, _ = perform(scenario, habit, switches, monkeypatch)
        where = f"switches {switches}"
        assert not bench.failed, where
        _, recovered = open_wal(bench.disk.power_cut(), "wal")
        assert [entry.index for entry in recovered.entries] == list(range(1, bench.submitted + 1)), where
        assert not recovered.cut, where


def test_a_snapshot_written_while_the_log_is_pruned_for_another_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also within a line: between its two halves the loop may ask for more."""
    _, steps = perform(pruned, "never", (), monkeypatch, "opcode")
    # Switch to the thread, and back at about the middle of that line.
    for there in range(0, steps, 3):
        for back in range(there + 5, there + 60, 5):
            perform(pruned, "never", (there, back), monkeypatch, "opcode")
