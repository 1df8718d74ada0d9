"""Regions that cannot be created (DD-03 to DD-05): REPLACED by new ones, all or nothing, a bounded number of times."""

from __future__ import annotations

import msgspec
import pytest

from regions.cluster.limits import AssignerConfig
from regions.diagnose.explain import explain
from regions.records.model import Intent, RegionRecord, RegionState, TableIntent, TableState, TabletState
from regions.transitions.states import Cause
from tests.unit.regions.model_cluster import ModelCluster, at, region, server, transition

A, B = server("a"), server("b")
CONFIG = AssignerConfig(bulk_min=1000, create_timeout_ms=20_000, start_timeout_ms=5_000, replacements_max=2)


def creating(*silent: str, config: AssignerConfig = CONFIG) -> ModelCluster:
    """Return a new region, and servers of which some accept orders and never answer."""
    cluster = ModelCluster(config)
    cluster.put(msgspec.structs.replace(region("r1"), state=TabletState.PREPARING))
    cluster.silent = set(silent)
    cluster.start(A, B)
    return cluster


def states(cluster: ModelCluster) -> dict[str, TabletState]:
    return {name: record.state for name, (record, _) in cluster.regions.items()}


def test_a_region_that_opens_is_running() -> None:
    """DD-05: by the write of the server that opens it."""
    cluster = creating()
    assert states(cluster) == {"r1": TabletState.RUNNING}
    cluster.pass_time(60_000)
    assert cluster.replaces == []


def test_a_region_that_nobody_opens_in_time_is_replaced() -> None:
    """DD-03: a new id, the same range; the former record is kept, its transition is deleted, the new region opens."""
    cluster = creating("a", "b")
    cluster.pass_time(19_000)
    assert cluster.replaces == []
    cluster.pass_time(9_000)
    assert states(cluster) == {"r1": TabletState.REPLACED, "r1r1": TabletState.PREPARING}
    assert (cluster.state("r1"), cluster.state("r1r1")) == (None, RegionState.OFFLINE)
    assert cluster.regions["r1r1"][0].replaces == "r1"
    cluster.silent = set()
    cluster.pass_time(6_000)
    assert states(cluster)["r1r1"] is TabletState.RUNNING
    assert cluster.where("r1r1") in ("a", "b")
    last = [one for one in cluster.assigner.history if one.key == "r1-0"][-1]
    assert (last.before, last.after, last.cause) == (RegionState.OFFLINE, None, Cause.REPLACED), (
        "rk history tells of it"
    )
    world = cluster.assigner.world
    assert list(world.regions) == ["r1r1"]
    assert (world.tables["t1"].replicas, world.tables["t1"].open_replicas) == (1, 1)


def test_attempts_that_are_used_up_are_reason_enough() -> None:
    """X11 for a region that was never open: instead of being parked it is replaced, a bounded number of times."""
    cluster = ModelCluster(msgspec.structs.replace(CONFIG, create_timeout_ms=10_000_000))
    cluster.put(msgspec.structs.replace(region("r1"), state=TabletState.PREPARING))
    cluster.failing = {"a": "no room", "b": "no room"}
    cluster.start(A, B)
    cluster.pass_time(600_000)
    assert states(cluster) == {
        "r1": TabletState.REPLACED,
        "r1r1": TabletState.REPLACED,
        "r1r2": TabletState.PREPARING,
    }
    parked, _ = cluster.unassigned["r1r2-0"]
    assert (parked.parked, parked.last_error) == (True, "no room")
    assert cluster.assigner.world.tables["t1"].parked == 1


def test_a_region_that_was_open_once_is_never_replaced() -> None:
    """Such a region has data, so it is parked as usual."""
    cluster = ModelCluster(CONFIG)
    cluster.put(region("r1", at("gone")))
    cluster.failing = {"a": "no room", "b": "no room"}
    cluster.start(A, B)
    cluster.pass_time(600_000)
    assert cluster.replaces == []
    assert cluster.unassigned["r1-0"][0].parked


def test_nothing_is_seen_of_a_replacement_before_it_is_written() -> None:
    """OC-10: the third known violation was a replacement that clients could see before it was replicated."""
    cluster = creating("a", "b")
    cluster.replacing = "waiting"
    cluster.pass_time(60_000)
    assert len(cluster.replaces) == 1, "and it is not tried twice at a time"
    world = cluster.assigner.world
    assert list(world.regions) == ["r1"]
    assert list(world.tables["t1"].regions) == ["r1"]
    assert cluster.unassigned["r1-0"][0].intent is Intent.CLOSE
    said = explain(world.replicas["r1-0"], world, CONFIG, cluster.now)
    assert said.headline == "its region could not be created"


