"""The texts of this repository: source files, pages, and the requirements that they cite."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]

#: Folders of the repository whose texts are ours; `tests/testdata` holds recorded bytes and transcripts.
TEXT_SUFFIXES: Final = {".py", ".md", ".cfg", ".toml", ".sh", ".yaml", ".yml", ""}
_SKIPPED: Final = ("tests/testdata/",)
#: RT-18, HB-03, X1, N5.
REQUIREMENT: Final = re.compile(r"(?<![\w-])((?:RT|ED|RF|MF|MD|HB|FN|OC|DD|TC|TS|FW)-\d\d|[XN]\d{1,2})(?![\w-])")
#: RT-22 to RT-29, RF-04 to 08: the ids in between are cited, too.
_RANGE: Final = re.compile(r"(?<![\w-])([A-Z]{1,2}-?)(\d{1,2}) (?:to|…) (?:\1)?(\d{1,2})(?!\w)")


@cache
def text_files() -> list[Path]:
    """Return every tracked or new text file of the repository, sorted."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    found = []
    for name in sorted(filter(None, listed)):
        path = ROOT / name
        if path.suffix in TEXT_SUFFIXES and not name.startswith(_SKIPPED) and path.is_file():
            found.append(path)
    return found


def requirements_in(text: str) -> set[str]:
    """Return the requirement ids that a text cites, those inside ranges included."""
    found = set(REQUIREMENT.findall(text))
    for prefix, first, last in _RANGE.findall(text):
        width = len(first)
        numbers = [f"{prefix}{number:0{width}d}" for number in range(int(first), int(last) + 1)]
        found.update(one for one in numbers if REQUIREMENT.fullmatch(one))
    return found


@cache
def cited_requirements() -> dict[str, list[str]]:
    """Map each cited requirement to the files that cite it. Names of test servers and nodes such as N1 are left out."""
    found: dict[str, list[str]] = {}
    for path in text_files():
        if path == ROOT / "docs" / "requirements.md":
            continue
        for row in sorted(requirements_in(path.read_text())):
            found.setdefault(row, []).append(str(path.relative_to(ROOT)))
    return found
