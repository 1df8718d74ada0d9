"""Waiting for an answer: the limit of --timeout, and after a second a line about what the command waits for.

    with waiting("the store at db1:2181 to open a session", limit_s(10.0)):
        …

Every wait for store, masters or servers is in such a block. In a terminal a line on standard error counts the seconds
and disappears when the answer has arrived; elsewhere one line is printed for each wait. Standard output has none of
this, so `--json` stays JSON.

A block with a limit ends with UnreachableError when the limit has passed, even if the library below has no limit. A
timer signal does both, so this works only in the main thread; a block in another thread does nothing.

--timeout counts from the first wait of the command, so it is the deadline of all its waits together. Long work
(`limit_each_wait`: loading, backups, waiting for a move) uses --timeout as the limit of each single wait.
"""

from __future__ import annotations

import contextlib
import functools
import math
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

import click
from click.core import ParameterSource

from cli.common.errors import UnreachableError
from coord.errors import shown_s
from coord.security.printable import printable, unquoted

#: Time after which a command prints what it waits for.
FIRST_WORD_S: Final = 1.0
#: Interval of the seconds that a terminal shows.
_TICK_S: Final = 1.0
#: Time after --timeout in which a library with the same limit can report the exact fault.
GRACE_S: Final = 0.3
#: Least value of --timeout.
TIMEOUT_MIN_S: Final = 0.001
_HINT: Final = "`rk health` asks every process itself and says which ones are silent; --timeout SECONDS waits longer."
_CLEAR: Final = "\r\033[K"


class _Awaited:
    """One open block."""

    def __init__(self, what: str | Callable[[], str], limit_s: float, hint: str) -> None:
        self._what = what
        self.limit_s = limit_s
        self.hint = hint
        self.began_s = time.monotonic()

    @property
    def what(self) -> str:
        return self._what if isinstance(self._what, str) else self._what()

    @property
    def end_s(self) -> float:
        return self.began_s + self.limit_s


class _Patience:
    """The waits of one run of `rk`, the innermost last."""

    def __init__(self) -> None:
        #: Time at which the command began to wait, because its own start takes long on a busy machine. None: not yet.
        self._began_s: float | None = None
        #: The limit of --timeout; None: each wait has its own limit.
        self.given_s: float | None = None
        #: True if --timeout is the limit of each single wait, and not of all waits together.
        self.is_of_each = False
        #: True if it stands on the command line, and not in a variable or in the configuration file.
        self.is_typed = False
        self.waits: list[_Awaited] = []
        #: True for commands that show the progress of their waits themselves.
        self.is_silent = False
        self._said: set[str] = set()
        self._is_shown = False

    def left_s(self, given_s: float) -> float:
        """Return the rest of --timeout, counted from the first wait."""
        now_s = time.monotonic()
        if self._began_s is None:
            self._began_s = now_s
        return max(TIMEOUT_MIN_S, self._began_s + given_s - now_s)

    def begin(self, wait: _Awaited) -> None:
        self.waits.append(wait)
        self._arm()

    def end(self, wait: _Awaited) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.waits.remove(wait)
        if self._is_shown and not self.waits:
            self._is_shown = False
            _write(_CLEAR)
        if self.waits:
            self._arm()

    def _arm(self) -> None:
        now_s = time.monotonic()
        waited_s = now_s - self.waits[0].began_s
        word_s = FIRST_WORD_S - waited_s if waited_s < FIRST_WORD_S else _TICK_S
        end_s = min(one.end_s for one in self.waits) - now_s
        signal.signal(signal.SIGALRM, self._ring)
        signal.setitimer(signal.ITIMER_REAL, max(1e-6, min(word_s, end_s)))

    def _ring(self, _signal: int, _frame: FrameType | None) -> None:
        """Print what the command waits for. Raise UnreachableError at the end of the limit."""
        if not self.waits:
            return
        now_s = time.monotonic()
        over = next((one for one in self.waits if now_s >= one.end_s), None)
        if over is not None:
            # Python drops an exception that is raised amid a finalizer or a callback of the garbage collector.
            signal.setitimer(signal.ITIMER_REAL, _TICK_S)
            raise UnreachableError(f"waited {shown_s(over.limit_s)} s in vain for {over.what}", over.hint)
        waited_s = now_s - self.waits[0].began_s
        if waited_s >= FIRST_WORD_S - 1e-3 and not self.is_silent:
            self._say(self.waits[-1], waited_s)
        self._arm()

    def _say(self, wait: _Awaited, waited_s: float) -> None:
        what = wait.what
        if sys.stderr.isatty():
            from rich.cells import cell_len, set_cell_size  # most commands never wait so long

            text = printable(f"waiting for {what}: {waited_s:.0f} s")
            columns = shutil.get_terminal_size().columns - 1
            _write(_CLEAR + (text if cell_len(text) <= columns else set_cell_size(text, columns)))
            self._is_shown = True
        elif what not in self._said:
            self._said.add(what)
            _write(printable(f"rk: waiting for {what}\n"))


_patience = _Patience()


def _write(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        # The texts are quoted already, and the controls of a terminal must pass.
        stream = unquoted(sys.stderr)
        stream.write(text)
        stream.flush()


def start_over() -> None:
    """Forget the limit and the waits of an earlier run in this process."""
    global _patience  # noqa: PLW0603 (one command runs at a time, and has one patience)
    _patience = _Patience()


def say_nothing() -> None:
    """Leave words about waiting to this command, which asks again and again and shows its progress itself.

    --timeout can only shorten the limit of a single question then.
    """
    _patience.is_silent = True


def limit_each_wait() -> None:
    """Make --timeout the limit of each single wait, not of all waits together: for commands that work for long."""
    _patience.is_of_each = True


def limit_s(default_s: float) -> float:
    """Return the rest of --timeout, or the default of the caller."""
    patience = _patience
    if patience.given_s is None:
        return default_s
    if patience.is_silent:
        return min(default_s, patience.given_s)
    if patience.is_of_each:
        return patience.given_s
    return patience.left_s(patience.given_s)


def soon_after_timeout() -> float:
    """Return the limit in seconds of a wait that only --timeout ends; infinity without --timeout."""
    return limit_s(math.inf) + GRACE_S


def is_limited() -> bool:
    """Return True if --timeout was given."""
    return _patience.given_s is not None


@contextlib.contextmanager
def waiting(what: str | Callable[[], str], end_s: float = math.inf, hint: str = _HINT) -> Iterator[None]:
    """Print after a second that the command waits for `what`. Raise UnreachableError after `end_s` seconds.

    By default there is no limit, because most waiting libraries have a limit and a more exact error.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    patience = _patience
    wait = _Awaited(what, end_s, hint)
    patience.begin(wait)
    try:
        yield
    finally:
        patience.end(wait)


def remember_timeout(context: click.Context, parameter: click.Parameter, value: float | None) -> None:
    """Take the value of --timeout. The command line has precedence over a variable of an inner subcommand."""
    if value is None:
        return
    assert parameter.name is not None
    is_typed = context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    if is_typed or not _patience.is_typed:
        _patience.given_s = value
        _patience.is_typed = is_typed


def takes_timeout(default_s: float, *, of_each: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Pass the limit of --timeout to a command as `timeout_s`, or the command's own default. `of_each`: the command
    works long (`limit_each_wait`)."""

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def limited(*args: Any, **kwargs: Any) -> Any:
            if of_each:
                limit_each_wait()
            return command(*args, timeout_s=limit_s(default_s), **kwargs)

        return limited

    return decorated
