"""The end of a drill's cleanup: an incomplete cleanup leaves a broken cluster, and a cleanup must not last forever.

Two events end a cleanup early. `rk up` has ended, so nothing is left that could be restored. Or Ctrl-C or SIGTERM comes
a second time while the drill cleans up.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Final

from cli.common.errors import CliError, ExitStatus, UnreachableError
from cli.up.control import ControlRequest, ask

#: Interval between two checks whether `rk up` still runs.
_PAUSE_S: Final = 0.5


def has_ended(data_dir: Path) -> bool:
    """Return True if no `rk up` runs in the directory. An `rk up` that does not answer in time counts as running."""
    try:
        ask(data_dir, ControlRequest("list"))
    except UnreachableError as error:
        cause = error.__cause__
        return cause is None or isinstance(cause, FileNotFoundError | ConnectionRefusedError)
    except CliError:
        return False
    return False


class ClusterWatch:
    """A thread that calls `ended` once when `rk up` has ended. Use as a context."""

    def __init__(self, data_dir: Path, ended: Callable[[], object]) -> None:
        self.is_gone = False
        self._data_dir = data_dir
        self._ended = ended
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch of rk up", daemon=True)

    def __enter__(self) -> ClusterWatch:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self.is_gone and not self._stopped.wait(_PAUSE_S):
            self._look()

    def _look(self) -> None:
        if has_ended(self._data_dir):
            self.is_gone = True
            self._ended()


def _ends() -> tuple[signal.Signals, ...]:
    """Return the signals that ask a drill to end. Under nohup the end of the terminal does not."""
    is_kept = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM) if is_kept else (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def _handled(numbers: Iterable[signal.Signals], handle: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Handle signals in the block. Afterwards they have their former handlers again."""
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Handle SIGTERM, and the end of the terminal, like Ctrl-C: the drill restores everything that it has broken."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            # The kernel and the shell each send one for the same end. The second one must not end the cleanup.
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    with _handled([one for one in _ends() if one != signal.SIGINT], interrupt):
        yield


@contextlib.contextmanager
def deferred_signals(say: Callable[[str], object], leave: Callable[[int], object] = os._exit) -> Iterator[None]:
    """Defer Ctrl-C, SIGTERM and SIGHUP. A second one ends the process at once, because the drill's threads may still
    wait for the store."""
    count = 0

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        if count == 1:
            say("still restoring the cluster; interrupt once more to leave it as it is")
        else:
            say("interrupted again: `rk status` shows what is not restored; drills' rows and znodes may be left")
            leave(ExitStatus.INTERRUPTED)

    with _handled(_ends(), handle):
        yield
