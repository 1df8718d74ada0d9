"""The older builds, checked out from git once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.upgrade.builds import WITH_TABLETS, check_out, older_commit


@pytest.fixture(scope="session")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the root of the older build."""
    return check_out(tmp_path_factory.mktemp("older"), older_commit())


@pytest.fixture(scope="session")
def older_tablets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the root of an older build that has tablets."""
    return check_out(tmp_path_factory.mktemp("tablets"), older_commit(WITH_TABLETS))
