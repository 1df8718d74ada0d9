"""Fenced, batched writes of transitions; batched reads."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.python.failure import Failure

from master.assignment.transitions import IN_FLIGHT_MAX, TransitionReader, TransitionWriter, wipe_ops
from master.assignment.write_queue import Outcome
from master.leadership.fence import OPS_MAX, Deposed, Fence, in_batches
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.records.model import Incarnation, RegionRecord, RegionState, TransitionRecord
from regions.records.znodes import Layout, encode
from regions.transitions.states import Cause, IllegalStep
from tests.unit.master.fake_store import FakeStore

LAYOUT = Layout("/rk")
S1 = Incarnation("s1", 1)


class Bench:
    """A writer on a fake store, and its reports."""

    def __init__(self, epoch: int = 4) -> None:
        self.store = FakeStore()
        for path in LAYOUT.parents():
            self.store.put(path)
        self.store.put(LAYOUT.epoch, b"", epoch)
        self.fence = Fence(self.store, LAYOUT, 4)  # type: ignore[arg-type]
        self.done: list[ev.WriteDone | ev.WriteFailed] = []
        self.failures: list[BaseException] = []
        self.turns = 0
        self.writer = TransitionWriter(self.fence, self._written, self._turned, self._failed)
        self.seen: list[ev.TransitionRead] = []
        self.reader = TransitionReader(self.fence, self.seen.extend, self._turned, self._failed)

    def _written(self, outcomes: list[Outcome]) -> None:
        self.done += [event for _, event in outcomes]

    def _turned(self) -> None:
        self.turns += 1

    def _failed(self, failure: Failure) -> None:
        assert failure.value is not None
        self.failures.append(failure.value)

    def offline(
        self,
        name: str,
        before: RegionState | None = None,
        version: int = -1,
        table_check: tuple[str, int] | None = None,
    ) -> fx.WriteOffline:
        record = TransitionRecord(name, "t", 0, RegionState.OFFLINE, None, S1)
        cause = Cause.ASSIGN if before is None else Cause.SERVER_DEATH
        return fx.WriteOffline(record.key, record, before, version, cause, table_check)


def test_every_multi_begins_with_the_epoch() -> None:
    bench = Bench()
    bench.writer.put(bench.offline("r1"))
    bench.writer.flush()
    bench.store.answer()
    [ops] = bench.store.multis
    assert (ops[0].path, ops[0].version) == ("/rk/epoch", 4)
    assert bench.done == [ev.WriteDone("r1-0", 0)]
    assert bench.turns == 1


def test_a_raised_epoch_stops_the_write() -> None:
    """FW-11: nothing is written, and the failure names the epoch."""
    bench = Bench(epoch=5)
    bench.writer.put(bench.offline("r1"))
    bench.writer.flush()
    bench.store.answer()
    assert [type(one) for one in bench.failures] == [Deposed]
    assert LAYOUT.transition("r1", 0) not in bench.store.nodes
    assert bench.done == []


def test_writes_are_batched_and_bounded() -> None:
    """Two small multis are sent at once, full ones while these are in flight."""
    bench = Bench()
    bench.writer.put(bench.offline("a"))
    bench.writer.flush()
    bench.writer.put(bench.offline("b"))
    bench.writer.flush()
    for number in range(OPS_MAX + 10):
        bench.writer.put(bench.offline(f"r{number}"))
    bench.writer.flush()
    assert len(bench.store.waiting) == 3
    assert len(bench.store.waiting) <= IN_FLIGHT_MAX
    bench.store.answer()
    assert [len(ops) - 1 for ops in bench.store.multis] == [1, 1, OPS_MAX, 10]
    assert len(bench.done) == OPS_MAX + 12
    assert bench.writer.is_idle


def test_one_lost_race_does_not_hold_up_the_others() -> None:
    """RT-30: the rejected write is reported, all others are written."""
    bench = Bench()
    taken = {f"r{number}" for number in (3, 4, 40)}
    for name in taken:
        bench.store.put(LAYOUT.transition(name, 0), b"another's")
    for number in range(50):
        bench.writer.put(bench.offline(f"r{number}"))
    bench.writer.flush()
    bench.store.answer()
    failed = {event.key for event in bench.done if isinstance(event, ev.WriteFailed)}
    assert failed == {f"{name}-0" for name in taken}
    assert len(bench.done) == 50
    assert bench.writer.is_idle


def test_the_delete_of_a_closed_region_checks_the_intent() -> None:
    """X3: transition, intent and location in one multi."""
    bench = Bench()
    bench.store.put(LAYOUT.transition("r1", 0), b"", 3)
    bench.store.put(LAYOUT.table("t"), b"", 8)
    bench.store.put(LAYOUT.table_regions("t"))
    bench.store.put(LAYOUT.region("t", "r1"), b"", 5)
    effect = fx.DeleteTransition(
        "r1-0", "r1", 0, RegionState.CLOSED, 3, Cause.DO_NOT_REOPEN, ("t", 7), RegionRecord("t", "r1"), 5
    )
    bench.writer.put(effect)
    bench.writer.flush()
    bench.store.answer()
    assert bench.done == [ev.WriteFailed("r1-0", 7)]
    assert bench.store.nodes[LAYOUT.region("t", "r1")][1] == 5
    effect.table_check = ("t", 8)
    bench.writer.put(effect)
    bench.writer.flush()
    bench.store.answer()
    assert LAYOUT.transition("r1", 0) not in bench.store.nodes
    assert bench.store.nodes[LAYOUT.region("t", "r1")][1] == 6


def test_a_table_is_checked_once_for_all_its_regions() -> None:
    """A region is assigned only if its table's record is still the one used for the decision."""
    bench = Bench()
    bench.store.put(LAYOUT.table("t"), b"", 8)
    bench.store.put(LAYOUT.table("u"), b"", 2)
    for number in range(5):
        bench.writer.put(bench.offline(f"r{number}", table_check=("t" if number % 2 else "u", 8 if number % 2 else 2)))
    bench.writer.flush()
    bench.store.answer()
    [ops] = bench.store.multis
    assert [(op.path, op.version) for op in ops[1:3]] == [(LAYOUT.table("u"), 2), (LAYOUT.table("t"), 8)]
    assert len(ops) == 1 + 2 + 5
    assert [event for event in bench.done if isinstance(event, ev.WriteDone)] == bench.done


