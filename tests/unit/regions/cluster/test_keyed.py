"""A dict for many keys: it equals a dict at every size, and no key is lost when it is split."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regions.cluster.indexes.keyed import SPLIT_AT, Keyed

Names = Callable[..., str]


def filled(entries: int, name: Names = "t.{:07}-0".format) -> Keyed[int]:
    found: Keyed[int] = Keyed()
    for number in range(entries):
        found[name(number)] = number
    return found


@pytest.mark.parametrize("entries", [0, 1, SPLIT_AT - 1, SPLIT_AT, SPLIT_AT + 5])
def test_it_finds_every_key_at_every_size(entries: int) -> None:
    found = filled(entries)
    wanted = {f"t.{number:07}-0": number for number in range(entries)}
    assert found.is_split == (entries >= SPLIT_AT)
    assert len(found) == entries
    assert bool(found) == bool(entries)
    assert dict(found.items()) == wanted
    assert sorted(found) == sorted(found.keys()) == sorted(wanted)
    assert sorted(found.values()) == sorted(wanted.values())
    assert all(found[key] == found.get(key) == value for key, value in wanted.items())
    assert "t.9999999-0" not in found
    assert found.get("t.9999999-0") is None
    with pytest.raises(KeyError):
        found["t.9999999-0"]


def test_a_small_one_keeps_the_order() -> None:
    found = filled(3)
    assert found.pop("t.0000001-0") == 1
    found["t.0000001-0"] = 1
    assert list(found.values()) == [0, 2, 1]


Change = tuple[bool, int]


# Fails if the count is not kept when a key is set again, or removed.
@given(st.lists(st.tuples(st.booleans(), st.integers(SPLIT_AT - 20, SPLIT_AT + 20)), max_size=80))
def test_it_counts_what_it_has_after_any_changes(changes: list[Change]) -> None:
    found, wanted = CROWD, dict(CROWD.items())
    for is_there, number in changes:
        key = f"t.{number:07}-0"
        if is_there:
            found[key] = wanted[key] = number
        else:
            assert found.pop(key) == wanted.pop(key, None)
    assert (len(found), dict(found.items())) == (len(wanted), wanted)


CROWD: Keyed[int] = filled(SPLIT_AT)


def test_keys_of_any_length_are_kept() -> None:
    found = filled(SPLIT_AT)
    for key in ("", "a", "ab", "abc", "abcd", "größe"):
        found[key] = -1
        assert key in found
        del found[key]
        assert key not in found
    assert 5 not in found
    assert len(found) == SPLIT_AT


# Fails if the small dicts are as large as the one dict was, or if the last digits of the number choose the dict: all of
# them then have the same size, and those of a million regions were full in the same turn, which took 83 ms.
@pytest.mark.parametrize("name", ["t.{:07}-0".format, "7c1e09aa.{:04x}".format])
def test_the_dicts_are_small_and_of_different_sizes(name: Names) -> None:
    sizes = [len(part) for part in filled(2 * SPLIT_AT, name)._parts]
    assert max(sizes) < 2 * SPLIT_AT / 50
    assert len(set(sizes)) > 10


# Fails if the lowest bits of the hash choose the dict: its keys then have equal bits where a dict looks first, and half
# of the time of a cold take-over were searches.
def test_the_keys_of_a_dict_have_different_hashes() -> None:
    for part in filled(2 * SPLIT_AT)._parts:
        assert len({hash(key) % 128 for key in part}) > 64
