"""The lock of a drill: two drills at once would break each other's verdicts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cli.common.errors import CliError
from cli.drill.target.cluster import DRILL_LOCK_FILE, only_drill


def test_a_second_drill_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    with only_drill(tmp_path):
        who = f"another drill runs on the cluster in .* .pid {os.getpid()}."
        with pytest.raises(CliError, match=who) as found, only_drill(tmp_path):
            pass
        assert "Ctrl-C" in found.value.hint
    with only_drill(tmp_path):
        assert (tmp_path / DRILL_LOCK_FILE).stat().st_mode & 0o077 == 0


def test_a_missing_directory_is_left_to_the_search_for_rk_up(tmp_path: Path) -> None:
    """The error of the search says what to start; the lock makes no directory."""
    with only_drill(tmp_path / "none"):
        pass
    assert not (tmp_path / "none").exists()


def test_a_link_in_the_place_of_the_lock_is_refused(tmp_path: Path) -> None:
    """Another user's link could let the drill overwrite a file."""
    (tmp_path / "precious").write_text("keep")
    (tmp_path / DRILL_LOCK_FILE).symlink_to(tmp_path / "precious")
    with pytest.raises(CliError, match="cannot lock"), only_drill(tmp_path):
        pass
    assert (tmp_path / "precious").read_text() == "keep"
