"""The model of the live page, command by command. Each file in testdata/page is one theme."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.datadriven.page_bench import PageBench
from tests.datadriven.runner import check

FILES = sorted((Path(__file__).resolve().parents[1] / "testdata" / "page").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_transcript(path: Path, pytestconfig: pytest.Config) -> None:
    """The answers equal the file."""
    check(path, PageBench().run, rewrite=pytestconfig.getoption("--rewrite"))
