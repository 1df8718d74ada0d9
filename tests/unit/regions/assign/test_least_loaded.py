"""Many replicas are placed without looking at all servers for each: the choice is that of `choose`."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from regions.assign import selection
from regions.assign.assigner import Assigner
from regions.assign.placement import LeastLoaded, choose
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.entities import Server
from regions.records.model import (
    Incarnation,
    RegionRecord,
    RegionState,
    ReplicaLocation,
    ServerRecord,
    TableRecord,
    TransitionRecord,
)


@pytest.mark.parametrize("seed", range(20))
def test_the_choice_is_the_same_as_among_all(seed: int) -> None:
    """Fails without the look at a load that has grown, and without `changed` for one that has fallen."""
    chance = random.Random(seed)
    kinds = ["kv/1", "kv/1", "kv/2", "other/1"]
    servers = {
        f"s{number}": Server(
            ServerRecord(
                f"s{number}", "h", 1, 1, kind=chance.choice(kinds), weight=chance.choice([0.5, 1.0, 2.0, 0.0])
            ),
            chance.random() < 0.1,
        )
        for number in range(12)
    }
    load: dict[str, int] = {}
    filler: Any = object()
    for uuid in servers:
        load[uuid] = chance.randrange(5)
        for one in range(load[uuid]):
            servers[uuid].open[str(one)] = filler
    barred = set(chance.sample(sorted(servers), 2))
    heap = LeastLoaded(servers, "", "kv/1", barred)
    for number in range(200):
        failed = set(chance.sample(sorted(servers), chance.randrange(4)))
        found = heap.choose(failed)
        assert found == choose(servers.values(), kind="kv/1", exclude=failed | barred), number
        if found is not None:
            servers[found].open[f"new{number}"] = filler
        emptied = servers[chance.choice(sorted(servers))]
        if emptied.open and chance.random() < 0.5:
            emptied.open.pop(next(iter(emptied.open)))
            heap.changed(emptied.uuid)


def test_the_regions_of_dead_servers_are_spread_evenly_without_a_walk_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """RF-01: a thousand regions of dead servers, a hundred live servers. Fails if `choose` looks for each region."""
    walks: list[str] = []
    if hasattr(selection.choose, "__code__"):  # a compiled module calls its own names directly
        monkeypatch.setattr(selection, "choose", lambda *_, **__: walks.append("walk"))
    assigner = Assigner(5)
    regions = [
        (
            RegionRecord(
                "t", f"t.{number:04}", f"{number:04}" if number else "", f"{number + 1:04}" if number < 999 else ""
            ),
            0,
        )
        for number in range(1_000)
    ]
    moving = [
        (TransitionRecord(one.region_id, "t", 0, RegionState.OFFLINE, destination=Incarnation("dead", 1)), 0)
        for one, _ in regions
    ]
    servers = [ServerRecord(f"s{number:03}", "h", 1, 1) for number in range(100)]
    assigner.load([(TableRecord("t", "t", regions=1_000), 0)], regions, servers, moving, [], 1_000)
    assigner.begin(1_000)
    written = [one for one in assigner.take(1_000) if isinstance(one, fx.WriteOffline)]
    while assigner.has_selected:
        written += [one for one in assigner.take(1_000) if isinstance(one, fx.WriteOffline)]
    chosen = [one.record.destination for one in written]
    assert len(chosen) == 1_000
    assert {chosen.count(one) for one in set(chosen)} == {10}
    assert walks == []


def test_orders_that_are_too_late_all_at_once_need_no_walk_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """RT-11: no server has begun any of its opens within the time. Fails without `begin_many` in `check_orders`."""
    walks: list[str] = []
    if hasattr(selection.choose, "__code__"):
        monkeypatch.setattr(selection, "choose", lambda *_, **__: walks.append("walk"))
    assigner = Assigner(5)
    regions = [(RegionRecord("t", "t.0", "", "1"), 0), (RegionRecord("t", "t.1", "1", ""), 0)]
    servers = [ServerRecord(f"s{number}", "h", 1, 1) for number in range(5)]
    moving = [
        (TransitionRecord(one.region_id, "t", 0, RegionState.OFFLINE, destination=servers[0].incarnation), 0)
        for one, _ in regions
    ]
    assigner.load([(TableRecord("t", "t", regions=2), 0)], regions, servers, moving, [], 1_000)
    assigner.begin(1_000)
    assigner.take(1_000)
    assigner.tick(1_000_000)
    written = [one.record for one in assigner.take(1_000_000) if isinstance(one, fx.WriteOffline)]
    assert [one.attempt for one in written] == [1, 1]
    assert servers[0].incarnation not in [one.destination for one in written]
    assert walks == []


def keys(count: int) -> list[tuple[str, str]]:
    """Return the bounds of that many regions."""
    return [(f"{n:04}" if n else "", f"{n + 1:04}" if n < count - 1 else "") for n in range(count)]


def test_a_load_that_falls_by_parking_is_noticed_in_the_same_tick() -> None:
    """RT-11: a parked region counts no more for its server: the next region goes there. Fails without `unloaded`."""
    assigner = Assigner(5)
    record = {uuid: ServerRecord(uuid, "h", 1, 1) for uuid in ("s0", "s1", "s2", "s9")}
    #: Region -> the server that it is open on, or on its way to, and the attempt.
    homes = [*["s0"] * 5, *["s1"] * 5, "s2", "s9"]
    late = [("s0", 0), ("s9", assigner.config.attempts_max - 1), ("s1", 0)]
    bounds = keys(len(homes) + len(late))
    regions = [
        RegionRecord("t", f"t.{n:02}", *bounds[n], replicas=(ReplicaLocation(0, uuid, 1),))
        for n, uuid in enumerate(homes)
    ]
    moving = []
    for n, (uuid, attempt) in enumerate(late, len(homes)):
        regions.append(RegionRecord("t", f"t.{n:02}", *bounds[n]))
        to = record[uuid].incarnation
        moving.append(TransitionRecord(f"t.{n:02}", "t", 0, RegionState.OFFLINE, destination=to, attempt=attempt))
    assigner.load(
        [(TableRecord("t", "t", regions=len(regions)), 0)],
        [(one, 0) for one in regions],
        record.values(),
        [(one, 0) for one in moving],
        [],
        1_000,
    )
    assigner.begin(1_000)
    assigner.take(1_000)
    assigner.tick(1_000_000)
    written = [one.record for one in assigner.take(1_000_000) if isinstance(one, fx.WriteOffline)]
    went = [None if one.destination is None else one.destination.uuid for one in written]
    assert (went, [one.parked for one in written]) == (["s2", None, "s9"], [False, True, False])


@pytest.mark.parametrize("how", ["drained", "leaving"])
def test_the_regions_of_a_drained_server_leave_it_without_a_walk_for_each(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if `_release`, `up` or `take` chooses outside of `begin_many` and `placed`, and without `promise`."""
    walks: list[str] = []
    if hasattr(selection.choose, "__code__"):
        monkeypatch.setattr(selection, "choose", lambda *_, **__: walks.append("walk"))
    assigner = Assigner(5)
    servers = [ServerRecord(f"s{number:02}", "h", 1, 1) for number in range(50)]
    homes = ["s00"] * 150 + ["s01"] * 2 + [f"s{number:02}" for number in range(3, 50)]
    regions = [
        (RegionRecord("t", f"t.{n:04}", *bounds, replicas=(ReplicaLocation(0, homes[n], 1),)), 0)
        for n, bounds in enumerate(keys(len(homes)))
    ]
    assigner.load([(TableRecord("t", "t", regions=len(homes)), 0)], regions, servers, [], [], 1_000)
    assigner.begin(1_000)
    assigner.take(1_000)
    if how == "drained":
        assigner.handle(ev.DrainingSeen(["s00"]), 2_000)
    else:
        assigner.handle(ev.ServerUp(ServerRecord("s00", "h", 1, 1, leaving=True), False), 2_000)
    sent = [one for one in assigner.take(2_000) if isinstance(one, fx.SendClose)]
    orders = [order for one in sent for order in one.orders]
    assert {one.server.uuid for one in sent} == {"s00"}
    counts = Counter([*homes[150:], *(one.destination.uuid for one in orders if one.destination is not None)])
    assert (len(orders), sum(counts.values())) == (150, 150 + 49)
    assert ("s00" in counts, set(counts.values())) == (False, {4, 5}), "not all to the server with the least load"
    assert walks == []
