"""Signals that end a daemon, in a reactor's words."""

from __future__ import annotations

import signal
from typing import Any

from twisted.internet.error import ReactorNotRunning
from twisted.logger import Logger

log = Logger()


def stop_on_signals(reactor: Any) -> None:
    """Have SIGTERM and SIGINT stop `reactor`. One more while it is stopping changes nothing (Twisted's own handler logs
    a traceback then)."""

    def stop() -> None:
        try:
            reactor.stop()
        except ReactorNotRunning:
            log.info("stopping already")

    def heed(*_: object) -> None:
        reactor.callFromThread(stop)

    for number in (signal.SIGTERM, signal.SIGINT):
        reactor.callWhenRunning(signal.signal, number, heed)
