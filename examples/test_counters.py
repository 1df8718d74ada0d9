"""A test of the service in counters.py, to copy: a small real cluster, a server that dies, and no count that is lost.

pytest examples/test_counters.py
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from regionserver.testing import ServerPlace, SmallCluster

pytest_plugins = ["regionserver.testing.fixtures"]
EXAMPLE = str(Path(__file__).with_name("counters.py"))


def server(place: ServerPlace) -> list[str]:
    """Return the command that starts one server of the service."""
    words = [sys.executable, EXAMPLE, "serve", "--store", place.store, "--address", place.address]
    words += ["--data-dir", place.data_dir, "--shared-dir", place.shared_dir]
    return [*words, "--session-timeout-ms", str(place.session_timeout_ms)]


def add(cluster: SmallCluster, key: str) -> int:
    """Count once with the service's own client. Return the total."""
    words = [sys.executable, EXAMPLE, "add", "--store", cluster.store, "hits", key]
    return int(subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=120, check=True).stdout)


@pytest.fixture
def cluster(regionkeeper_cluster_of: Callable[..., SmallCluster]) -> SmallCluster:
    """Return two servers of the service with one table of two regions."""
    started = regionkeeper_cluster_of(server=server, servers=2)
    started.create_table("hits", splits=["k"])
    return started


def test_counts_survive_the_death_of_a_server(cluster: SmallCluster) -> None:
    assert [add(cluster, "a"), add(cluster, "z"), add(cluster, "a")] == [1, 1, 2]
    assert sorted(cluster.owners("hits").values(), key=str) == [0, 1]
    cluster.kill_server(0)
    assert [add(cluster, "a"), add(cluster, "z")] == [3, 2]
    assert set(cluster.owners("hits").values()) == {1}
    cluster.start_server(0)
    assert add(cluster, "a") == 4
