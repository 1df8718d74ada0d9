"""The starts that regions name, from a standby's mirror: the same as from all records, without a look at each."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from regions.cluster.state import ClusterState
from regions.records.members import Member, Storage
from regions.records.model import (
    Incarnation,
    RegionRecord,
    RegionState,
    ReplicaLocation,
    ServerRecord,
    TableRecord,
    TransitionRecord,
)
from regions.replication.recovery import NamedStarts, is_startup


class NoWalk(dict[str, Any]):
    """Regions that can be looked up one by one only."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("all regions are walked")

    values = items = __iter__  # type: ignore[assignment]


def world_of(chance: random.Random) -> tuple[ClusterState, list[TransitionRecord]]:
    """Return a random cluster state, and its transitions of shared regions."""
    world = ClusterState()
    starts = [Incarnation(f"s{number}", code) for number in range(4) for code in (1, 2)]
    alive = [one for one in starts if one.start_code == 2 and chance.random() < 0.5]
    world.set_servers({one.uuid: ServerRecord(one.uuid, "h", 1, one.start_code) for one in alive}, ())
    if chance.random() < 0.5:
        world.put_table(TableRecord("u", "tablets", storage=Storage.TABLET), 0)
        world.put_region(RegionRecord("u", "u.0", members=(Member(1, "s1"),), next_number=2), 0)
    world.put_table(TableRecord("t", "shared"), 0)
    used = chance.sample(starts, chance.randrange(1, 4))
    for number in range(chance.randrange(6)):
        start = chance.choice([None, *used])
        location = ReplicaLocation(0, start and start.uuid, start and start.start_code)
        world.put_region(RegionRecord("t", f"t.{number}", replicas=(location,)), 0)
    transitions = []
    for replica in list(world.replicas.values()):
        if chance.random() < 0.4:
            state = chance.choice(list(RegionState))
            record = TransitionRecord(
                replica.region.record.region_id, "t", 0, state, chance.choice([None, *starts]), chance.choice(starts)
            )
            transitions.append(record)
            world.set_transition(replica, record, 1, 0)
    return world, transitions


@pytest.mark.parametrize("seed", range(300))
def test_a_mirror_names_the_same_live_starts_as_its_records(seed: int) -> None:
    world, transitions = world_of(random.Random(seed))
    slow, fast = NamedStarts(transitions), NamedStarts(transitions)
    for region in world.regions.values():
        slow.add(region.record)
    fast.add_all_of(world)
    alive = {one.incarnation for one in world.servers.values()}
    moving = {start for one in transitions for start in (one.source, one.destination)}
    assert (fast.holders | moving) & alive == (slow.holders | moving) & alive
    assert (fast.has_shared, fast.has_tablets, fast.tablets) == (slow.has_shared, slow.has_tablets, slow.tablets)
    assert fast.transitions() == slow.transitions()
    assert is_startup(fast, alive) == is_startup(slow, alive)


def test_a_million_regions_at_rest_are_not_walked() -> None:
    """A warm take-over of a million regions took seconds of looks at each."""
    world, _ = world_of(random.Random(1))
    # A compiled cluster state takes no other indexes.
    regions, replicas = NoWalk(world.regions.items()), NoWalk(world.replicas.items())
    seen = SimpleNamespace(
        tables=world.tables, servers=world.servers, active=world.active, regions=regions, replicas=replicas
    )
    NamedStarts([]).add_all_of(cast("ClusterState", seen))
