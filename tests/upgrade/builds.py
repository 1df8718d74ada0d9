"""The two builds: this checkout, and an older one that is checked out from git.

UPGRADE_FROM names the older commit. By default that is the newest tag from which this commit descends; without a tag,
the last commit of the feature level before this one's: the parent of the commit that has added the latest level. It has
no tablets; a data directory with tablets is that of WITH_TABLETS.
"""

from __future__ import annotations

import ast
import functools
import os
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Final

import pytest

from coord.tree.levels import SUPPORTED

#: The root of this checkout.
NEWER: Final = Path(__file__).resolve().parents[2]
VARIABLE: Final = "UPGRADE_FROM"
#: A build of 2026-11-23: tables of tablets, format 4 of the region layer.
WITH_TABLETS: Final = "46cd2bb0580d7fe46697269922fe53e1b1bf4605"
_TABLE: Final = "coord/tree/levels.py"


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=NEWER, capture_output=True, check=True).stdout


@functools.cache
def older_commit(untagged: str = "") -> str:
    """Return the commit of the older build. `untagged`: the one to take without a tag, in place of one by its level."""
    named = os.environ.get(VARIABLE, "")
    try:
        if not named:
            tag = _git("tag", "--merged", "HEAD~", "--sort=-creatordate").decode().split()
            named = tag[0] if tag else untagged or _before_the_level()
        return _git("rev-parse", "--verify", f"{named}^{{commit}}").decode().strip()
    except (OSError, subprocess.CalledProcessError) as error:
        if VARIABLE in os.environ:
            raise
        pytest.skip(f"no older build: {error}")


def _before_the_level() -> str:
    """Return the latest commit whose table of levels is shorter than this one's. The table was always at its place."""
    changes = _git("log", "--format=%H~", "--", _TABLE).decode().split()
    return next(commit for commit in changes if levels_of(commit) <= SUPPORTED)


def levels_of(commit: str) -> int:
    """Return the number of feature levels that a commit has; 0 from before there were any."""
    try:
        source = _git("show", f"{commit}:{_TABLE}")
    except subprocess.CalledProcessError:
        return 0
    tables = [one for one in ast.walk(ast.parse(source)) if isinstance(one, ast.AnnAssign)]
    return next(len(one.value.elts) for one in tables if ast.unparse(one.target) == "LEVELS")  # type: ignore[union-attr]


def check_out(folder: Path, commit: str) -> Path:
    """Put a build into `folder`. Its sources run interpreted, with the packages of this environment."""
    print(f"older build: {commit}")  # noqa: T201 (which builds a failure is about)
    with tarfile.open(fileobj=BytesIO(_git("archive", commit))) as archive:
        archive.extractall(folder, filter="data")
    return folder


def rk_of(root: Path, *arguments: str) -> tuple[list[str], dict[str, str], Path]:
    """Return (command line, environment, working directory) of `rk` of the build in `root`."""
    # The working directory comes first on Python's path, PYTHONPATH reaches the processes that `rk` starts.
    environment = {"PYTHONPATH": str(root)}
    if root != NEWER:
        environment["RK_PURE"] = "1"
    return [sys.executable, "-m", "cli", *arguments], environment, root
