"""Standbys as processes: they answer bounded reads, stay warm, and clients find the active master (FW-01, MF-15)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from coord.rpc.server import RpcError
from master.client import MasterClient
from regions import messages as ms
from regions.messages.staleness import Bound
from tests.e2e.masters import Cluster, any_store, cluster_on
from tests.support.helpers import finished, rk

pytestmark = pytest.mark.e2e

REGIONS = 40


@pytest.fixture(params=["zookeeper", "three"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """Return two masters and two servers."""
    with (
        any_store(request.param, tmp_path / "store") as hosts,
        cluster_on(hosts, tmp_path / "cluster", servers=2) as running,
    ):
        running.wait_active()
        running.wait_servers(2)
        yield running


def test_a_standby_answers_bounded_reads_and_takes_over_warm(cluster: Cluster) -> None:
    """FW-01, MF-11, MF-15: a standby serves a read of the latest write; after the active master is killed, it takes
    over."""
    active = cluster.wait_active()
    standby = next(one for one in cluster.masters if one is not active)
    client = MasterClient([f"{host}:{port}" for host, port in (standby.address, active.address)])
    splits = [f"k{number:04d}" for number in range(1, REGIONS)]
    made = client.ask(ms.CreateTable("orders", splits, wait_ms=60_000), ms.Tables, 90)
    assert made.tables[0].open == REGIONS

    seen = Bound(min_zxid=client.seen_zxid)
    found = cluster.ask(standby, ms.ListTables(seen), ms.Tables)
    assert [one.table.name for one in found.tables] == ["orders"], "what this client was told of is there"
    assert found.as_of is not None
    assert found.as_of.role == "standby"
    current = cluster.ask(standby, ms.DescribeTable("orders", bound=Bound(max_ms=0)), ms.Regions)
    assert len(current.regions) == REGIONS
    assert current.as_of is not None
    assert current.as_of.stale_ms == 0
    with pytest.raises(RpcError) as refused:
        cluster.ask(standby, ms.ListTables(), ms.Tables)
    assert (refused.value.code, refused.value.hint) == (ms.NOT_LEADER, f"127.0.0.1:{active.address[1]}")

    active.kill()
    client.ask(ms.DeleteTable("orders"), ms.Tables, 60)
    status = cluster.ask(standby, ms.GetMasterStatus(), ms.MasterStatus)
    assert (status.role, status.path, status.warm, status.epoch) == ("active", "failover", True, 2)

    addresses = f"127.0.0.1:{active.address[1]},127.0.0.1:{standby.address[1]}"
    listed = finished(rk("table", "list", "--masters", addresses, "--max-stale", "5s", "--json"), 120)
    assert listed.returncode == 0, listed.stderr
    told = json.loads(listed.stdout)
    assert told["tables"] == []
    assert told["as_of"]["role"] == "active"
