"""Logging to stderr: one line per event, time, level and text; tracebacks follow their line."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any

from twisted.logger import ILogObserver, LogEvent, LogLevel, formatEvent
from zope.interface import implementer


@implementer(ILogObserver)
class StderrLog:
    """A Twisted log observer. Events below `level` are dropped."""

    def __init__(self, level: Any = LogLevel.info) -> None:
        self._level = level

    def __call__(self, event: LogEvent) -> None:
        """Write one event."""
        level = event.get("log_level", LogLevel.info)
        if level < self._level:
            return
        if event.get("log_namespace", "").startswith("log_legacy") or "log_legacy" in event:
            return
        when = datetime.fromtimestamp(event.get("log_time", 0), UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
        text = " ".join(formatEvent(event).split())
        source = event.get("log_namespace", "")
        line = f"{when}Z {level.name:<5} {source}: {text}\n"
        failure = event.get("log_failure")
        if failure is not None:
            line += failure.getTraceback()
        sys.stderr.write(line)
        sys.stderr.flush()
