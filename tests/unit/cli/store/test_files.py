"""`rk coord dump-log|dump-snapshot` and wrong arguments: one clear line, never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.main import run
from tests.unit.coord.offline.test_offline import history, make


def test_range_that_the_log_does_not_hold_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Empty output would look like an empty log."""
    path = make(tmp_path / "n", history(5))
    assert run(["coord", "dump-log", str(path), "--from", "500"]) == 0
    assert "no such entries: the log holds 1 to 5" in capsys.readouterr().err
    assert run(["coord", "dump-log", str(path), "--from", "4", "--to", "9"]) == 0
    assert capsys.readouterr().err == ""
    assert run(["coord", "dump-log", str(path), "--from", "9", "--to", "3"]) == 2
    assert "--from 9 is greater than --to 3" in capsys.readouterr().err


def test_other_files_are_no_damaged_snapshots_or_backups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error says that the file has another format, not that byte 0 is damaged."""
    file = tmp_path / "letter"
    for content in (b"", b"hello, world"):
        file.write_bytes(content)
        assert run(["coord", "dump-snapshot", str(file)]) == 1
        assert f"{file} is neither a snapshot nor a backup" in capsys.readouterr().err
        assert run(["coord", "restore", str(file), "--data-dir", str(tmp_path / "r")]) == 1
        assert f"{file} is not a backup of a store" in capsys.readouterr().err
        assert not (tmp_path / "r").exists()
