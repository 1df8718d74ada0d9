"""Writing a snapshot while the node works: a forked child has a copy-on-write image of the state.

`gc.freeze` before the fork keeps the garbage collector from writing to, and so copying, every page. The child uses only
the parent's memory. The child closes every inherited descriptor, so that a connection closes when the parent closes it.
It exits without the parent's shutdown code. It also removes the older snapshots that the new one replaces.

The child never outlives its parent: a restarted node needs exclusive use of the directory and may write a snapshot of
the same name. The child ignores the signals that stop the parent, which reach whole process groups; the parent kills
the child.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from collections.abc import Callable
from typing import Final

from coord.env_os import end_with_parent
from coord.errors import StateDamaged
from coord.peers.reactor import TurnReactor
from coord.storage.snapshot import SnapshotMeta, Snapshots
from coord.tree.machine import StateMachine

Written = Callable[[SnapshotMeta, str], None]
Damaged = Callable[[Exception], None]

#: Niceness of the child, so that the node's own work goes first.
NICE: Final = 10
#: The child closes inherited descriptors up to this number.
FD_MAX: Final = 1 << 16
MESSAGE_BYTES_MAX: Final = 4096
#: Exit status of a child that found the state damaged in memory.
STATUS_DAMAGED: Final = 3


class InlineSnapshotJob:
    """A job that writes at once and blocks the node: for tests and the simulation."""

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots
        self.written: Written = _ignore_written
        #: Called if the state in memory is damaged: the node must stop.
        self.damaged: Damaged = _ignore_damage

    def begin(self, meta: SnapshotMeta, machine: StateMachine) -> None:
        """See `SnapshotJob.begin`."""
        error = ""
        try:
            self._snapshots.write(meta, machine.snapshot_chunks())
        except StateDamaged as failure:
            self.damaged(failure)
            return
        except OSError as failure:
            error = failure.strerror or str(failure)
        self.written(meta, error)


class ForkSnapshotJob:
    """A job that writes in a child process, which reports through a pipe."""

    def __init__(self, reactor: TurnReactor, snapshots: Snapshots) -> None:
        self._reactor = reactor
        self._snapshots = snapshots
        self.written: Written = _ignore_written
        #: Called if the state in memory is damaged: the node must stop.
        self.damaged: Damaged = _ignore_damage
        self._child = 0

    def begin(self, meta: SnapshotMeta, machine: StateMachine) -> None:
        """See `SnapshotJob.begin`."""
        assert self._child == 0, "a snapshot is already being written"
        try:
            reading, writing = os.pipe2(os.O_CLOEXEC)
        except OSError as error:
            self.written(meta, f"pipe: {error.strerror}")
            return
        gc.freeze()
        parent = os.getpid()
        try:
            child = os.fork()
        except OSError as error:
            os.close(reading)
            os.close(writing)
            self.written(meta, f"fork: {error.strerror}")
            return
        if child == 0:
            self._write(meta, machine, writing, parent)
        os.close(writing)
        self._child = child
        self._reactor.watch(reading, lambda events: self._ended(reading, meta))  # noqa: ARG005

    def stop(self) -> None:
        """Kill an unfinished child. Its temporary file is not a snapshot."""
        if self._child:
            os.kill(self._child, 9)
            os.waitpid(self._child, 0)
            self._child = 0

    def _write(self, meta: SnapshotMeta, machine: StateMachine, writing: int, parent: int) -> None:
        """Write the snapshot in the child process. Never returns."""
        status = 1
        try:
            # The reactor's signal handlers write to descriptors that this child has closed or reused.
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            end_with_parent(parent)
            os.closerange(3, writing)
            os.closerange(writing + 1, FD_MAX)
            os.nice(NICE)
            self._snapshots.write(meta, machine.snapshot_chunks())
            # Removing a large file takes time, so the child does it. The parent removes the rest.
            with contextlib.suppress(OSError):
                self._snapshots.retain()
            status = 0
        except StateDamaged as error:
            os.write(writing, error.what.encode()[:MESSAGE_BYTES_MAX])
            status = STATUS_DAMAGED
        except BaseException as error:  # reported to the parent, which logs it
            os.write(writing, f"{type(error).__name__}: {error}".encode()[:MESSAGE_BYTES_MAX])
        finally:
            os._exit(status)

    def _ended(self, reading: int, meta: SnapshotMeta) -> None:
        message = os.read(reading, MESSAGE_BYTES_MAX).decode(errors="replace")
        self._reactor.unwatch(reading)
        os.close(reading)
        _, status = os.waitpid(self._child, 0)
        self._child = 0
        code = os.waitstatus_to_exitcode(status)
        if code == STATUS_DAMAGED:
            self.damaged(StateDamaged(message))
            return
        self.written(meta, "" if code == 0 else message or f"the writing process exited with status {code}")


def _ignore_damage(error: Exception) -> None:
    """Do nothing: the default of `damaged`."""


def _ignore_written(meta: SnapshotMeta, error: str) -> None:
    """Do nothing: the default of `written`."""
