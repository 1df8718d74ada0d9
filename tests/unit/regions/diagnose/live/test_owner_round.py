"""The comparison of all owners in steps: what it finds, and that no step looks at the whole cluster."""

from __future__ import annotations

import random

import pytest

from regions.diagnose.invariants import Rule, contradictions
from regions.diagnose.live.owner_round import LOOKS_MAX, REST_MS, SLICE, OwnerRound
from regions.records.model import Incarnation


class Cluster:
    """What the store says, and what the servers report. `handed_out` counts the replicas that were asked for."""

    def __init__(self, stored: dict[str, Incarnation], lists: dict[Incarnation, set[str]]) -> None:
        self.stored = stored
        self.lists = lists
        self.handed_out = 0
        self.by_server: dict[Incarnation, set[str]] = {one: set() for one in lists}
        for key, home in stored.items():
            self.by_server.setdefault(home, set()).add(key)

    def at_rest(self, server: Incarnation) -> set[str]:
        found = self.by_server.get(server, set())
        self.handed_out += len(found)
        return found

    def round(self) -> tuple[dict[str, tuple[Rule, str]], list[int]]:
        """Return what a round finds, and the replicas at rest that each of its steps has asked for."""
        going, costs, now_ms = OwnerRound(self.lists), [], 0
        while not going.is_over:
            before = self.handed_out
            assert going.step(self.at_rest, self.lists, self.stored.get, now_ms)
            costs.append(self.handed_out - before)
            now_ms += 500
        return going.found, costs


@pytest.mark.parametrize("seed", range(30))
def test_a_round_finds_what_one_comparison_of_everything_finds(seed: int) -> None:
    """N5. Fails if `_compare` leaves out the replicas that a server reports beyond those of the store."""
    chance = random.Random(seed)
    servers = [Incarnation(f"s{number}", 1) for number in range(6)]
    reporting = servers[:5]
    stored = {f"r{number:02}-0": chance.choice(servers) for number in range(40)}
    lists: dict[Incarnation, set[str]] = {one: set() for one in reporting}
    for key, home in stored.items():
        for one in reporting:
            if chance.random() < (0.9 if one == home else 0.03):
                lists[one].add(key)
    for key in chance.sample(sorted(stored), 8):
        del stored[key]  # in transition
    assert Cluster(stored, lists).round()[0] == dict(contradictions(stored, lists))


def test_no_step_looks_at_the_whole_cluster() -> None:
    """100,000 regions on 1,000 servers. Fails if a step goes on without `left`."""
    servers = [Incarnation(f"s{number:03}", 1) for number in range(1_000)]
    lists = {one: {f"r{number:03}.{at:03}-0" for number in range(100)} for at, one in enumerate(servers)}
    cluster = Cluster({key: one for one, keys in lists.items() for key in keys}, lists)
    found, costs = cluster.round()
    assert found == {}
    assert sum(costs) == 2 * 100_000
    assert max(costs) <= 2 * (SLICE + 100)


def test_many_contradictions_do_not_lengthen_a_step() -> None:
    """As many as LOOKS_MAX allows are found in each step. Fails without the count of looks."""
    servers = [Incarnation(f"s{number:03}", 1) for number in range(100)]
    stored = {f"r{number:04}-0": servers[number % 100] for number in range(10_000)}
    found, costs = Cluster(stored, {one: set() for one in servers}).round()
    assert 0 < len(found) <= LOOKS_MAX // 100 * len(costs) < 10_000


def test_a_replica_that_was_not_at_rest_all_the_time_is_not_missed_by_its_server() -> None:
    a, b = Incarnation("a", 1), Incarnation("b", 1)
    cluster = Cluster({"r-0": a}, {a: set(), b: set()})
    going = OwnerRound(cluster.lists)
    assert going.step(cluster.at_rest, cluster.lists, cluster.stored.get, 0)
    cluster.by_server = {a: set(), b: {"r-0"}}
    assert going.step(cluster.at_rest, cluster.lists, {"r-0": b}.get, REST_MS - 1)
    assert not going.is_over
    assert going.step(cluster.at_rest, cluster.lists, {"r-0": b}.get, REST_MS)
    assert (going.is_over, going.found) == (True, {})


def test_a_master_that_may_not_decide_gives_the_round_up() -> None:
    a = Incarnation("a", 1)
    going = OwnerRound([a])
    assert not going.step(lambda _: None, {a: ()}, lambda _: None, 0)
