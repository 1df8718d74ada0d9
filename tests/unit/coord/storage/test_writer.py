"""Writers of the log, inline and in a thread: order, group sync, full disk, failed sync."""

from __future__ import annotations

import errno
import select
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from coord.storage.records import WriteBatch
from coord.storage.wal import open_wal
from coord.storage.writer import FAST_IN_A_ROW, FAST_S, InlineWriter, ThreadWriter
from tests.support.disks import MemoryDisk, WriterReports
from tests.support.helpers import PATIENCE_S, eventually


def entry(index: int) -> WriteBatch:
    """Return a batch of one entry."""
    batch = WriteBatch()
    batch.add_entry(1, index, 0, b"data")
    return batch


class Bench:
    """A writer on a disk in memory: `inline`, `thread`, or `idle`, a thread whose caller has nothing else to do."""

    def __init__(self, kind: str) -> None:
        self.disk = MemoryDisk()
        self.told = WriterReports()
        wal, _ = open_wal(self.disk, "wal")
        idle = (lambda: True) if kind == "idle" else None
        self.writer = InlineWriter(wal) if kind == "inline" else ThreadWriter(wal, idle)
        self.writer.start(self.told)
        self.submitted = 0

    def wait(self, is_so: Callable[[WriterReports], object]) -> None:
        """Let the writer work until its reports satisfy `is_so`."""

        def look() -> bool:
            if isinstance(self.writer, ThreadWriter):
                if select.select([self.writer.done_fd], [], [], 0.01)[0]:
                    self.writer.collect()
            else:
                self.writer.flush()
            return bool(is_so(self.told))

        eventually(look)

    def last_index(self) -> int:
        """Return the last index that a restart would find."""
        return open_wal(self.disk.power_cut(), "wal")[1].last_index()


@pytest.fixture(params=["inline", "thread", "idle"])
def bench(request: pytest.FixtureRequest) -> Bench:
    """Yield a bench of each kind."""
    return Bench(request.param)


def test_batches_are_durable_in_order_when_reported(bench: Bench) -> None:
    """Numbers ascend; reported batches survive a power cut."""
    for index in range(1, 6):
        assert bench.writer.submit(entry(index)) == index
    bench.writer.flush()
    bench.wait(lambda told: told.persisted == 5)
    assert bench.last_index() == 5
    bench.writer.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_full_disk_is_reported_and_got_over(bench: Bench, code: int) -> None:
    """The batch waits; nothing is reported durable meanwhile. A limit on the size of files is a full disk, too."""
    bench.disk.failures["write"] = code
    bench.writer.submit(entry(1))
    bench.writer.flush()
    bench.wait(lambda told: told.full == [True])
    bench.writer.submit(entry(2))
    bench.writer.flush()
    assert bench.told.persisted == 0
    bench.disk.failures.clear()
    bench.wait(lambda told: told.persisted == 2)
    assert bench.told.full == [True, False]
    assert bench.last_index() == 2
    bench.writer.close()


def test_full_disk_does_not_hold_up_the_end(bench: Bench) -> None:
    """close() returns although the disk stays full."""
    bench.disk.failures["write"] = errno.ENOSPC
    bench.writer.submit(entry(1))
    bench.writer.flush()
    bench.wait(lambda told: told.full == [True])
    bench.writer.close()


@pytest.mark.parametrize("call", ["sync", "write"])
def test_failure_is_final(bench: Bench, call: str) -> None:
    """EIO: the node gets one report, and no later batch is reported durable."""
    bench.disk.failures[call] = errno.EIO
    bench.writer.submit(entry(1))
    bench.writer.flush()
    bench.wait(lambda told: told.failed)
    bench.disk.failures.clear()
    bench.writer.submit(entry(2))
    bench.writer.flush()
    assert bench.told.persisted == 0


def test_what_waits_during_a_sync_shares_the_next() -> None:
    """Group sync: one slow sync, then one for all batches that arrived meanwhile."""
    bench = Bench("thread")
    began, go_on = threading.Event(), threading.Event()

    def slow(name: str) -> None:
        if name == "sync":
            began.set()
            go_on.wait(PATIENCE_S)

    before = bench.disk.syncs
    bench.disk.on_call = slow
    bench.writer.submit(entry(1))
    bench.writer.flush()
    assert began.wait(PATIENCE_S)
    for index in range(2, 50):
        bench.writer.submit(entry(index))
        bench.writer.flush()
    go_on.set()
    bench.wait(lambda told: told.persisted == 49)
    assert bench.disk.syncs - before == 2
    bench.writer.close()


def test_pruning_happens_in_the_thread() -> None:
    """Old segments are removed some time after the request."""
    bench = Bench("thread")
    bench.writer._log._segment_bytes = 1
    for index in range(1, 6):
        bench.submitted = bench.writer.submit(entry(index))
        bench.writer.flush()
        bench.wait(lambda told: told.persisted == bench.submitted)
    bench.writer.prune(3)
    eventually(lambda: bench.writer._log.segment_count() <= 3, what="pruning")
    bench.writer.close()


