"""Logs of `rk up` are bounded; a level reaches the daemon that is meant, and no other process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.common.local import Shape, design, write_cluster
from cli.main import run
from cli.up.logs import LOGS_KEPT, bound
from tests.support.helpers import eventually


def test_a_log_of_that_size_is_put_aside_and_the_daemon_appends_at_the_beginning(tmp_path: Path) -> None:
    log = tmp_path / "server-1.log"
    with log.open("ab", buffering=0) as daemon:
        for number in range(LOGS_KEPT + 2):
            daemon.write(b"%d" % number * 9)
            bound([log, tmp_path / "missing.log"], most=10)
            assert log.stat().st_size == 9, "below the bound"
            daemon.write(b"!")
            bound([log], most=10)
            assert log.stat().st_size == 0
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path != log}
    assert kept == {f"server-1.log.{n}": b"%d" % (5 - n) * 9 + b"!" for n in range(1, LOGS_KEPT + 1)}


def test_a_log_that_cannot_be_copied_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"x" * 10)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    bound([log], most=10)
    assert log.read_bytes() == b"x" * 10
    assert list(tmp_path.iterdir()) == [log]


@pytest.fixture
def process() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Yield a process that prints the signals it gets, and the folder that its command line names."""
    script = (
        "import signal, sys, time\n"
        "for s in (signal.SIGUSR1, signal.SIGUSR2): signal.signal(s, lambda n, f: print(n, flush=True))\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    words = [sys.executable, "-c", script, "--data-dir", "/nowhere/rk/server-1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as found:
        assert found.stdout is not None
        assert found.stdout.readline() == "ready\n"
        yield found, Path("/nowhere/rk")
        found.kill()


def test_level_is_sent_to_the_process_of_the_daemon_alone(
    process: tuple[subprocess.Popen[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running, _ = process
    local = design(Shape(3, 2, 2, 1, 31000, None, "/regionkeeper", "greedy"), tmp_path)
    first, second = local.servers
    first.pid, first.data_dir = running.pid, "/nowhere/rk/server-1"
    second.pid = os.getpid()  # a former pid that another process has now
    write_cluster(local, tmp_path)
    where = ("--data-dir", str(tmp_path))
    assert run(["log-level", "server-1", "debug", *where]) == 0
    assert running.stdout is not None
    assert eventually(running.stdout.readline, what="the signal") == f"{signal.SIGUSR1.value}\n"
    assert run(["log-level", "all", "usual", *where]) == 0
    assert running.stdout.readline() == f"{signal.SIGUSR2.value}\n"
    assert run(["log-level", "server-2", "debug", *where]) != 0
    assert "server-2 does not run" in capsys.readouterr().err
    assert run(["log-level", "server-9", "debug", *where]) == 4
    assert "store-1, store-2, store-3, master-1" in capsys.readouterr().err
