"""The child that writes a snapshot: its parent, and its behavior when the parent ends."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from coord.server.snapshots.job import ForkSnapshotJob
from coord.storage.snapshot import SnapshotMeta, Snapshots
from coord.tree.machine import StateMachine
from tests.support.disks import MemoryDisk
from tests.support.helpers import eventually

#: A node's process, as the job uses it: it begins an endless snapshot, and prints the pid of the child.
PARENT = """
    import signal, sys, time
    from pathlib import Path
    from coord.env_os import OsDisk
    from coord.server.snapshots.job import ForkSnapshotJob
    from coord.storage.snapshot import SnapshotMeta, Snapshots

    class Reactor:
        def watch(self, fd, function):
            pass

    class Machine:
        def snapshot_chunks(self):
            Path(sys.argv[1], "begun").write_text("")
            while not Path(sys.argv[1], "enough").exists():
                time.sleep(0.01)
            yield b"chunk"

    signal.signal(signal.SIGTERM, lambda number, frame: Path(sys.argv[1], "handled").write_text(""))
    job = ForkSnapshotJob(Reactor(), Snapshots(OsDisk(Path(sys.argv[1])), "snap"))
    job.begin(SnapshotMeta(5, 1, b""), Machine())
    print(job._child, flush=True)
    signal.pause()
    time.sleep(60)
"""


@pytest.fixture
def begun(tmp_path: Path) -> tuple[subprocess.Popen[str], int]:
    """Yield a parent, and the pid of its writing child."""
    command = [sys.executable, "-c", textwrap.dedent(PARENT), str(tmp_path)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    eventually((tmp_path / "begun").exists, what="the child to write")
    return parent, child


def is_gone(process: int) -> bool:
    """Return True if the process has ended, also if it is a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_child_does_not_outlive_a_killed_parent(begun: tuple[subprocess.Popen[str], int]) -> None:
    """The next process on this directory may begin a snapshot of the same name."""
    parent, child = begun
    parent.kill()
    parent.wait()
    eventually(lambda: is_gone(child), what="the child to end")


def test_signals_of_the_whole_group_are_the_parents(begun: tuple[subprocess.Popen[str], int], tmp_path: Path) -> None:
    """The parent's handler does not run in the child, and the snapshot is written."""
    parent, child = begun
    try:
        os.kill(child, signal.SIGTERM)
        os.kill(child, signal.SIGINT)
        (tmp_path / "enough").write_text("")
        eventually(lambda: is_gone(child), what="the child to end")
        assert not (tmp_path / "handled").exists()
        assert [path.name for path in (tmp_path / "snap").iterdir()] == ["0000000000000005-0000000000000001.snap"]
    finally:
        parent.kill()
        parent.wait()


@pytest.mark.parametrize("call", ["pipe2", "fork"])
def test_snapshot_that_cannot_even_begin_is_a_snapshot_that_failed(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """No descriptor, no process: the node gets the reason, continues and tries again later."""

    def refuse(*arguments: int) -> int:
        raise OSError(errno.EMFILE, "no more of them")

    monkeypatch.setattr(os, call, refuse)
    reactor: Any = None
    job = ForkSnapshotJob(reactor, Snapshots(MemoryDisk(), "snap"))
    errors: list[str] = []
    job.written = lambda meta, error: errors.append(error)
    job.begin(SnapshotMeta(5, 1, b""), StateMachine())
    assert len(errors) == 1
    assert "no more of them" in errors[0]
