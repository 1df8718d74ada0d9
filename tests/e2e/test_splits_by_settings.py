"""Regions are split and merged by the settings of their table (X11)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from regionserver.client import Change, connect
from tests.e2e.masters import Cluster, cluster_on, own_store
from tests.support.helpers import PATIENCE_S, eventually, finished, rk

pytestmark = pytest.mark.e2e

SLOW_S = 180.0


def said(cluster: Cluster, *words: str, status: int = 0) -> str:
    """Return the output of a command of rk, which must end with this status."""
    done = finished(rk(*words, "--store", cluster.hosts), SLOW_S)
    assert done.returncode == status, (words, done.stdout, done.stderr)
    return done.stdout if status == 0 else done.stderr


def regions(cluster: Cluster) -> int:
    """Return the number of the table's regions."""
    return int(json.loads(said(cluster, "table", "show", "rows", "--json"))["table"]["regions"])


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_table_grows_and_shrinks(tmp_path: Path, replicas: int) -> None:
    """Its region is split when it is large; when the rows are gone, the regions are merged again, with their causes.
    With three replicas they are tablets."""
    with (
        own_store(tmp_path / "store", 1) as hosts,
        cluster_on(hosts, tmp_path / "c", masters=1, servers=3, has_shared=replicas == 1) as cluster,
    ):
        cluster.wait_active()
        cluster.wait_servers(3)
        wrong = said(cluster, "table", "create", "rows", "--split-above", "1MB", "--merge-below", "500KB", status=1)
        assert "more than a quarter" in wrong
        assert "no size" in said(cluster, "table", "create", "rows", "--split-above", "much", status=2)
        said(cluster, "table", "create", "rows", "--split-above", "1MB", "--replicas", str(replicas))
        with connect(hosts, connect_timeout_s=PATIENCE_S) as client:
            keys = [f"k{number:04}" for number in range(2_000)]
            client.write("rows", [Change(key, b"x" * 1_000) for key in keys])
            eventually(lambda: regions(cluster) >= 2, SLOW_S, "the region is split")
            assert len(list(client.scan("rows"))) == len(keys)
            said(cluster, "table", "alter", "rows", "--merge-below", "250KB")
            assert "neighbors below 250000 bytes are merged" in said(cluster, "table", "show", "rows")
            assert "a region above 1000000 bytes is split" in said(cluster, "why", "rows")
            client.write("rows", [Change(key, None) for key in keys[:-10]])
            eventually(lambda: regions(cluster) == 1, SLOW_S, "the regions are merged")
            assert [key for key, _ in client.scan("rows")] == keys[-10:]
        history = said(cluster, "history", "--limit", "0")
        assert "timer: a setting of the table:" in history
        assert "more than 1000000" in history
        assert said(cluster, "fsck").endswith("nothing is wrong\n")
