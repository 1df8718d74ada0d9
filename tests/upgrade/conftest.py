"""The older build, checked out from git once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.upgrade.builds import check_out, older_commit


@pytest.fixture(scope="session")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the root of the older build."""
    print(f"older build: {older_commit()}")  # noqa: T201 (which builds a failure is about)
    return check_out(tmp_path_factory.mktemp("older"))
