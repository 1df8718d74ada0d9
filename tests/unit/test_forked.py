"""Processes of `rk` that are forks (tests/support/forked.py)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coord.compiled import PURE_VARIABLE, is_switched_on
from tests.support import forked
from tests.support.helpers import PATIENCE_S, finished, free_ports, rk

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Allow forks, at the latest for this test."""
    monkeypatch.delenv("RK_EXEC", raising=False)
    was_allowed = forked.allow.cache_info().currsize > 0
    forked.allow()
    yield
    if not was_allowed:
        forked.allow.cache_clear()


def test_what_is_preloaded_may_be_forked() -> None:
    """A fork would share a reactor's descriptors with all others, and has none of the threads."""
    look = "import sys, threading, tests.support.preloaded; "
    look += "assert 'twisted.internet.reactor' not in sys.modules; assert threading.active_count() == 1"
    done = subprocess.run([sys.executable, "-c", look], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_fork_is_like_a_new_process(allowed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same output, errors and exit status, with the environment of this moment."""
    for words in (["--help"], ["status", "--store", "127.0.0.1:1"], ["nonsense"]):
        assert forked.can_start(rk(*words))
        found = finished(rk(*words), PATIENCE_S)
        monkeypatch.setenv("RK_EXEC", "1")
        expected = finished(rk(*words), PATIENCE_S)
        monkeypatch.delenv("RK_EXEC")
        assert (found.returncode, found.stdout, found.stderr) == (
            expected.returncode, expected.stdout, expected.stderr
        )  # fmt: skip
    monkeypatch.setenv("RK_STORE", "127.0.0.1:2")
    assert "no store answers at 127.0.0.1:2" in finished(rk("status"), PATIENCE_S).stderr


def test_a_fork_is_killed_as_a_group(allowed: None, tmp_path: Path) -> None:
    """The fork leads a session, signals end it, and its status names the signal."""
    log = tmp_path / "log"
    (port,) = free_ports(1)
    words = ["coord", "run", "--id", "1", "--data-dir", str(tmp_path / "node"), "--client-address", f"127.0.0.1:{port}"]
    process = forked.start(rk(*words), log, log)
    assert os.getsid(process.pid) == process.pid
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait(PATIENCE_S) == process.returncode == -signal.SIGKILL


def test_what_needs_a_new_interpreter_gets_one(allowed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs, and variables that take effect before anything is imported."""
    assert not forked.can_start([sys.executable, "-m", "regions.plan"])
    monkeypatch.setenv(PURE_VARIABLE, "" if is_switched_on(PURE_VARIABLE) else "1")
    assert not forked.can_start(rk("status"))
