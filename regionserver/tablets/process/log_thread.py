"""The shared log of a running host: a thread writes the turns, and calls the reactor's thread back.

The log's own rules (order of batches, one record for all waiting batches, full disks) are those of
`coord.storage.writer`. This module knows the owner of each batch, and whether the disk answers in time. Slow writes are
measured in ticks of this process, not by a clock: a process that was stopped must not mistake its own pause for a slow
disk.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from coord.errors import StorageError
from coord.storage.shared.batch import SlotBatch
from coord.storage.shared.items import Change, RecoveredSlot
from coord.storage.shared.log import SharedLog
from coord.storage.writer import ThreadWriter
from regionserver.tablets.disk.files import SlotLog
from regionserver.tablets.process.interfaces import ThreadedReactor


class LogEvents(Protocol):
    """Events of the log, reported on the reactor's thread."""

    def log_failed(self, error: Exception) -> None:
        """The log cannot be written any more: the process must end."""
        ...

    def log_full(self, *, is_full: bool) -> None:
        """The disk has become full, or has room again."""
        ...

    def log_answers(self, *, answers: bool) -> None:
        """A write has exceeded its time limit, or a slow write has ended."""
        ...

    def host_failed(self) -> None:
        """Processing a durable write has raised an exception, which is being handled: a bug of the host."""
        ...


class LogThread:
    """The log's thread, and the callers that wait for it. Call every method on the reactor's thread."""

    def __init__(self, shared: SharedLog, reactor: ThreadedReactor, events: LogEvents, slow_ticks: int) -> None:
        self.shared = shared
        self._reactor: Any = reactor
        self._events = events
        self._slow_ticks = slow_ticks
        self._writer: ThreadWriter[SlotBatch] = ThreadWriter(shared)
        #: (number of the batch, tick at which it was submitted, called when it is durable), oldest first.
        self._waiting: deque[tuple[int, int, Callable[[], None]]] = deque()
        self._ticks = 0
        self._prunes = 0
        self._reader: _Readable | None = None
        self.has_failed = False
        self.answers = True
        #: Number of writes for which the disk did not answer in time.
        self.slow_writes = 0

    def start(self) -> None:
        """Start the thread."""
        self._writer.start(self)
        if hasattr(self._reactor, "watch"):
            self._reactor.watch(self._writer.done_fd, self._collect)
        else:
            self._reader = _Readable(self._writer.done_fd, self._collect)
            self._reactor.addReader(self._reader)

    def submit(self, changes: Sequence[Change], done: Callable[[], None]) -> None:
        """Queue the changes as one batch; `done` is called when they are durable.

        Raise SlotError for a change that does not fit its slot; then nothing is queued.
        """
        number = self._writer.submit(self.shared.batch(changes))
        self._waiting.append((number, self._ticks, done))

    def flush(self) -> None:
        """Let the thread write the queued batches: once per turn."""
        self._writer.flush()

    def prune(self) -> None:
        """Remove the segments that no slot needs any more."""
        self._prunes += 1
        self._writer.prune(self._prunes)

    def tick(self) -> None:
        """Count a tick, and check whether the disk answers."""
        self._ticks += 1
        if self.answers and self._waiting and self._ticks - self._waiting[0][1] >= self._slow_ticks:
            self.answers = False
            self.slow_writes += 1
            self._events.log_answers(answers=False)

    def is_idle(self) -> bool:
        """Return True if everything that was submitted is durable."""
        return not self._waiting

    def unwatch(self) -> None:
        """Report nothing any more. Call this before `close`."""
        if self._reader is not None:
            self._reactor.removeReader(self._reader)
        elif hasattr(self._reactor, "unwatch"):
            self._reactor.unwatch(self._writer.done_fd)

    def close(self) -> None:
        """Write the queued changes and close the log, on any thread. Blocks as long as the disk does."""
        self._writer.close()

    # --- reports of the writer ---

    def _collect(self, _: int = 0) -> None:
        try:
            self._writer.collect()
        except Exception:  # boundary: the reactor would drop the descriptor, and the host would wait forever
            self._events.host_failed()

    def on_persisted(self, number: int) -> None:
        """See `WriterEvents.on_persisted`."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= number:
            waiting.popleft()[2]()
        if not self.answers and (not waiting or self._ticks - waiting[0][1] < self._slow_ticks):
            self.answers = True
            self._events.log_answers(answers=True)

    def on_full(self, is_full: bool) -> None:
        """See `WriterEvents.on_full`."""
        self._events.log_full(is_full=is_full)

    def on_failed(self, error: Exception) -> None:
        """See `WriterEvents.on_failed`."""
        self.has_failed = True
        self._events.log_failed(error)


class _Readable:
    """A descriptor for a reactor that has no `watch`."""

    def __init__(self, fd: int, function: Callable[[], None]) -> None:
        self._fd = fd
        self._function = function

    def fileno(self) -> int:
        return self._fd

    def doRead(self) -> None:
        self._function()

    def connectionLost(self, reason: object) -> None:
        pass

    def logPrefix(self) -> str:
        return "shared log"


#: Interval at which the files' thread checks whether the host has ended, while it waits for the log.
_LOOK_S: Final = 0.2


class RunningSlots:
    """The slots of a log whose thread runs (`files.SlotLog`), for the thread of the files. Changes are passed to the
    reactor's thread, because only that thread may make batches."""

    def __init__(self, thread: LogThread, reactor: ThreadedReactor) -> None:
        self._thread = thread
        self._reactor = reactor
        self._has_ended = False

    def end(self) -> None:
        """Make waiting writes raise: the log accepts no more changes."""
        self._has_ended = True

    def write(self, changes: Sequence[Change]) -> None:
        """See `SlotLog.write`."""
        done = threading.Event()
        refused: list[Exception] = []
        self._reactor.callFromThread(self._submit, changes, done, refused)
        while not done.wait(_LOOK_S):
            if self._has_ended:
                raise StorageError("the shared log takes nothing any more: the server ends")
        if refused:
            raise refused[0]

    def _submit(self, changes: Sequence[Change], done: threading.Event, refused: list[Exception]) -> None:
        if self._has_ended:
            return
        try:
            self._thread.submit(changes, done.set)
        except StorageError as error:
            refused.append(error)
            done.set()
            return
        self._thread.flush()

    def contents(self, slot: int) -> RecoveredSlot | None:
        """See `SlotLog.contents`."""
        return self._thread.shared.contents(slot)


class CurrentSlots:
    """The slots as the files need them: of the log that was just opened, then of the running log."""

    def __init__(self) -> None:
        self.now: SlotLog | None = None

    def write(self, changes: Sequence[Change]) -> None:
        """See `SlotLog.write`."""
        assert self.now is not None, "the log is not open"
        self.now.write(changes)

    def contents(self, slot: int) -> RecoveredSlot | None:
        """See `SlotLog.contents`."""
        assert self.now is not None, "the log is not open"
        return self.now.contents(slot)
