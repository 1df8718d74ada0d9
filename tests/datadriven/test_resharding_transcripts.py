"""Splits and merges, step by step. Each file in testdata/resharding is one theme."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.datadriven.resharding_bench import ReshardingBench
from tests.datadriven.runner import check

FILES = sorted((Path(__file__).resolve().parents[1] / "testdata" / "resharding").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_transcript(path: Path, pytestconfig: pytest.Config) -> None:
    """The answers equal the file."""
    check(path, ReshardingBench().run, rewrite=pytestconfig.getoption("--rewrite"))
