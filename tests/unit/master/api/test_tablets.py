"""ListTablets and ShowTablet over a real keeper: pages, filters, and errors of new users."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coord.rpc.server import RpcError
from master.api import tablets as api
from master.api.reads import with_tablets
from master.metrics import of_tablets
from regions import messages as ms
from regions.messages.heartbeat import ReplicaState, TabletReport
from regions.records.members import Storage
from regions.records.model import RegionRecord, TableRecord
from regions.records.resharding.parents import Parent
from tests.unit.regions.diagnose.tablet_cluster import TabletCluster


@pytest.fixture(scope="module")
def cluster() -> TabletCluster:
    """Three servers and two tablets, t.0 and t.1, all HEALTHY."""
    return TabletCluster()


def world_of(cluster: TabletCluster) -> Any:
    """The names that the cluster state has: the tablets' table, and a table with shared storage."""
    shared = SimpleNamespace(record=TableRecord("u", "counters", storage=Storage.SHARED))
    tables = {"t": SimpleNamespace(record=cluster.world.table[0]), "u": shared}
    regions = {"u.0": SimpleNamespace(record=RegionRecord("u", "u.0"), table=shared)}
    return SimpleNamespace(names={one.record.name: one for one in tables.values()}, tables=tables, regions=regions)


def listed(cluster: TabletCluster, **filters: Any) -> ms.TabletList:
    return api.list_tablets(cluster.watch, world_of(cluster), ms.ListTablets(**filters), cluster.world.now)


def ids(found: ms.TabletList) -> list[str]:
    return [one.region_id for one in found.tablets]


def test_filters_limit_the_list_and_not_the_counts(cluster: TabletCluster) -> None:
    """The counts cover all tablets, whichever are listed."""
    assert ids(listed(cluster)) == ["t.0", "t.1"]
    assert ids(listed(cluster, table="orders", server="s1", health=[ms.TabletHealth.HEALTHY])) == ["t.0", "t.1"]
    assert ids(listed(cluster, server="s9")) == ids(listed(cluster, health=[ms.TabletHealth.UNAVAILABLE])) == []
    assert listed(cluster, server="s9").counts == {"HEALTHY": 2}


def test_pages_follow_each_other_until_the_last(cluster: TabletCluster) -> None:
    """A page that is full by chance has no next page."""
    first = listed(cluster, limit=1)
    assert (ids(first), first.next) == (["t.0"], "t.0")
    second = listed(cluster, limit=1, after=first.next)
    assert (ids(second), second.next) == (["t.1"], "")
    assert listed(cluster, limit=2).next == ""
    assert listed(cluster, limit=10**9).next == ""


def test_a_page_is_bounded(cluster: TabletCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request for all tablets, or for too many, gets one page."""
    monkeypatch.setattr(ms, "TABLETS_PAGE_MAX", 1)
    assert listed(cluster).next == listed(cluster, limit=5).next == "t.0"


def test_errors_name_the_fault_and_the_remedy(cluster: TabletCluster) -> None:
    """Each error names the fault, and what to do."""
    cases = [
        (lambda: listed(cluster, table="nobody"), ms.NOT_FOUND, "there is no table 'nobody'"),
        (lambda: listed(cluster, table="counters"), ms.BAD_REQUEST, "table counters has no tablets"),
        (lambda: shown(cluster, "x"), ms.NOT_FOUND, "no tablet 'x'"),
        (lambda: shown(cluster, ""), ms.NOT_FOUND, "no tablet ''"),
        (lambda: shown(cluster, "t."), ms.BAD_REQUEST, "'t.' begins the ids of 2 tablets: t.0, t.1"),
        (lambda: shown(cluster, "u"), ms.BAD_REQUEST, "u.0 is no tablet: the rows of table counters lie in the shared"),
    ]
    for ask, code, text in cases:
        with pytest.raises(RpcError, match=text.replace(".", r"\.")) as error:
            ask()
        assert error.value.code == code


def shown(cluster: TabletCluster, region_id: str) -> ms.TabletStatus:
    found = api.show_tablet(cluster.watch, world_of(cluster), ms.ShowTablet(region_id), cluster.world.now)
    return found.tablets[0]


def test_a_tablet_is_found_by_its_id_or_a_prefix() -> None:
    """Also a tablet that is not listed any more, because its table is deleted."""
    cluster = TabletCluster(regions=1)
    assert shown(cluster, "t.0").region_id == shown(cluster, "t").region_id == "t.0"


def test_a_tablet_that_was_split_is_named_with_its_daughters(cluster: TabletCluster) -> None:
    """A master forgets the parent when the split ends, or knows it no more after a failover."""
    world = world_of(cluster)
    for name in ("sB", "sA"):
        record = RegionRecord("t", name, parents=(Parent("s"),))
        world.regions[name] = SimpleNamespace(record=record, table=world.tables["t"])
    with pytest.raises(RpcError, match="tablet s was split or merged: sA and sB took its place") as error:
        api.find_tablet(cluster.watch, world, "s")
    assert (error.value.code, "rk why s" in error.value.hint) == (ms.NOT_FOUND, True)


def test_orphans_are_listed_once_with_their_server() -> None:
    """On the first page, unless a table is named: an orphan has none."""
    cluster = TabletCluster()
    report = TabletReport("x.7", "x", 2, ReplicaState.RUNNING)
    cluster.watch.keeper.reported(cluster.machine("s1").incarnation, [report], [])
    assert [(one.server, one.report.key) for one in listed(cluster).orphans] == [("s1", "x.7-2")]
    assert listed(cluster, server="s0").orphans == listed(cluster, table="orders").orphans == []
    assert listed(cluster, after="t.0").orphans == []


def test_loads_and_metrics_count_tablets() -> None:
    """Unknown counts stay unknown: leaders on a server that has not reported to a new master, tablets on a standby."""
    cluster = TabletCluster()
    record = cluster.machine("s0").record
    load = ms.ServerLoad(record, 0, 0, 0, 0)
    found = [
        with_tablets(ms.ServerLoad(one.record, 0, 0, 0, 0), cluster.watch) for one in cluster.world.machines.values()
    ]
    assert [one.tablets for one in found] == [2, 2, 2]
    assert sum(one.leaders or 0 for one in found) == 2
    assert with_tablets(load, None) == load
    samples = {
        (one.name, *one.labels.values()): one.value for family in of_tablets(cluster.watch) for one in family.samples
    }
    assert samples["regionkeeper_master_tablets", "HEALTHY"] == 2
    assert samples["regionkeeper_master_tablets", "UNAVAILABLE"] == 0
    assert samples[("regionkeeper_master_tablets_led",)] == 2
    cluster.new_master()
    young = with_tablets(load, cluster.watch)
    assert (young.tablets, young.leaders) == (2, None)
