"""The log of a daemon on stderr: one line for each event, for people or as JSON.

    2026-11-24T13:03:33.097Z info  master.service: session connected
    {"time":"2026-11-24T13:03:33.097Z","level":"info","logger":"master.service","message":"session connected",
     "state":"connected"}                                  (in one line)

A JSON line has a field for every value that the text names: region, table, epoch, uuid, cause, peer. A traceback
follows its line in the text form, and is the field `traceback` in JSON.

SIGUSR1 makes a running daemon log everything (debug); SIGUSR2 returns to the level of its option. `rk log-level` sends
them.
"""

from __future__ import annotations

import signal
import sys
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import msgspec
from twisted.logger import ILogObserver, LogEvent, Logger, LogLevel, formatEvent, globalLogBeginner
from zope.interface import implementer

from coord.security.printable import printable

log = Logger()
R = TypeVar("R")

FORMATS: Final = ("text", "json")
LEVELS: Final = ("debug", "info", "warn", "error")
MORE: Final = signal.SIGUSR1
USUAL: Final = signal.SIGUSR2
#: Keys of an event that are not fields of it.
_OWN: Final = "log_"
#: Longest value of a field, in characters.
FIELD_MAX: Final = 2000


@implementer(ILogObserver)
class StderrLog:
    """A Twisted log observer that writes to stderr. Events below `level` are dropped."""

    def __init__(self, level: Any = LogLevel.info, form: str = "text") -> None:
        self._usual = self.level = level
        self._line = _json_line if form == "json" else _text_line

    def __call__(self, event: LogEvent) -> None:
        """Write one event."""
        level = event.get("log_level", LogLevel.info)
        if level < self.level:
            return
        if event.get("log_namespace", "").startswith("log_legacy") or "log_legacy" in event:
            return
        sys.stderr.write(self._line(event, level.name))
        sys.stderr.flush()

    def log_more(self) -> None:
        """Log everything."""
        self.level = LogLevel.debug
        log.info("logging everything until SIGUSR2")

    def log_as_usual(self) -> None:
        """Log from the level of the option on."""
        if self.level is not self._usual:
            log.info("logging level {name} and above again", name=self._usual.name)
        self.level = self._usual


def _when(event: LogEvent) -> str:
    return datetime.fromtimestamp(event.get("log_time", 0), UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _text_line(event: LogEvent, level: str) -> str:
    text = " ".join(formatEvent(event).split())
    line = f"{_when(event)} {level:<5} {event.get('log_namespace', '')}: {text}\n"
    failure = event.get("log_failure")
    return printable(line if failure is None else line + str(failure.getTraceback()))


def _json_line(event: LogEvent, level: str) -> str:
    found: dict[str, object] = {
        "time": _when(event),
        "level": level,
        "logger": event.get("log_namespace", ""),
        "message": printable(" ".join(formatEvent(event).split())),
    }
    found |= {key: _plain(value) for key, value in event.items() if not key.startswith(_OWN) and key not in found}
    failure = event.get("log_failure")
    if failure is not None:
        found["traceback"] = printable(str(failure.getTraceback()))
    return msgspec.json.encode(found).decode() + "\n"


def _plain(value: object) -> object:
    """Return a number or a truth value as it is, everything else as text."""
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if -(1 << 63) <= value < 1 << 64 else str(value)
    return printable(str(value)[:FIELD_MAX])


#: The level and the form that the command line has chosen.
_chosen: dict[str, str] = {"level": "info", "form": "text"}


def choose(*, level: str | None = None, form: str | None = None) -> None:
    """Choose the level or the form of this process's log, before `begin`."""
    if level is not None:
        _chosen["level"] = level
    if form is not None:
        _chosen["form"] = form


def begin(reactor: R) -> R:
    """Begin to log to stderr, and change the level at the signals MORE and USUAL while `reactor` runs. Return it."""
    observer = StderrLog(LogLevel.levelWithName(_chosen["level"]), _chosen["form"])
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False, discardBuffer=True)
    # Before the reactor runs, these signals would end the process.
    loop: Any = reactor
    signal.signal(MORE, lambda *_: loop.callFromThread(observer.log_more))
    signal.signal(USUAL, lambda *_: loop.callFromThread(observer.log_as_usual))
    return reactor
