"""The core's behavior, message by message. Each file in testdata/raft is one situation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.datadriven.raft_group import RaftGroup
from tests.datadriven.runner import check

FILES = sorted((Path(__file__).resolve().parents[1] / "testdata" / "raft").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_transcript(path: Path, pytestconfig: pytest.Config) -> None:
    """The output of the commands equals the file."""
    check(path, RaftGroup().run, rewrite=pytestconfig.getoption("--rewrite"))
