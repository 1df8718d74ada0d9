"""The edges of `rk watch --live`: keys from the terminal, and the health of all processes."""

from __future__ import annotations

import contextlib
import os
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from typing import Any, Final

from cli.common.errors import CliError
from cli.common.options import Globals
from cli.diagnose.health import TIMEOUT_S, Gathered, Registered, find

#: Pause between two rounds of questions.
_PAUSE_S: Final = 2.0
#: Rounds after which the store is asked again which masters there are.
_ROUNDS_WITH_ADDRESSES: Final = 30
_KEYS_MAX: Final = 256


@contextlib.contextmanager
def keys(reactor: Any, press: Callable[[str], None]) -> Iterator[None]:
    """Call `press` with the operator's input, without Enter and echo. Do nothing if the input is not a terminal."""
    descriptor = sys.stdin.fileno()
    if not os.isatty(descriptor):
        yield
        return
    before = termios.tcgetattr(descriptor)
    reader = _Keyboard(reactor, descriptor, press)
    tty.setcbreak(descriptor)
    reactor.addReader(reader)
    try:
        yield
    finally:
        reactor.removeReader(reader)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


class _Keyboard:
    """The terminal's input as a reader of Twisted's reactor."""

    def __init__(self, reactor: Any, descriptor: int, press: Callable[[str], None]) -> None:
        self._reactor = reactor
        self._descriptor = descriptor
        self._press = press

    def fileno(self) -> int:
        """Return the descriptor that the reactor watches."""
        return self._descriptor

    def logPrefix(self) -> str:
        """Return the name of this reader in the reactor's log."""
        return "keys"

    def doRead(self) -> None:
        """Read the typed input."""
        try:
            found = os.read(self._descriptor, _KEYS_MAX)
        except OSError:  # the terminal has gone, and SIGHUP follows
            found = b""
        if found:
            self._press(found.decode(errors="ignore"))
        else:
            self._reactor.removeReader(self)

    def connectionLost(self, _reason: object) -> None:
        """Do nothing, because the terminal belongs to the caller."""


class Poll:
    """Asks every process for its health on a separate thread, and passes the answers to the reactor."""

    def __init__(self, given: Globals, reactor: Any, take: Callable[[Gathered], None]) -> None:
        self._given = given
        self._reactor = reactor
        self._take = take
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more. A round that has begun ends by itself."""
        self._is_over.set()

    def _run(self) -> None:
        known: Registered | None = None
        rounds = 0
        while not self._is_over.is_set():
            rounds += 1
            if rounds % _ROUNDS_WITH_ADDRESSES == 0:
                known = None  # another master may have registered
            with contextlib.suppress(CliError):
                found = find(self._given, TIMEOUT_S, known)
                known = addresses_in(found)
                self._reactor.callFromThread(self._take, found)
            self._is_over.wait(_PAUSE_S)


def addresses_in(found: Gathered) -> Registered | None:
    """Return the addresses of a round, so that the next round opens no session for them; None if no master answers."""
    masters, servers = found.findings.masters, found.findings.servers
    if not any(one.answers for one in masters):
        return None
    return Registered([one.address for one in masters], [one.address for one in servers])
