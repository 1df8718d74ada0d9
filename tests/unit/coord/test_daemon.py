"""Signals that end a daemon; lines of its log."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
from twisted.logger import LogLevel
from twisted.python.failure import Failure

from coord.daemon import keep_new_objects
from coord.logs import StderrLog
from coord.security.printable import printable

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


def test_log_lines_hold_no_controls_of_strangers(capsys: pytest.CaptureFixture[str]) -> None:
    """This holds for names, and for the texts of errors in tracebacks."""
    name = "server\x1b[2J\u202e"
    event = {"log_format": "lost {name}", "name": name, "log_level": LogLevel.warn, "log_namespace": "x", "log_time": 0}
    try:
        raise ValueError(name)
    except ValueError:
        StderrLog()({**event, "log_failure": Failure()})  # type: ignore[no-untyped-call]
    said = capsys.readouterr().err
    assert said.splitlines()[0].endswith("lost server\\x1b[2J\\u202e")
    assert "ValueError: server\\x1b[2J" in said
    assert printable(said) == said


# Fails if the objects stay in the youngest generation, which the collector looks at again and again during a load.
def test_objects_of_a_load_are_kept_from_the_collector() -> None:
    loaded = [[number] for number in range(3)]
    keep_new_objects()
    young = {id(one) for generation in (0, 1) for one in gc.get_objects(generation)}
    assert not young.intersection(map(id, loaded))
    assert gc.get_freeze_count() == 0
    assert any(one is loaded for one in gc.get_objects(2))
