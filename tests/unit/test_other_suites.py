"""The suites that `make test` does not run still fit the product."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("fuzz", "soak_real", "soak_splits", "torture", "compat.kazoo_suite", "compat.java_suite", "browser.tour")


def test_the_tests_can_be_collected() -> None:
    """Fails if one imports a name that the product has not any more."""
    suites = [f"tests/{name}" for name in ("compat", "monitoring", "spark", "upgrade")]
    words = [sys.executable, "-m", "pytest", "-q", "--collect-only", *suites]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_programs_start(name: str) -> None:
    """Their `--help` needs all that they import."""
    words = [sys.executable, "-m", f"tests.{name}", "--help"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout[:6]) == (0, "usage:"), done.stderr