def test_caller_writes_when_it_is_idle() -> None:
    """On a fast disk the write is durable and reported when flush returns; on a busy machine the disk may look slow."""
    bench = Bench("idle")
    at_once = 0
    for index in range(1, 1000):
        bench.writer.submit(entry(index))
        bench.writer.flush()
        at_once += bench.told.persisted == index
        if at_once == 3:
            break
        bench.wait(lambda told, index=index: told.persisted == index)
    assert at_once == 3
    bench.writer.close()


def test_slow_disk_is_left_to_the_thread() -> None:
    """After a slow write the caller waits for no write until the disk has been fast for a while; the order is kept."""
    bench = Bench("idle")
    began, go_on = threading.Event(), threading.Event()

    def slow(name: str) -> None:
        if name == "sync":
            began.set()
            go_on.wait(2 * FAST_S)

    bench.disk.on_call = slow
    bench.writer.submit(entry(1))
    bench.writer.flush()
    assert bench.told.persisted == 1
    began.clear()
    bench.disk.on_call = lambda name: (began.set(), go_on.wait(PATIENCE_S)) if name == "sync" else None
    bench.writer.submit(entry(2))
    bench.writer.flush()
    assert began.wait(PATIENCE_S)
    assert bench.told.persisted == 1
    bench.writer.submit(entry(3))
    bench.writer.flush()
    go_on.set()
    bench.wait(lambda told: told.persisted == 3)
    assert bench.last_index() == 3
    for index in range(4, 4 + 10 * FAST_IN_A_ROW):
        bench.writer.submit(entry(index))
        bench.writer.flush()
        bench.wait(lambda told, index=index: told.persisted == index)
    bench.writer.close()


def test_slower_write_is_remembered_for_longer() -> None:
    """After a write of a hundred times the limit, a hundred fast ones do not suffice."""
    bench = Bench("idle")
    bench.disk.on_call = lambda name: threading.Event().wait(100 * FAST_S) if name == "sync" else None
    bench.writer.submit(entry(1))
    bench.writer.flush()
    assert bench.told.persisted == 1, "the caller's"
    bench.disk.on_call = lambda name: None
    for index in range(2, 101):
        bench.writer.submit(entry(index))
        bench.writer.flush()
        assert bench.told.persisted < index, "the thread's, which tells only when it is asked"
        bench.wait(lambda told, index=index: told.persisted == index)
    bench.writer.close()


def test_a_caller_whose_batch_the_thread_has_taken_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between submit and flush the thread may write the batch: the caller would write an empty record."""
    monkeypatch.setattr("coord.storage.writer.FAST_S", 60.0)
    bench = Bench("idle")
    writer = bench.writer
    assert isinstance(writer, ThreadWriter)
    for index in range(1, FAST_IN_A_ROW + 1):
        writer.submit(entry(index))
        writer.flush()
        bench.wait(lambda told, index=index: told.persisted == index)
    last = FAST_IN_A_ROW + 2
    began, go_on = threading.Event(), threading.Event()

    def slow(name: str) -> None:
        if name == "sync" and threading.current_thread() is not threading.main_thread():
            began.set()
            go_on.wait(PATIENCE_S)

    bench.disk.on_call = slow
    monkeypatch.setattr(writer, "_may_wait", lambda: False)
    writer.submit(entry(last - 1))
    writer.flush()
    assert began.wait(PATIENCE_S)
    writer.submit(entry(last))
    go_on.set()
    bench.wait(lambda told: told.persisted == last)
    monkeypatch.setattr(writer, "_may_wait", lambda: True)
    syncs = bench.disk.syncs
    writer.flush()
    assert bench.disk.syncs == syncs
    assert bench.last_index() == last
    writer.close()


def test_a_little_slow_write_does_not_make_a_much_slower_one_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write of a hundred times the limit, then one of three times: a hundred fast writes are still missing."""
    bench = Bench("idle")
    writer = bench.writer
    assert isinstance(writer, ThreadWriter)
    now_s = [0.0]
    takes_s = [100 * FAST_S]
    bench.disk.on_call = lambda name: now_s.append(now_s[-1] + takes_s[-1]) if name == "sync" else None
    monkeypatch.setattr("coord.storage.writer.time", SimpleNamespace(monotonic=lambda: now_s[-1]))
    for index in range(1, 101):
        takes_s.append({1: 100 * FAST_S, 2: 3 * FAST_S}.get(index, 0.0))
        writer.submit(entry(index))
        writer.flush()
        assert index == 1 or bench.told.persisted < index, "the thread's, which tells only when it is asked"
        bench.wait(lambda told, index=index: told.persisted == index)
    writer.close()