def test_regions_of_a_table_that_has_changed_are_refused_together() -> None:
    """All writes that named the older record are reported with its version; the others are made."""
    bench = Bench()
    bench.store.put(LAYOUT.table("t"), b"", 9)
    bench.store.put(LAYOUT.table("u"), b"", 2)
    for number in range(10):
        bench.writer.put(bench.offline(f"r{number}", table_check=("t" if number % 2 else "u", 8 if number % 2 else 2)))
    bench.writer.flush()
    bench.store.answer()
    failed = [event for event in bench.done if isinstance(event, ev.WriteFailed)]
    assert failed == [ev.WriteFailed(f"r{number}-0", 8) for number in range(1, 10, 2)]
    for number in range(10):
        assert (LAYOUT.transition(f"r{number}", 0) in bench.store.nodes) == (number % 2 == 0)
    assert bench.writer.is_idle


@pytest.mark.parametrize("regions", [OPS_MAX - 1, OPS_MAX])
def test_checks_count_towards_the_limit_of_a_multi(regions: int) -> None:
    bench = Bench()
    bench.store.put(LAYOUT.table("t"), b"", 8)
    for number in range(regions):
        bench.writer.put(bench.offline(f"r{number}", table_check=("t", 8)))
    bench.writer.flush()
    bench.store.answer()
    assert [len(ops) - 1 for ops in bench.store.multis] == ([OPS_MAX] if regions < OPS_MAX else [OPS_MAX, 2])
    assert len(bench.done) == regions


def test_an_illegal_step_never_reaches_the_store() -> None:
    bench = Bench()
    with pytest.raises(IllegalStep):
        bench.writer.put(fx.DeleteTransition("r1-0", "r1", 0, RegionState.OPENING, 1, Cause.DONE))


def test_a_closed_writer_reports_nothing() -> None:
    bench = Bench()
    bench.writer.put(bench.offline("r1"))
    bench.writer.flush()
    bench.writer.close()
    bench.store.answer()
    assert (bench.done, bench.turns) == ([], 0)


def test_an_exception_in_the_receiver_of_a_reply_is_a_failure() -> None:
    """Fails without `addErrback(self._failed)`: it was only logged, and the master went on."""
    bench = Bench()

    def broken(_: object) -> None:
        raise AssertionError("an invariant is broken")

    writer = TransitionWriter(bench.fence, broken, bench._turned, bench._failed)
    reader = TransitionReader(bench.fence, broken, bench._turned, bench._failed)
    writer.put(bench.offline("r1"))
    writer.flush()
    reader.changed.put("r1", 0)
    reader.flush()
    bench.store.answer()
    assert [str(one) for one in bench.failures] == ["an invariant is broken"] * 2


def test_reads_are_batched() -> None:
    """Several changes of one znode cause one read; a missing znode is reported as deleted; a corrupt one is skipped."""
    bench = Bench()
    record = TransitionRecord("r1", "t", 0, RegionState.OPENED, None, S1)
    bench.store.put(LAYOUT.transition("r1", 0), encode(record), 2)
    bench.store.put(LAYOUT.transition("r3", 0), b"{")
    for name in ("r1", "r2", "r1", "r3"):
        bench.reader.changed.put(name, 0)
    bench.reader.flush()
    bench.store.answer()
    assert bench.seen == [ev.TransitionRead("r1-0", record, 2), ev.TransitionRead("r2-0", None, -1)]
    assert bench.reader.reads == 1


def test_a_delayed_read_is_dropped_after_an_earlier_one() -> None:
    """An OPENING region is read after a while or with the next change, not twice."""
    bench = Bench()
    assert bench.reader.changed.put_later("r1", 0, 100)
    assert not bench.reader.changed.put_later("r1", 0, 200)
    bench.reader.changed.put_later("r2", 0, 120)
    bench.reader.changed.due(99)
    bench.reader.flush()
    assert not bench.store.waiting
    bench.reader.changed.put("r1", 0)
    bench.reader.changed.due(110)
    bench.reader.flush()
    bench.store.answer()
    bench.reader.changed.due(120)
    bench.reader.flush()
    bench.store.answer()
    assert [event.region_id for event in bench.seen] == ["r1", "r2"]


def test_batches_respect_count_and_bytes() -> None:
    record = TransitionRecord("r", "t", 0, RegionState.OFFLINE)
    ops: list[Any] = wipe_ops(LAYOUT, [(record, 0)] * (OPS_MAX + 1))
    assert [len(batch) for batch in in_batches(ops)] == [OPS_MAX, 1]
    big = [type(ops[0])("/x" * 100_000, 0)] * 7
    assert [len(batch) for batch in in_batches(big)] == [2, 2, 2, 1]
