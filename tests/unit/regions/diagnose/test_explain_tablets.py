"""Why a table of tablets is not at rest: its tablets by health, who must act, and where to look."""

from __future__ import annotations

import pytest

from regions.diagnose.explain_tablets import explain_split, explain_watched
from regions.messages import NextActor, TableExplanation
from regions.records.acts.resharding import ReshardingRecord, ReshardingState
from regions.records.model import RegionRecord, TableIntent
from regions.replication.effects import marked_replaced
from tests.unit.regions.diagnose.tablet_cluster import TabletCluster


@pytest.fixture
def cluster() -> TabletCluster:
    """Two tablets on three servers."""
    return TabletCluster()


def explained(cluster: TabletCluster) -> TableExplanation:
    return explain_watched(cluster.world.table[0], cluster.watch, cluster.world.now)


def test_a_healthy_table_is_running(cluster: TabletCluster) -> None:
    """With the members that take part."""
    found = explained(cluster)
    assert (found.standing, found.headline) == ("RUNNING", "all 2 tablets are HEALTHY")
    assert (found.regions, found.replicas, found.open, found.since_ms) == (2, 6, 6, 0)
    assert found.waiting == found.way_out == []


def test_tablets_that_are_not_healthy_are_grouped(cluster: TabletCluster) -> None:
    """One line for each health, with an example; a dead server needs the operator."""
    leaders = {cluster.leader("t.0"), cluster.leader("t.1")}
    dead = next(uuid for uuid in cluster.world.machines if uuid not in leaders)
    cluster.world.stop(cluster.machine(dead))
    cluster.pass_time(5_000)
    found = explained(cluster)
    assert (found.standing, found.headline) == ("UNDER_REPLICATED", "2 of 2 tablets are not HEALTHY")
    assert (found.replicas, found.open) == (6, 4)
    [waiting] = found.waiting
    assert (waiting.replicas, waiting.actor, waiting.region_id) == (2, NextActor.OPERATOR, "t.0")
    assert waiting.text.startswith("UNDER_REPLICATED: t.0: 2 of 3 voters are healthy")
    assert 0 < found.since_ms <= cluster.world.now
    assert found.way_out == [
        "rk why t.0: one of 2 tablets UNDER_REPLICATED",
        "rk tablet list --table orders: all of them",
    ]


def test_a_disabled_table_waits_for_nothing(cluster: TabletCluster) -> None:
    """All replicas are closed as the operator intends, so nothing is pending."""
    cluster.world.set_intent(TableIntent.DISABLED)
    cluster.pass_time(3_000)
    found = explained(cluster)
    assert (found.standing, found.open, found.waiting) == ("DISABLED", 0, [])
    assert found.headline == "it is disabled: its replicas rest with their files"


def test_the_replicas_of_a_split_tablet_are_not_open(cluster: TabletCluster) -> None:
    """They run until the daughters have replicas, and serve no client."""
    keeper = cluster.watch.keeper
    tablet = keeper.tablets["t.0"]
    keeper.region_seen(marked_replaced(tablet.record), tablet.version + 1)
    found = explained(cluster)
    assert (found.headline, found.replicas, found.open) == ("all 1 tablets are HEALTHY", 3, 3)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (ReshardingState.PREPARING, "until all members are healthy"),
        (ReshardingState.CLOSING, "the leader is asked to seal"),
        (ReshardingState.CLEANING, "the replicas of t.0 stay until t.0A and t.0B are led"),
    ],
)
def test_a_split_says_what_it_waits_for(state: ReshardingState, words: str) -> None:
    daughters = (RegionRecord("t", "t.0A"), RegionRecord("t", "t.0B", start_key="f"))
    said = explain_split(ReshardingRecord("t", ("t.0",), daughters, state))
    assert said.startswith(f"the split of t.0 at 'f' is {state.value}: ")
    assert words in said
