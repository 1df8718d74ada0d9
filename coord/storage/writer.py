"""Who runs the log's writes and syncs: the caller (`InlineWriter`) or a thread of its own (`ThreadWriter`).

Both keep the order in which batches were submitted, and tell how far the disk is by number: `submit` returns 1, 2, 3…
and `on_persisted(n)` says that everything up to number n is durable. The thread is the default: while the disk works,
the node goes on reading, answering pings and sending heartbeats, and what arrives meanwhile shares the next sync.
As long as the disk is fast, and the node writes no snapshot there, handing a write to the thread and back costs more
than the write. So the caller does it when it has nothing else to do: a node that is alone has nobody to speak to
meanwhile, and one to which a single thing has happened, and for which one client waits at most, is not likely to miss
anything. A lone client waits two changes of threads less.

Disk full: the batch stays queued and is tried again every `FULL_RETRY_S`; `on_full(True)` tells the node, which stops
taking writes, and `on_full(False)` when there is room again. Any other failure is final: `on_failed(error)`, and the
node must stop, because what the disk holds is unknown.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from coord.storage.records import Batch
from coord.storage.wal import Wal

FULL_RETRY_S: Final = 0.5
#: A disk is fast after so many writes in a row of which each took no longer than this; a slower one asks for as many
#: more as it took times longer, so a disk that stalls now and then is left to the thread.
FAST_S: Final = 0.001
FAST_IN_A_ROW: Final = 16
_FULL_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT)


class WriterEvents(Protocol):
    """What a writer tells its node, always on the node's thread."""

    def on_persisted(self, number: int) -> None:
        """Every batch up to `number` is durable."""
        ...

    def on_full(self, is_full: bool) -> None:
        """The disk has become full, or has room again."""
        ...

    def on_failed(self, error: Exception) -> None:
        """The log cannot go on; no batch will be reported as durable any more."""
        ...


class LogWriter(Protocol):
    """The node's view of its log."""

    def start(self, events: WriterEvents) -> None:
        """Begin; before this nothing may be submitted."""
        ...

    def submit(self, batch: Batch) -> int:
        """Queue a batch; its number."""
        ...

    def flush(self) -> None:
        """Begin to write what was submitted. Called once per turn; may call back before it returns."""
        ...

    def prune(self, index: int) -> None:
        """Some time soon drop segments with nothing above `index`."""
        ...

    def close(self) -> None:
        """Write what was submitted, then close the log."""
        ...


class InlineWriter:
    """Writes and syncs inside `flush`: for machines with one core, for tests and the simulation."""

    def __init__(self, wal: Wal) -> None:
        self._wal = wal
        self._waiting: list[Batch] = []
        self._submitted = 0
        self._is_full = False
        self._has_failed = False
        self._events: WriterEvents | None = None

    def start(self, events: WriterEvents) -> None:
        """See `LogWriter.start`."""
        self._events = events

    def submit(self, batch: Batch) -> int:
        """See `LogWriter.submit`."""
        self._waiting.append(batch)
        self._submitted += 1
        return self._submitted

    def flush(self) -> None:
        """See `LogWriter.flush`. A full disk is tried again at every flush."""
        if not self._waiting or self._has_failed:
            return
        events = self._events
        assert events is not None, "writer was not started"
        try:
            self._wal.write(self._waiting)
        except OSError as error:
            if error.errno not in _FULL_ERRORS:
                self._fail(events, error)
            elif not self._is_full:
                self._is_full = True
                events.on_full(True)
            return
        except Exception as error:  # SyncFailed or a broken invariant: the node stops on either
            self._fail(events, error)
            return
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
        self._wal.prune(index)

    def close(self) -> None:
        """See `LogWriter.close`."""
        self.flush()
        self._wal.close()


