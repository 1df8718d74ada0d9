"""Writing and syncing the log, in the caller (`InlineWriter`) or in a separate thread (`ThreadWriter`).

Both keep the order of submission and number the batches: `submit` returns 1, 2, 3…, and `on_persisted(n)` reports that
every batch up to n is durable.

The thread is the default. While it waits for the disk, the node reads requests, answers pings and sends heartbeats, and
the batches that arrive in the meantime share the next sync. But on a fast disk the two thread switches cost more than
the write. So the caller writes itself if the disk is fast, no snapshot is being written, and the node is otherwise
idle: it is the only node, or this turn has handled one event and at most one client waits.

Disk full, or a limit on the size of files: the batch stays queued and is retried every `FULL_RETRY_S`. `on_full(True)`
makes the node reject writes, `on_full(False)` to accept them again. Any other failure is final: after
`on_failed(error)` the node must stop, because the contents of the disk are unknown.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from twisted.logger import Logger

from coord.metrics.spans import Spans
from coord.storage.segments import FULL_ERRORS

log: Final = Logger()

FULL_RETRY_S: Final = 0.5
#: A disk is fast after FAST_IN_A_ROW writes in a row of at most FAST_S each. A write that took n times as long requires
#: n more fast ones, so the thread serves a disk that sometimes stalls.
FAST_S: Final = 0.001
FAST_IN_A_ROW: Final = 16
#: Writes whose times are kept for operators.
TIMES_KEPT: Final = 1024

#: The unit that becomes durable: `WriteBatch` in a store's log, `SlotBatch` in the shared log of a region server.
B = TypeVar("B")
B_contra = TypeVar("B_contra", contravariant=True)


def full_words(error: OSError) -> str:
    """Return a sentence: why the log has no room, and how to make room."""
    cure = "free some space"
    if error.errno == errno.EFBIG:
        cure = "raise the limit of this process on the size of files (ulimit -f, LimitFSIZE=, or prlimit --fsize)"
    return f"cannot write the log: {error.strerror or error}; {cure}"


class SyncedLog(Protocol[B]):
    """The log that a writer writes: `Wal`, or `SharedLog`."""

    def write(self, batches: list[B]) -> None:
        """Make `batches` durable as one record. Raise OSError if the log is unchanged, else SyncFailed."""
        ...

    def prune(self, index: int) -> object:
        """Remove the segments that are no longer needed."""
        ...

    def close(self) -> None:
        """Close the log."""
        ...


class WriterEvents(Protocol):
    """Reports of a writer to its node, always on the node's thread."""

    def on_persisted(self, number: int) -> None:
        """Every batch up to `number` is durable."""
        ...

    def on_full(self, is_full: bool) -> None:
        """The disk has become full, or has free space again."""
        ...

    def on_failed(self, error: Exception) -> None:
        """Handle a failed log: no further batch will be reported as durable."""
        ...


class LogWriter(Protocol[B_contra]):
    """The node's view of its log."""

    def start(self, events: WriterEvents) -> None:
        """Report to `events` from now on. Call this before `submit`."""
        ...

    def submit(self, batch: B_contra) -> int:
        """Queue a batch and return its number."""
        ...

    def flush(self) -> None:
        """Begin to write the queued batches. Called once per turn; may invoke the events before it returns."""
        ...

    def prune(self, index: int) -> None:
        """Remove segments without entries above `index`, when the writer is ready to."""
        ...

    def close(self) -> None:
        """Write the queued batches, then close the log."""
        ...


class InlineWriter(Generic[B]):
    """Writes and syncs inside `flush`: for machines with one core, for tests and the simulation."""

    def __init__(self, log: SyncedLog[B]) -> None:
        self._log = log
        #: Times of all writes, counted.
        self.spans = Spans()
        self._waiting: list[B] = []
        self._submitted = 0
        self._is_full = False
        self._has_failed = False
        self._events: WriterEvents | None = None

    def start(self, events: WriterEvents) -> None:
        """See `LogWriter.start`."""
        assert self._events is None, "writer was started twice"
        self._events = events

    def submit(self, batch: B) -> int:
        """See `LogWriter.submit`."""
        self._waiting.append(batch)
        self._submitted += 1
        return self._submitted

    def flush(self) -> None:
        """See `LogWriter.flush`. After a full disk, every flush tries again."""
        if not self._waiting or self._has_failed:
            return
        events = self._events
        assert events is not None, "writer was not started"
        began = time.monotonic()
        try:
            self._log.write(self._waiting)
        except OSError as error:
            if error.errno not in FULL_ERRORS:
                self._fail(events, error)
            elif not self._is_full:
                self._is_full = True
                log.error("{why}", why=full_words(error))
                events.on_full(True)
            return
        except Exception as error:  # SyncFailed or a violated invariant: the node stops on either
            self._fail(events, error)
            return
        self.spans.add(time.monotonic() - began)
        self._waiting = []
        if self._is_full:
            self._is_full = False
            events.on_full(False)
        events.on_persisted(self._submitted)

    def _fail(self, events: WriterEvents, error: Exception) -> None:
        self._has_failed = True
        events.on_failed(error)

    def prune(self, index: int) -> None:
        """See `LogWriter.prune`."""
        self._log.prune(index)

    def close(self) -> None:
        """See `LogWriter.close`."""
        self.flush()
        self._log.close()


