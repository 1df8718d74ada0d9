"""Signals that end a daemon."""

from __future__ import annotations

import subprocess
import sys

import pytest

DAEMON = """
import os, signal, sys
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.logger import globalLogBeginner, textFileLogObserver
from coord.daemon import stop_on_signals

def strike():
    for number in {signals}:
        os.kill(os.getpid(), number)

def linger():
    done = Deferred()
    reactor.callLater(0.05, done.callback, None)
    return done

globalLogBeginner.beginLoggingTo([textFileLogObserver(sys.stderr)], redirectStandardIO=False)
stop_on_signals(reactor)
reactor.addSystemEventTrigger("before", "shutdown", linger)
reactor.callWhenRunning(reactor.callLater, 0, strike)
reactor.callLater(60, os._exit, 3)
reactor.run()
"""


@pytest.mark.parametrize("signals", ["[15]", "[2]", "[15, 15]", "[2, 15]"])
def test_however_often_it_is_told_a_daemon_stops_once_and_without_a_traceback(signals: str) -> None:
    """Found by the torture test: two SIGTERMs in one turn of the reactor."""
    done = subprocess.run(
        [sys.executable, "-c", DAEMON.replace("{signals}", signals)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
