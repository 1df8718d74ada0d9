"""Paths and values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regions.records.model import Incarnation, RegionRecord, RegionState, ReplicaLocation, TransitionRecord
from regions.records.partitioning import RegionSpec, check_ranges, split_ranges
from regions.records.znodes import (
    SHARDS,
    CorruptZnode,
    Layout,
    RegionDecoder,
    check_table_name,
    decode_cluster,
    decode_name,
    decode_region,
    decode_transition,
    encode,
    shard,
)


@given(
    st.text(st.characters(codec="ascii", exclude_characters="/", categories=("L", "N", "P")), min_size=1),
    st.integers(0, 9),
)
def test_transition_path_round_trip(region_id: str, replica: int) -> None:
    """Ids with dashes included."""
    layout = Layout("/rk")
    path = layout.transition(region_id, replica)
    assert layout.parse_transition(path) == (region_id, replica)


def test_other_paths_are_no_transitions() -> None:
    layout = Layout()
    for path in (layout.unassigned, f"{layout.unassigned}/0a", f"{layout.unassigned}/0a/x", "/elsewhere/0a/r-0"):
        assert layout.parse_transition(path) is None


def test_parents_come_before_children() -> None:
    parents = Layout("/a/b").parents()
    assert parents[:3] == ["/a", "/a/b", "/a/b/masters"]
    assert len(parents) == 2 + 22 + 256
    assert shard("anything") in SHARDS
    assert Layout("").parents()[0] == "/masters"


def test_values_are_json_without_defaults() -> None:
    record = TransitionRecord("r", "t", 0, RegionState.OFFLINE, destination=Incarnation("s", 5), epoch=3)
    data = encode(record)
    assert data == (
        b'{"region_id":"r","table_id":"t","replica":0,"state":"OFFLINE","destination":{"uuid":"s","start_code":5},'
        b'"epoch":3}'
    )
    assert decode_transition(data) == record
    with pytest.raises(CorruptZnode, match="/here"):
        decode_region(b'{"table_id":1}', "/here")


def test_location_replaces_only_its_replica() -> None:
    record = RegionRecord("t", "r").with_location(ReplicaLocation(1, "b", 2)).with_location(ReplicaLocation(0, "a", 1))
    moved = record.with_location(ReplicaLocation(1, "c", 3))
    assert [one.uuid for one in moved.replicas] == ["a", "c"]
    assert moved.location(2).incarnation is None


def test_ranges() -> None:
    assert split_ranges([]) == [RegionSpec()]
    assert [(one.start_key, one.end_key) for one in split_ranges(["g", "p"])] == [("", "g"), ("g", "p"), ("p", "")]
    check_ranges(split_ranges(["a"]))
    for bad in (["b", "a"], ["a", "a"], [""]):
        with pytest.raises(ValueError):  # noqa: PT011 - three different messages
            split_ranges(bad)
    for specs in ([], [RegionSpec("", "b"), RegionSpec("c", "")], [RegionSpec("a", "")], [RegionSpec("", "b")]):
        with pytest.raises(ValueError):  # noqa: PT011
            check_ranges(specs)


@pytest.mark.parametrize("data", [b'{"cluster_id":"\xff"}', b'{"x":' * 20_000, b'["c"]', b'{"cluster_id":3}', b"null"])
def test_whatever_stands_there_is_understood_or_corrupt(data: bytes) -> None:
    """The decoder has other errors for invalid UTF-8 and for deeply nested lists."""
    with pytest.raises(CorruptZnode, match="/cluster"):
        decode_cluster(data)


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"a/b", b"a\n", b'{"a":1}', b"..", "\u00e9".encode()])
def test_a_name_that_stands_for_no_table_id_is_corrupt(data: bytes) -> None:
    """Another client has overwritten it; it must not be taken for the remains of an unfinished table."""
    assert decode_name(b"3f2a11c0") == "3f2a11c0"
    with pytest.raises(CorruptZnode, match="/names/x"):
        decode_name(data, "/names/x")


def test_table_names() -> None:
    check_table_name("orders.2026-eu")
    for bad in ("", "a/b", "..", "x" * 300, "tab\there", "zookeeper", "a:b"):
        with pytest.raises(ValueError, match="name"):
            check_table_name(bad)


# Fails if each record keeps a location of its own: a cold take-over decodes a million of them.
def test_decoded_regions_share_an_equal_location() -> None:
    decode = RegionDecoder().decode

    def decoded(*locations: ReplicaLocation) -> RegionRecord:
        written = RegionRecord("t", "t.1", replicas=locations)
        found = decode(encode(written), "/x")
        assert found == written
        return found

    first = decoded(ReplicaLocation(0, "s1", 70_000, 5_000, 9_000))
    other = decoded(ReplicaLocation(0, "s2", 70_000, 5_000, 9_000))
    assert decoded(ReplicaLocation(0, "s1", 70_000, 5_000, 9_000)).replicas is first.replicas
    assert decoded(ReplicaLocation(0, "s2", 70_000, 5_000, 9_000)).replicas is other.replicas
    decoded(ReplicaLocation(0, "s1", 70_000, 6_000, 9_000))
    decoded(ReplicaLocation(0, "s1", 70_000, 5_000, 9_000), ReplicaLocation(1, "s2", 70_000, 5_000, 9_000))
    decoded(ReplicaLocation(0))
    decoded()
