"""Options of the test run."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--rewrite`: write the present output into the transcripts instead of comparing."""
    parser.addoption("--rewrite", action="store_true", help="rewrite the expected output of transcripts")
