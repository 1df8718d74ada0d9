"""Servers for the members of a new tablet."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from regions.records.kinds import KV, TABLETS_ALONE
from regions.records.model import ServerRecord, TableRecord
from regions.replication.config import majority
from regions.replication.siting import choose_members, objection_to_racks, planned_members, tablet_sites


class Machine(NamedTuple):
    """A candidate."""

    uuid: str
    rack: str
    weight: float = 1.0
    load: int = 0


def test_racks_before_load() -> None:
    """A busy server of another rack is better than an idle one of the same rack."""
    servers = [Machine("a", "r1"), Machine("b", "r1"), Machine("c", "r2", load=50), Machine("d", "r3", load=90)]
    assert choose_members(servers, 3) == ["a", "c", "d"]
    assert choose_members(servers, 4) == ["a", "c", "d", "b"]
    assert choose_members(servers, 9) == ["a", "c", "d", "b"]
    assert choose_members([], 3) == []


def test_a_plan_is_taken_only_if_it_fits_the_servers_of_now() -> None:
    """As many servers as wanted, none twice, all of them there, and racks as far apart as the master's own choice."""
    servers = [Machine("a", "r1"), Machine("b", "r1"), Machine("c", "r2", load=50), Machine("d", "r3")]
    assert planned_members(["d", "c", "b"], servers, 3) == ["d", "c", "b"]
    for wrong in (
        [],
        ["d", "c"],
        ["d", "c", ""],
        ["d", "c", "c"],
        ["d", "c", "x"],
        ["a", "b", "c"],
        ["a", "b", "c", "d"],
    ):
        assert planned_members(wrong, servers, 3) == [], wrong
    assert planned_members(["a", "b", "c"], servers[:3], 3) == ["a", "b", "c"]
    racks = [Machine(name, f"r{number % 3}") for number, name in enumerate("abcdefghi")]
    assert planned_members(["a", "d", "b", "e", "c"], racks, 5) == ["a", "d", "b", "e", "c"]
    assert planned_members(["a", "d", "g", "b", "c"], racks, 5) == [], "three of five in one rack"


@given(st.lists(st.integers(0, 3), min_size=1, max_size=9), st.integers(1, 5))
def test_a_plan_like_the_masters_own_choice_fits(racks: list[int], count: int) -> None:
    """And any other order of the servers fits as well if it has as few members in each rack."""
    servers = [Machine(f"s{number}", f"r{rack}") for number, rack in enumerate(racks)]
    own = choose_members(servers, count)
    assert planned_members(own, servers, count) == (own if len(own) == count else [])
    most = max(Counter(one.rack for one in servers if one.uuid in own).values())
    for planned in itertools.islice(itertools.combinations(servers, min(count, len(servers))), 50):
        there = Counter(one.rack for one in planned)
        fits = len(own) == count and len(there) == min(count, len(set(racks))) and max(there.values()) <= most
        assert bool(planned_members([one.uuid for one in planned], servers, count)) == fits


def test_sites_are_the_servers_that_take_tablets_with_a_shared_directory_or_without() -> None:
    kinds = {"a": KV, "b": TABLETS_ALONE, "c": "counters/1", "d": "", "e": KV}
    servers = [ServerRecord(uuid, uuid, 1, 1, kind=kind, tablets=uuid != "e") for uuid, kind in kinds.items()]
    assert [one.uuid for one in tablet_sites(servers, TableRecord("t", "x", kind=KV), {}, ())] == ["a", "b", "d"]
    assert tablet_sites(servers, TableRecord("t", "x", kind="counters/2"), {}, ()) == []


def test_what_was_given_in_this_round_counts() -> None:
    """Twelve tablets on four equal servers: nine members each."""
    servers = [Machine(name, "r") for name in "abcd"]
    given_now: Counter[str] = Counter()
    for _ in range(12):
        given_now.update(choose_members(servers, 3, given_now))
    assert set(given_now.values()) == {9}


@given(
    st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 9), st.sampled_from([0.5, 1.0, 2.0])), max_size=9),
    st.sampled_from([1, 3, 5, 7]),
)
def test_members_are_spread(machines: list[tuple[str, int, float]], count: int) -> None:
    """No server twice, the same choice for any order of the servers, and no rack has more than necessary."""
    servers = [Machine(f"s{number}", *one[:1], one[2], one[1]) for number, one in enumerate(machines)]
    chosen = choose_members(servers, count)
    assert len(set(chosen)) == len(chosen) == min(count, len(servers))
    assert choose_members(reversed(servers), count) == chosen
    racks = {one.uuid: one.rack for one in servers}
    sizes = Counter(racks.values())
    per_rack = Counter(racks[uuid] for uuid in chosen)
    for full, other in itertools.permutations(sizes, 2):
        assert per_rack[full] <= per_rack[other] + 1 or per_rack[other] == sizes[other]
    if len(sizes) >= 3 and len(chosen) == count == 3:
        assert max(per_rack.values()) < majority(count)


def test_racks_are_counted_beforehand() -> None:
    """The rejection names the racks."""
    servers = [Machine("a", "r1"), Machine("b", "r2"), Machine("c", "r2")]
    assert objection_to_racks(servers, 2, 3) == ""
    assert objection_to_racks(servers, 0, 3) == ""
    assert objection_to_racks(servers, 3, 3).endswith("are in: r1, r2")
    assert objection_to_racks(servers, 4, 3) == "3 replicas cannot lie in 4 racks"
