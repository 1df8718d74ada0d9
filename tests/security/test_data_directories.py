"""Data directories in which other users of the machine may write, and links in them, with real daemons."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.helpers import finished, free_ports, rk

pytestmark = pytest.mark.e2e

#: What is in a file to which a link in the data directory points.
PRECIOUS = "somebody's file\n"


def _store(folder: Path, port: int) -> list[str]:
    return rk("coord", "run", "--id", "1", "--client-address", f"127.0.0.1:{port}", "--data-dir", str(folder))


def _master(folder: Path, port: int) -> list[str]:
    return rk("master", "run", "--store", "127.0.0.1:1", "--address", f"127.0.0.1:{port}", "--data-dir", str(folder))


def _server(folder: Path, port: int) -> list[str]:
    shared = ["--shared-dir", str(folder.parent / "shared")]
    words = rk("server", "run", "--store", "127.0.0.1:1", "--address", f"127.0.0.1:{port}", "--data-dir", str(folder))
    return [*words, *shared]


def _up(folder: Path, port: int) -> list[str]:
    return rk("up", "--base-port", str(port), "--no-table", "--data-dir", str(folder))


DAEMONS = pytest.mark.parametrize("command", [_store, _master, _server, _up], ids=["store", "master", "server", "up"])


def start(command: Callable[[Path, int], list[str]], folder: Path) -> subprocess.CompletedProcess[str]:
    [port] = free_ports(1)
    return finished(command(folder, port), 60)


@DAEMONS
def test_an_open_directory_is_refused(command: Callable[[Path, int], list[str]], tmp_path: Path) -> None:
    """The sentence says what to run; nothing was written."""
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(0o777)
    done = start(command, folder)
    assert done.returncode != 0
    assert f"may be written by everybody (mode 0777): run `chmod o-w {folder}`" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(folder.iterdir()) == []


@DAEMONS
def test_no_lock_is_taken_by_a_link(command: Callable[[Path, int], list[str]], tmp_path: Path) -> None:
    """The pid would overwrite the file of somebody else."""
    folder, precious = tmp_path / "data", tmp_path / "precious"
    folder.mkdir(mode=0o700)
    precious.write_text(PRECIOUS)
    for name in ("lock", "up.lock"):
        (folder / name).symlink_to(precious)
    if command is _up:
        (folder / "lock").unlink()
    done = start(command, folder)
    assert done.returncode != 0
    assert "symbolic links" in done.stderr
    assert precious.read_text() == PRECIOUS
