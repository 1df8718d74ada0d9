"""Fixtures for pytest. In conftest.py: `pytest_plugins = ["regionserver.testing.fixtures"]`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from regionserver.testing.cluster import SmallCluster


@pytest.fixture
def regionkeeper_cluster(tmp_path: Path) -> Iterator[SmallCluster]:
    """Yield a running cluster with one master and two servers of key-value rows."""
    with SmallCluster(tmp_path / "regionkeeper") as cluster:
        yield cluster


@pytest.fixture
def regionkeeper_cluster_of(tmp_path: Path) -> Iterator[Callable[..., SmallCluster]]:
    """Return a function that starts a cluster with the arguments of SmallCluster; all clusters end with the test."""
    with ExitStack() as running:
        made: list[SmallCluster] = []

        def start(**options: Any) -> SmallCluster:
            made.append(SmallCluster(tmp_path / f"regionkeeper-{len(made)}", **options))
            return running.enter_context(made[-1])

        yield start
