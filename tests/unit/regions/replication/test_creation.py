"""Tables of tablets: the storage, objections, and the servers of the first members."""

from __future__ import annotations

from collections import Counter

import pytest

from regions.records.formats import TABLETS
from regions.records.members import Storage
from regions.records.model import RegionRecord
from regions.replication.creation import first_records, objection_to_tablets, storage_for, with_members
from tests.unit.regions.replication.test_siting import Machine

SITES = [Machine(name, f"rack{name}") for name in "abc"]


@pytest.mark.parametrize(
    ("wanted", "kind", "replicas", "found"),
    [
        ("", "kv/1", 1, Storage.SHARED),
        ("", "kv/1", 3, Storage.TABLET),
        ("", "", 3, Storage.TABLET),
        ("", "counters/1", 3, Storage.SHARED),
        ("tablet", "kv/2", 1, Storage.TABLET),
        ("shared", "kv/1", 3, Storage.SHARED),
    ],
)
def test_storage_unless_the_caller_says(wanted: str, kind: str, replicas: int, found: Storage) -> None:
    """The death of its server would be an outage for a single copy, so it is never chosen silently."""
    assert storage_for(wanted, kind, replicas) is found


def test_storage_that_does_not_fit() -> None:
    """Only the key-value service has rows that Raft replicates."""
    with pytest.raises(ValueError, match="shared or tablet, not 'tape'"):
        storage_for("tape", "kv/1", 1)
    with pytest.raises(ValueError, match="a table of kind counters/1 has shared storage"):
        storage_for("tablet", "counters/1", 3)


def objection(
    sites: list[Machine] = SITES,
    *,
    replicas: int = 3,
    racks_min: int = 0,
    allow: bool = False,
    in_force: int = TABLETS,
    registered: int = 4,
) -> str:
    """Return the objection to a table that is otherwise valid."""
    return objection_to_tablets(
        sites,
        replicas=replicas,
        racks_min=racks_min,
        allow_under_replicated=allow,
        format_in_force=in_force,
        registered=registered,
    )


def test_every_objection_says_what_to_do() -> None:
    """An even number, an old build, servers without tablets, too few of them, too few racks."""
    assert objection() == ""
    assert "odd" in objection(replicas=2)
    assert objection(in_force=TABLETS - 1).endswith("upgrade all masters and servers")
    assert objection([], registered=0).endswith("undrain or start servers")
    # The format is raised as soon as a server takes tablets: to upgrade would not help these.
    assert objection([], in_force=TABLETS - 1).startswith("none of the 4 servers")
    assert objection([]).startswith("none of the 4 servers that could be used takes tablets: create the table with")
    assert "3 replicas need 3 servers" in objection(SITES[:2])
    assert objection(SITES[:2], allow=True) == ""
    assert objection(SITES[:2], allow=True, racks_min=2) == ""
    assert "2 replicas cannot lie in 3 racks" in objection(SITES[:2], allow=True, racks_min=3)
    assert objection(racks_min=3) == ""


def test_each_region_has_members_from_the_beginning() -> None:
    """Numbers from 1 on, the next number after them, and no server has more than its share."""
    sites = [Machine(name, "r") for name in "abcd"]
    regions = with_members([RegionRecord("t", f"t.{number}") for number in range(8)], sites, 3)
    assert {tuple(one.number for one in region.members) for region in regions} == {(1, 2, 3)}
    assert {region.next_number for region in regions} == {4}
    assert set(Counter(one.uuid for region in regions for one in region.members).values()) == {6}
    few = with_members([RegionRecord("t", "t.0")], sites[:2], 3)
    assert (len(few[0].members), few[0].next_number) == (2, 3)


def test_members_of_a_large_table_are_left_to_a_plan() -> None:
    """Unless there are fewer servers than replicas: then it is known now how many members are enough."""
    sites = [Machine(name, "r") for name in "abcd"]
    regions = [RegionRecord("t", f"t.{number}") for number in range(8)]
    assert {len(one.members) for one in first_records(regions, sites, 3, 25)} == {3}
    assert {(one.members, one.next_number) for one in first_records(regions, sites, 3, 24)} == {((), 1)}
    assert {len(one.members) for one in first_records(regions, sites[:2], 3, 24)} == {2}
