"""The lock of a data directory: who holds it, and what a refused start leaves behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cli.common.errors import CliError
from cli.common.local import CLUSTER_FILE, LOCK_FILE
from cli.up.hold import hold


def test_the_second_start_names_the_first_one(tmp_path: Path) -> None:
    """Without a pid in the file, as on a full disk, it names no process."""
    with hold(tmp_path, is_new=True):
        with (
            pytest.raises(CliError, match=f"in use by the `rk up` with pid {os.getpid()}"),
            hold(tmp_path, is_new=True),
        ):
            pass
        assert (tmp_path / LOCK_FILE).exists(), "a refused start removes no lock of another one"
        (tmp_path / LOCK_FILE).write_text("")
        with pytest.raises(CliError, match="in use by another `rk up`"), hold(tmp_path, is_new=True):
            pass


def test_a_refused_start_leaves_nothing(tmp_path: Path) -> None:
    """Neither the lock nor the directory that it has made. Tried: without unlink and rmdir both are left."""
    data_dir = tmp_path / "rk-data"
    with pytest.raises(CliError, match="port 1"), hold(data_dir, is_new=True):
        raise CliError("port 1 is in use")
    assert list(tmp_path.iterdir()) == []
    data_dir.mkdir()
    with pytest.raises(CliError, match="port 1"), hold(data_dir, is_new=True):
        raise CliError("port 1 is in use")
    assert data_dir.exists(), "the operator has made it"
    assert list(data_dir.iterdir()) == []


def test_the_lock_of_a_cluster_stays_and_names_nobody_afterwards(tmp_path: Path) -> None:
    """A pid that stays would name another process one day."""
    (tmp_path / CLUSTER_FILE).write_text("{}")
    with hold(tmp_path, is_new=False):
        assert (tmp_path / LOCK_FILE).read_text() == f"{os.getpid()}\n"
    assert (tmp_path / LOCK_FILE).read_text() == ""


def test_a_directory_with_other_things_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(CliError, match="not empty"), hold(tmp_path, is_new=True):
        pass
    assert [one.name for one in tmp_path.iterdir()] == ["letter.txt"]
