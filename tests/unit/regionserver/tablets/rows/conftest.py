"""Fixtures of the tests of rows."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.tablet_model import Log


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t1.1.mdb"


@pytest.fixture
def log() -> Log:
    log = Log(random.Random(5))
    log.extend(60)
    return log
