"""The example data: in an installation below the package `cli`, where setup.py puts it; else in the source tree."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cli.common.errors import UsageFaultError

#: Every package of a Debian release with its size.
EXAMPLE: Final = "debian-packages.csv.gz"
_PACKAGE: Final = Path(__file__).resolve().parents[1]


def example_data() -> Path:
    """Return the path of the example input, which may be missing."""
    installed = _PACKAGE / "examples" / EXAMPLE
    return installed if installed.exists() else _PACKAGE.parent / "examples" / EXAMPLE


def example_path() -> Path:
    """Return the path of the example input. Raise UsageFaultError if it is missing."""
    path = example_data()
    if not path.exists():
        raise UsageFaultError(f"the example input {path} does not exist", "Give --input FILE.csv, or --no-table.")
    return path
