"""Ids and key ranges of the regions that replace split and merged ones."""

from __future__ import annotations

import itertools
import random

import pytest

from regions.assign.resharding.daughters import ID_MAX, covers, merged, split_at, split_ids
from regions.records.model import RegionRecord
from regions.records.partitioning import RegionSpec, check_ranges


def test_daughters_have_exactly_the_keys_of_their_parents() -> None:
    """A hole and an overlap are seen."""
    whole = RegionRecord("t", "t.0")
    low, high = split_at(whole, "m")
    assert covers((whole,), (low, high))
    assert covers((low, high), (merged(low, high),))
    assert not covers((whole,), (low,))
    assert not covers((whole,), (high, low))
    assert not covers((low,), split_at(whole, "f"))


@pytest.mark.parametrize("seed", range(5))
def test_ids_are_never_used_twice_and_sort_as_the_key_ranges_do(seed: int) -> None:
    """Clients find a region by a binary search over the names. The ids begin as those of a table do, with letters."""
    chance = random.Random(seed)
    bounds = ["", *(f"{number:03x}" for number in range(1, 20)), ""]
    regions = [
        RegionRecord("t", f"t.{at:04x}", start, end) for at, (start, end) in enumerate(itertools.pairwise(bounds))
    ]
    used = {one.region_id for one in regions}
    for step in range(400):
        at = chance.randrange(len(regions))
        if chance.random() < 0.5 and at + 1 < len(regions):
            fresh = [merged(*regions[at : at + 2])]
            regions[at : at + 2] = fresh
        else:
            key = f"{regions[at].start_key}~{step:03}" if regions[at].start_key else f"!{step:03}"
            if not regions[at].contains(key):
                continue
            fresh = list(split_at(regions[at], key))
            regions[at : at + 1] = fresh
        assert not used & {one.region_id for one in fresh}
        used |= {one.region_id for one in fresh}
        names = [one.region_id for one in regions]
        assert names == sorted(names)
        check_ranges([RegionSpec(one.start_key, one.end_key) for one in regions])


def test_the_id_of_the_last_region_grows_slowly() -> None:
    """A table that grows at its end is split there again and again."""
    last, count = "12345678.0000", 0
    while len(last) <= ID_MAX:
        last, count = split_ids(last)[1], count + 1
    assert count > 4000