class ThreadWriter(Generic[B]):
    """A thread that writes and syncs, and two eventfds that wake it and the node.

    The node's loop watches `done_fd` and calls `collect` when it is readable. The queue needs no lock: append and
    popleft of a deque are atomic. The side that writes holds the lock `_turn`: the thread, or the caller of `flush`
    if `may_wait()` is true and the disk is fast.
    """

    def __init__(self, log: SyncedLog[B], may_wait: Callable[[], bool] | None = None) -> None:
        self._log = log
        self._may_wait = may_wait
        self._turn = threading.Lock()
        self._fast = FAST_IN_A_ROW
        #: Seconds that each of the last writes took, sync included.
        self.times_s: deque[float] = deque(maxlen=TIMES_KEPT)
        #: Times of all writes, counted.
        self.spans = Spans()
        self._done = 0
        self._has_failed = False
        self._queue: deque[B] = deque()
        self._prune_to = 0
        self._pruned_to = 0
        self._submitted = 0
        self._is_closing = False
        self._is_wakened = True
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC)
        #: Readable when the thread has reports for `collect`.
        self.done_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._reports: deque[tuple[str, int, Exception | None]] = deque()
        self._stop_waiting = threading.Event()
        self._events: WriterEvents | None = None
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)

    def start(self, events: WriterEvents) -> None:
        """See `LogWriter.start`."""
        assert self._events is None, "writer was started twice"
        self._events = events
        self._thread.start()

    def submit(self, batch: B) -> int:
        """See `LogWriter.submit`."""
        self._queue.append(batch)
        self._submitted += 1
        self._is_wakened = False
        return self._submitted

    def flush(self) -> None:
        """See `LogWriter.flush`. Wake the thread, or write here."""
        if self._is_wakened:
            return
        self._is_wakened = True
        if not self._write_here():
            os.eventfd_write(self._wake_fd, 1)

    def _write_here(self) -> bool:
        """Write the queued batches on the caller's thread. Return False if they are left to the writer's thread."""
        if self._may_wait is None or self._fast < FAST_IN_A_ROW or not self._may_wait():
            return False
        if not self._turn.acquire(blocking=False):
            return False
        try:
            if self._has_failed:
                return True
            batches = list(self._queue)
            if not batches:  # the thread has written them with earlier ones
                return True
            try:
                self._write(batches)
            except OSError as error:
                if error.errno in FULL_ERRORS:
                    return False
                self._fail(error)
            except Exception as error:  # as on the thread: report it, and the node stops
                self._fail(error)
            else:
                self._queue.clear()
                self._reports.append(("persisted", self._done, None))
        finally:
            self._turn.release()
        self._deliver()
        return True

    def prune(self, index: int) -> None:
        """See `LogWriter.prune`."""
        self._prune_to = index
        os.eventfd_write(self._wake_fd, 1)

    def collect(self, _events: int = 0) -> None:
        """Pass the thread's reports on to the node. The node's reactor calls this when `done_fd` is readable."""
        try:
            os.eventfd_read(self.done_fd)
        except BlockingIOError:
            return
        self._deliver()

    def _deliver(self) -> None:
        events = self._events
        assert events is not None, "writer was not started"
        persisted = 0
        while self._reports:
            kind, number, error = self._reports.popleft()
            if kind == "persisted":
                persisted = number
            elif kind == "full":
                events.on_full(bool(number))
            elif error is not None:
                events.on_failed(error)
        assert persisted <= self._submitted, f"batch {persisted} is durable, {self._submitted} were submitted"
        if persisted:
            events.on_persisted(persisted)

    def close(self) -> None:
        """See `LogWriter.close`. Wait for the thread. On a full disk the queued batches are dropped."""
        self._is_closing = True
        self._stop_waiting.set()
        os.eventfd_write(self._wake_fd, 1)
        if self._thread.ident is not None:
            self._thread.join()
        self._log.close()
        os.close(self._wake_fd)
        os.close(self.done_fd)

    # --- on the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while True:
                os.eventfd_read(self._wake_fd)
                with self._turn:
                    while self._queue and not self._has_failed:
                        if not self._write_waiting():
                            return
                        self._report("persisted", self._done, None)
                    # Read once: the node's thread may set it at any time.
                    prune_to = self._prune_to
                    if prune_to != self._pruned_to and not self._has_failed:
                        self._pruned_to = prune_to
                        self._log.prune(prune_to)
                if self._is_closing and (self._has_failed or not self._queue):
                    return
        except Exception as error:  # report any error, and the node stops
            self._fail(error)
            os.eventfd_write(self.done_fd, 1)

    def _write(self, batches: list[B]) -> None:
        """Make `batches` durable as one record, and measure the disk. The caller holds `_turn`."""
        began = time.monotonic()
        self._log.write(batches)
        took = time.monotonic() - began
        self.times_s.append(took)
        self.spans.add(took)
        # A slightly slow write must not shorten the penalty of a much slower one before it.
        self._fast = self._fast + 1 if took <= FAST_S else min(self._fast, -int(took / FAST_S))
        self._done += len(batches)

    def _fail(self, error: Exception) -> None:
        self._has_failed = True
        self._reports.append(("failed", 0, error))

    def _write_waiting(self) -> bool:
        """Write the queued batches as one record. Return False if they are dropped: closed while the disk is full."""
        batches = [self._queue.popleft() for _ in range(len(self._queue))]
        was_full = False
        while True:
            try:
                self._write(batches)
            except OSError as error:
                if error.errno not in FULL_ERRORS:
                    raise
                if not was_full:
                    was_full = True
                    log.error("{why}", why=full_words(error))
                    self._report("full", 1, None)
                if self._stop_waiting.wait(FULL_RETRY_S):
                    return False
                continue
            if was_full:
                self._report("full", 0, None)
            return True

    def _report(self, kind: str, number: int, error: Exception | None) -> None:
        self._reports.append((kind, number, error))
        os.eventfd_write(self.done_fd, 1)