class ThreadWriter:
    """One thread that writes and syncs; two eventfds carry the wake-ups.

    The node's loop watches `done_fd` and calls `collect` when it is readable; everything else about the thread is
    private. The queue needs no lock: append and popleft of a deque are atomic. `_turn` is held by whoever writes: the
    thread, or the caller of `flush` where `may_wait` says so and the disk is fast.
    """

    def __init__(self, wal: Wal, may_wait: Callable[[], bool] | None = None) -> None:
        self._wal = wal
        self._may_wait = may_wait
        self._turn = threading.Lock()
        self._fast = FAST_IN_A_ROW
        self._done = 0
        self._has_failed = False
        self._queue: deque[Batch] = deque()
        self._prune_to = 0
        self._pruned_to = 0
        self._submitted = 0
        self._is_closing = False
        self._is_wakened = True
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC)
        #: Readable when the thread has something to tell.
        self.done_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._reports: deque[tuple[str, int, Exception | None]] = deque()
        self._stop_waiting = threading.Event()
        self._events: WriterEvents | None = None
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)

    def start(self, events: WriterEvents) -> None:
        """See `LogWriter.start`."""
        self._events = events
        self._thread.start()

    def submit(self, batch: Batch) -> int:
        """See `LogWriter.submit`."""
        self._queue.append(batch)
        self._submitted += 1
        self._is_wakened = False
        return self._submitted

    def flush(self) -> None:
        """See `LogWriter.flush`: wakes the thread, or does its work."""
        if self._is_wakened:
            return
        self._is_wakened = True
        if not self._write_here():
            os.eventfd_write(self._wake_fd, 1)

    def _write_here(self) -> bool:
        """Write what waits, if the caller should and may; False if it is left to the thread."""
        if self._may_wait is None or self._fast < FAST_IN_A_ROW or not self._may_wait():
            return False
        if not self._turn.acquire(blocking=False):
            return False
        try:
            if self._has_failed:
                return True
            batches = list(self._queue)
            if not batches:  # the thread has taken them with what it was writing
                return True
            try:
                self._write(batches)
            except OSError as error:
                if error.errno in _FULL_ERRORS:
                    return False
                self._fail(error)
            except Exception as error:  # as on the thread: the node hears of it and stops
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

    def collect(self) -> None:
        """Hand the thread's reports to the node; called on the node's thread when `done_fd` is readable."""
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
        if persisted:
            events.on_persisted(persisted)

    def close(self) -> None:
        """See `LogWriter.close`. Waits for the thread, except when the disk is full: then what waits is given up."""
        self._is_closing = True
        self._stop_waiting.set()
        os.eventfd_write(self._wake_fd, 1)
        if self._thread.ident is not None:
            self._thread.join()
        self._wal.close()
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
                    # Read once: the next one may be asked for at any time.
                    prune_to = self._prune_to
                    if prune_to != self._pruned_to and not self._has_failed:
                        self._pruned_to = prune_to
                        self._wal.prune(prune_to)
                if self._is_closing and (self._has_failed or not self._queue):
                    return
        except Exception as error:  # the named boundary: whatever it is, the node hears of it and stops
            self._fail(error)
            os.eventfd_write(self.done_fd, 1)

    def _write(self, batches: list[Batch]) -> None:
        """Make `batches` durable as one record, and learn how fast the disk is. Whoever calls it holds `_turn`."""
        began = time.monotonic()
        self._wal.write(batches)
        took = time.monotonic() - began
        # One that was a little slow does not excuse one that was much slower, and not long ago.
        self._fast = self._fast + 1 if took <= FAST_S else min(self._fast, -int(took / FAST_S))
        self._done += len(batches)

    def _fail(self, error: Exception) -> None:
        self._has_failed = True
        self._reports.append(("failed", 0, error))

    def _write_waiting(self) -> bool:
        """Write all that waits as one record; False when it was given up, closing while the disk is full."""
        batches = [self._queue.popleft() for _ in range(len(self._queue))]
        was_full = False
        while True:
            try:
                self._write(batches)
            except OSError as error:
                if error.errno not in _FULL_ERRORS:
                    raise
                if not was_full:
                    was_full = True
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
