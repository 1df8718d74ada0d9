"""Raft traces of real processes, over kills, checked against a small model of Raft."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from kazoo.exceptions import KazooException

from coord.server.admin.trace_file import check_traces
from tests.e2e.test_store_cluster import Cluster
from tests.support.helpers import eventually

pytestmark = pytest.mark.e2e


class TracedCluster(Cluster):
    """Each node appends its Raft events to a separate file."""

    def arguments(self, node: int) -> list[str]:
        return [*super().arguments(node), "--trace", str(self.trace(node))]

    def trace(self, node: int) -> Path:
        """Return the trace file of a node."""
        return self.folder / f"{node}.trace"


def test_traces_over_kills_hold(tmp_path: Path) -> None:
    """The leader is killed twice and all nodes once while a client writes; every rule of Raft holds."""
    cluster = TracedCluster(tmp_path, options=("--snapshot-entries", "40", "--keep-entries", "5"))
    cluster.start()
    try:
        with cluster.client() as client:
            client.create("/x")
            for victims in ("leader", "leader", "all"):
                leader = cluster.leader()
                for _ in range(60):
                    with contextlib.suppress(KazooException):
                        client.set("/x", b"value")
                nodes = [leader] if victims == "leader" else cluster.ids
                cluster.kill(*nodes)
                if victims == "leader":
                    cluster.leader()
                cluster.start(*nodes)
            cluster.leader()
            eventually(lambda: client.retry(client.set, "/x", b"end"), what="a write after everything")
    finally:
        with contextlib.suppress(Exception):
            cluster.kill()
    model = check_traces([cluster.trace(node) for node in cluster.ids])
    assert model.counts["start"] == 8
    assert len(model.leaders()) >= 4
    assert model.committed() > 100
