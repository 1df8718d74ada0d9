"""`rk watch --live` asks for the cluster's health without a session for each look."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from cli.common.names import Names
from cli.common.options import Globals
from cli.diagnose.health import Gathered, Registered
from cli.diagnose.live import terminal
from cli.diagnose.live.terminal import Poll
from regions.diagnose.health import Findings, MasterFinding, ServerFinding

KNOWN = Registered(["m:1"], ["s:1"])


def found(*, answers: bool) -> Gathered:
    findings = Findings(masters=[MasterFinding("m", "m:1", answers)], servers=[ServerFinding("s", "s:1", True)])
    return Gathered(findings, Names([], None), {}, {})


def test_addresses_are_read_from_the_store_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first look, after one in which no master has answered, and every so often. A session is two writes of the
    store. Tried: with `find(self._given, TIMEOUT_S)` alone every look has None."""
    asked: list[Registered | None] = []
    answers = [True, True, False, True, True, True, True]
    enough = threading.Event()

    def find(_given: Globals, _timeout_s: float, known: Registered | None) -> Gathered:
        asked.append(known)
        if len(asked) == len(answers):
            enough.set()
        return found(answers=answers[min(len(asked), len(answers)) - 1])

    monkeypatch.setattr(terminal, "find", find)
    monkeypatch.setattr(terminal, "_PAUSE_S", 0.001)
    monkeypatch.setattr(terminal, "_ROUNDS_WITH_ADDRESSES", 6)
    poll = Poll(Globals(), SimpleNamespace(callFromThread=lambda take, gathered: take(gathered)), lambda _: None)
    poll.start()
    assert enough.wait(30)
    poll.stop()
    assert asked[: len(answers)] == [None, KNOWN, KNOWN, None, KNOWN, None, KNOWN]
