"""The policy of members, change by change. Each file in testdata/policy is one theme."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.datadriven.policy_bench import PolicyBench
from tests.datadriven.runner import check

FILES = sorted((Path(__file__).resolve().parents[1] / "testdata" / "policy").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_transcript(path: Path, pytestconfig: pytest.Config) -> None:
    """The answers equal the file."""
    check(path, PolicyBench().run, rewrite=pytestconfig.getoption("--rewrite"))
