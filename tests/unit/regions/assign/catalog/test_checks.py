"""A region is assigned only if its table's record is still the one on which the decision was based."""

from __future__ import annotations

import msgspec
import pytest

from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.limits import AssignerConfig
from regions.records.model import RegionState, TableIntent, TableState
from tests.unit.regions.model_cluster import ModelCluster, at, region, server

A, B = server("a"), server("b")


def changed(cluster: ModelCluster, **changes: object) -> None:
    """Put another record into the store, which the assigner does not know yet."""
    record, version = cluster.tables["t1"]
    cluster.tables["t1"] = (msgspec.structs.replace(record, **changes), version + 1)


def begun(*names: str) -> tuple[ModelCluster, list[fx.WriteOffline]]:
    """Return regions to open, with the writes that assign them in flight."""
    cluster = ModelCluster()
    cluster.put(*(region(name) for name in names))
    cluster.start(A, B, run=False)
    writes = cluster.assigner.take(cluster.now)
    assert all(isinstance(one, fx.WriteOffline) for one in writes)
    return cluster, [one for one in writes if isinstance(one, fx.WriteOffline)]


def answer(cluster: ModelCluster, writes: list[fx.WriteOffline]) -> None:
    for write in writes:
        cluster.assigner.handle(cluster._write_answer(write), cluster.now)


@pytest.mark.parametrize("known", [True, False], ids=["the picture is newer", "the record has to be read"])
@pytest.mark.parametrize(
    "gone", [{"state": TableState.REMOVED}, {"intent": TableIntent.DISABLED}], ids=["removed", "disabled"]
)
def test_no_region_of_a_table_that_is_gone_is_assigned(gone: dict[str, object], known: bool) -> None:
    cluster, writes = begun("r1", "r2")
    changed(cluster, **gone)
    if known:
        cluster.assigner.handle(ev.TableSeen(*cluster.tables["t1"]), cluster.now)
    answer(cluster, writes)
    cluster.run()
    assert (cluster.unassigned, cluster.open, cluster.sent) == ({}, {}, [])
    assert cluster.tables["t1"][0].finished_ms > 0 or "intent" in gone


def plain(effects: list[fx.Effect]) -> list[fx.Effect]:
    """Return the effects without their origins."""
    return [msgspec.structs.replace(one, origin=None) for one in effects]


@pytest.mark.parametrize("known", [True, False], ids=["the picture is newer", "the record has to be read"])
def test_an_alteration_does_not_keep_regions_closed(known: bool) -> None:
    """The same write is repeated with the newer version."""
    cluster, writes = begun("r1", "r2")
    changed(cluster, state=TableState.ALTERING, schema_version=1)
    if known:
        cluster.assigner.handle(ev.TableSeen(*cluster.tables["t1"]), cluster.now)
    answer(cluster, writes)
    again = cluster.assigner.take(cluster.now)
    if not known:
        assert plain(again) == [fx.ReadTable("t1")], "once for both regions"
        cluster.assigner.handle(ev.TableSeen(*cluster.tables["t1"]), cluster.now)
        again = cluster.assigner.take(cluster.now)
    repeated = [one for one in again if isinstance(one, fx.WriteOffline)]
    for one in writes:
        one.table_check = ("t1", 1)
    assert repeated == writes
    answer(cluster, repeated)
    cluster.run()
    assert set(cluster.open) == {"r1-0", "r2-0"}


def test_a_record_that_cannot_be_read_is_read_again() -> None:
    """Meanwhile nothing is written for its regions, and the writes are not repeated in a loop."""
    cluster, writes = begun("r1")
    changed(cluster, schema_version=1)
    answer(cluster, writes)
    assert plain(cluster.assigner.take(cluster.now)) == [fx.ReadTable("t1")]
    cluster.assigner.tick(cluster.now + cluster.config.resend_ms - 1)
    assert cluster.assigner.take(cluster.now) == []
    cluster.assigner.tick(cluster.now + cluster.config.resend_ms)
    cluster.run()
    assert set(cluster.open) == {"r1-0"}


def test_a_server_that_dies_while_the_write_is_held_is_replaced() -> None:
    cluster, writes = begun("r1")
    [write] = writes
    assert write.record.destination is not None
    changed(cluster, schema_version=1)
    answer(cluster, writes)
    cluster.kill(write.record.destination.uuid, run=False)
    cluster.run()
    assert cluster.open["r1-0"] == at("b" if write.record.destination.uuid == "a" else "a")


def test_a_failed_open_of_a_table_that_is_gone_is_not_tried_elsewhere() -> None:
    """The open had begun before the table was disabled."""
    cluster = ModelCluster()
    cluster.put(region("r1"))
    cluster.silent = {"a", "b"}
    cluster.start(A, B)
    offline, version = cluster.unassigned["r1-0"]
    opening = msgspec.structs.replace(offline, state=RegionState.OPENING)
    cluster.unassigned["r1-0"] = (opening, version + 1)
    cluster.see()
    cluster.change_table(intent=TableIntent.DISABLED)
    cluster.pass_time(2 * cluster.config.open_timeout_ms)
    assert cluster.unassigned == {}
    given = [one.record.destination for one in cluster.writes if isinstance(one, fx.WriteOffline)]
    assert [one for one in given[1:] if one is not None] == []


def test_a_write_without_a_destination_needs_no_table() -> None:
    """A transition may be set to OFFLINE whatever happens to the table."""
    cluster = ModelCluster(AssignerConfig(bulk_min=1000, attempts_max=1))
    cluster.put(region("r1"))
    cluster.failing = {"a": "disk", "b": "disk"}
    cluster.start(A, B)
    parked = [one for one in cluster.writes if isinstance(one, fx.WriteOffline) and one.record.parked]
    assert [one.table_check for one in parked] == [None]