def test_a_refused_write_leaves_the_region_and_it_is_tried_on() -> None:
    """DD-04: the replacement is withdrawn; no map had any of it."""
    cluster = creating("a", "b")
    cluster.replacing = "refused"
    cluster.pass_time(28_000)
    assert len(cluster.replaces) == 1
    assert states(cluster) == {"r1": TabletState.PREPARING}
    cluster.silent = set()
    cluster.replacing = "done"
    cluster.pass_time(16_000)
    assert cluster.where("r1") in ("a", "b")
    assert states(cluster) == {"r1": TabletState.RUNNING}


def test_a_server_that_opens_it_at_the_last_moment_keeps_it() -> None:
    """The store decides: the write names the version of the transition, which has changed."""
    cluster = creating("a", "b")
    cluster.replacing = "waiting"
    cluster.pass_time(28_000)
    record, version = cluster.unassigned["r1-0"]
    assert record.destination is None, "nobody may open it any more"
    assert cluster.replaces[0].transitions == [(record, version)]


def test_a_new_master_counts_anew_and_forgets_what_was_given_up() -> None:
    """OC-11: the master dies between setting the transition to OFFLINE and replacing the region: the next one tries the
    region again."""
    cluster = creating("a", "b")
    cluster.replacing = "waiting"
    cluster.pass_time(28_000)
    assert cluster.unassigned["r1-0"][0].destination is None
    cluster.silent = set()
    cluster.replacing = "done"
    cluster.successor()
    assert cluster.where("r1") in ("a", "b")
    assert cluster.unassigned == {}


def test_replaced_regions_are_not_loaded() -> None:
    """MD-06: they are kept forever, and never read."""
    cluster = creating("a", "b")
    cluster.pass_time(28_000)
    cluster.successor()
    assert list(cluster.assigner.world.regions) == ["r1r1"]


@pytest.mark.parametrize(
    "change", [{"intent": TableIntent.DISABLED}, {"state": TableState.REMOVED}], ids=["disabled", "deleted"]
)
def test_a_region_that_is_not_wanted_any_more_is_not_replaced(change: dict[str, object]) -> None:
    """Its transition ends like that of any region that is to stay closed."""
    cluster = creating("a", "b")
    cluster.pass_time(24_000)
    cluster.replacing = "refused"
    cluster.change_table(**change)
    cluster.pass_time(30_000)
    assert cluster.unassigned == {}
    assert "r1r1" not in cluster.regions


def test_an_opening_server_is_waited_for() -> None:
    """A server that is opening it may still succeed: until its own deadline the region is not taken away."""
    cluster = ModelCluster(CONFIG)
    record = RegionRecord("t1", "r1", state=TabletState.PREPARING)
    cluster.put(record)
    cluster.put_transition(transition(RegionState.OPENING, None, at("a")))
    cluster.silent = {"a", "b"}
    cluster.start(A, B)
    cluster.pass_time(40_000)
    assert cluster.replaces == []
    cluster.pass_time(23_000)
    assert states(cluster)["r1"] is TabletState.REPLACED


def test_a_replica_that_opens_after_all_keeps_the_region_for_the_others() -> None:
    """Found by the simulation: one replica's attempts were used up, the other one opened; the first stayed OFFLINE."""
    cluster = creating("a", "b")
    world = cluster.assigner.world
    while not world.regions["r1"].is_given_up:
        cluster.pass_time(500)
    opened = msgspec.structs.replace(world.regions["r1"].record, state=TabletState.RUNNING)
    world.regions["r1"].record = opened  # by the other replica's server; its OPENED was observed
    cluster.regions["r1"] = (opened, world.regions["r1"].version)
    cluster.silent = set()
    cluster.pass_time(20_000)
    assert cluster.replaces == []
    assert cluster.where("r1") in ("a", "b")


def test_a_table_that_was_disabled_meanwhile_has_all_its_time_again() -> None:
    """The time since servers began counts, not the age of the region."""
    cluster = creating("a", "b")
    cluster.pass_time(8_000)
    cluster.set_intent(TableIntent.DISABLED)
    cluster.pass_time(60_000)
    assert cluster.unassigned == {}
    cluster.set_intent(TableIntent.ENABLED)
    cluster.pass_time(15_000)
    assert not cluster.assigner.world.regions["r1"].is_given_up
