"""Members of tablets in the records, and fields of newer builds."""

from __future__ import annotations

import json

import msgspec
import pytest

from regions.records.members import ConfigId, Member, MemberRole, Storage
from regions.records.model import ClusterRecord, RegionRecord, ServerRecord, TableRecord
from regions.records.znodes import (
    CorruptZnode,
    decode_cluster,
    decode_region,
    decode_server,
    decode_table,
    encode,
)

THREE = tuple(Member(number, f"s{number}") for number in (1, 2, 3))
TABLET = RegionRecord("t", "r", members=THREE, next_number=4)


def test_a_tablet_in_json() -> None:
    """Members name their servers; voters need no role, and a restart of a server changes nothing."""
    record = TABLET.with_configuration(ConfigId(2, 9), (*THREE[:2], Member(3, "s3", MemberRole.LEARNER)))
    data = encode(record)
    assert json.loads(data)["members"] == [
        {"number": 1, "uuid": "s1"},
        {"number": 2, "uuid": "s2"},
        {"number": 3, "uuid": "s3", "role": "LEARNER"},
    ]
    assert decode_region(data) == record
    assert (record.is_tablet, str(record.config_id)) == (True, "2.9")
    assert record.member(4) is None


def test_records_of_earlier_builds_are_shared() -> None:
    """A table without the field keeps one copy of its rows in the shared directory."""
    table = decode_table(b'{"table_id":"t","name":"orders"}')
    assert (table.storage, table.is_tablet) == (Storage.SHARED, False)
    region = decode_region(b'{"table_id":"t","region_id":"r"}')
    assert (region.is_tablet, region.members) == (False, ())
    server = decode_server(b'{"uuid":"s","host":"h","port":1,"start_code":2}')
    assert (server.tablets, server.peer_port, server.disk_free) == (False, 0, 0)
    assert decode_server(encode(ServerRecord("s", "h", 1, 2, tablets=True, peer_port=7, disk_free=9))).tablets


@pytest.mark.parametrize("config_id", [ConfigId(0, 0), ConfigId(2, 8), ConfigId(2, 9), ConfigId(1, 100)])
def test_a_configuration_is_replaced_by_a_later_one_alone(config_id: ConfigId) -> None:
    """Reports arrive in any order: a lower or equal id changes nothing, for any members."""
    known = TABLET.with_configuration(ConfigId(2, 9), THREE)
    assert known.with_configuration(config_id, THREE[:1]) is known
    later = known.with_configuration(ConfigId(3, 1), THREE[:1])
    assert (later.members, later.config_id) == (THREE[:1], ConfigId(3, 1))


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ((Member(1, "a"), Member(1, "b")), "the same number"),
        ((Member(0, "a"),), "positive"),
        ((Member(4, "a"),), "never assigned"),
    ],
)
def test_members_that_cannot_be(members: tuple[Member, ...], reason: str) -> None:
    """Neither a caller nor a znode can set them: numbers are unique, and all were given."""
    with pytest.raises(ValueError, match=reason):
        TABLET.with_configuration(ConfigId(1, 1), members)
    value = {"table_id": "t", "region_id": "r", "members": msgspec.to_builtins(members), "next_number": 4}
    with pytest.raises(CorruptZnode, match=reason):
        decode_region(json.dumps(value).encode(), "/regions/t/r")


def test_fields_of_a_newer_build_survive_a_rewrite() -> None:
    """A master of this build renames a table: unknown fields stay."""
    newer = {"table_id": "t", "name": "orders", "copies_on_tape": {"site": "b", "since": [1, 2]}, "tier": "cold"}
    table = decode_table(json.dumps(newer).encode())
    renamed = msgspec.structs.replace(table, name="orders2", storage=Storage.TABLET)
    assert json.loads(encode(renamed)) == {**newer, "name": "orders2", "storage": "tablet"}
    assert decode_table(encode(renamed)) == renamed
    region = decode_region(b'{"table_id":"t","region_id":"r","pinned":true}')
    assert json.loads(encode(msgspec.structs.replace(region, unassigned=True))) == {
        "table_id": "t",
        "region_id": "r",
        "unassigned": True,
        "pinned": True,
    }
    cluster = decode_cluster(b'{"cluster_id":"c","format_version":9,"region_of_the_world":"eu"}')
    assert json.loads(encode(cluster))["region_of_the_world"] == "eu"


def test_the_place_of_unknown_fields_is_not_taken_from_a_znode() -> None:
    """A value with that very field would be written back wrongly."""
    with pytest.raises(CorruptZnode, match="newer"):
        decode_table(b'{"table_id":"t","name":"n","newer":"{"}')
    with pytest.raises(CorruptZnode, match="newer"):
        decode_table(b'{"table_id":"t","name":"n","tier":1,"newer":"{}"}')


def test_a_record_without_unknown_fields_has_none() -> None:
    """Other whitespace, or explicit defaults, are not unknown fields."""
    record = TableRecord("t", "n")
    assert decode_table(b'{ "name": "n", "table_id": "t", "replication": 1 }') == record
    assert decode_table(encode(record)) == record
    assert encode(ClusterRecord("c")) == b'{"cluster_id":"c"}'
