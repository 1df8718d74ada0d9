"""The cluster state: what readers may see while a table is added, and the texts that its records share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

from coord.compiled import form
from regions.cluster.events import WriteDone
from regions.cluster.indexes.keyed import SPLIT_AT
from regions.cluster.state import ClusterState
from regions.messages import OpenOrder
from regions.records.model import (
    Incarnation,
    RegionRecord,
    RegionState,
    ReplicaLocation,
    ServerRecord,
    TableRecord,
    TransitionRecord,
)
from regions.records.znodes import decode_region, encode


def test_a_table_has_its_regions_before_it_has_a_name() -> None:
    """OC-07: a reader that finds the name finds all regions."""
    state = ClusterState()
    names: list[dict[str, object]] = []

    def regions() -> Iterator[tuple[RegionRecord, int]]:
        for number in range(3):
            names.append(dict(state.names))
            yield RegionRecord("t", f"t.{number}"), 0
        names.append(dict(state.names))

    table = state.put_table(TableRecord("t", "orders"), 0, regions())
    assert names == [{}] * 4
    assert state.names == {"orders": table}
    assert sorted(table.regions) == ["t.0", "t.1", "t.2"]


def test_regions_share_the_ids_of_their_table_and_server() -> None:
    """Each decoded record has texts of its own: some 200 bytes a region.

    Without `_share_texts` in `put_region`, or `shared` in `set_home`: the ids were other objects.
    """
    state = ClusterState()
    server = ServerRecord("a-server", "host", 1, 7)
    state.set_servers({server.uuid: server}, set())
    home = state.servers["a-server"].incarnation
    state.put_table(TableRecord("a-table", "orders"), 0)
    found = []
    for number in range(2):
        written = RegionRecord("a-table", f"a-table.{number}", replicas=(ReplicaLocation(0, "a-server", 7),))
        region = state.put_region(decode_region(encode(written)), 0)
        assert region is not None
        assert region.record == written
        state.set_home(region.replicas[0], region.record.replicas[0].incarnation)
        found.append(region)
    first, second = (region.record for region in found)
    assert first.table_id is second.table_id
    assert first.replicas[0].uuid is second.replicas[0].uuid
    for region in found:
        [replica] = region.replicas
        assert replica.home is home
        assert replica.last_uuid is home.uuid


# Fails if a new replica has a start of its server of its own: a cold takeover places all replicas in `put_region`.
def test_a_new_replica_shares_the_start_of_its_live_server() -> None:
    state = ClusterState()
    server = ServerRecord("a-server", "host", 1, 7)
    state.set_servers({server.uuid: server}, set())
    state.put_table(TableRecord("a-table", "orders", replication=3), 0)
    locations = (ReplicaLocation(0, "a-server", 7), ReplicaLocation(1, "a-server", 6))
    region = state.put_region(decode_region(encode(RegionRecord("a-table", "a-table.1", replicas=locations))), 0)
    assert region is not None
    alive, dead, closed = region.replicas
    assert alive.home is state.servers["a-server"].incarnation
    assert alive.last_uuid is server.uuid
    assert dead.home == Incarnation("a-server", 6)
    assert (closed.home, closed.last_uuid) == (None, None)
    assert [one.open_on for one in region.replicas] == [state.servers["a-server"], None, None]
    assert region.table.open_replicas == 1
    assert list(state.servers["a-server"].open) == [alive.key]


def test_a_record_that_is_read_again_shares_its_texts_with_the_former_one() -> None:
    """Each region is read again after its opening. Its id stays in the indexes, so a second text would stay, too.

    Without the former record in `_share_texts`: the id and the keys were other objects.
    """
    state = ClusterState()
    state.put_table(TableRecord("a-table", "orders"), 0)
    written = RegionRecord("a-table", "a-table.0", "from here", "to there")
    region = state.put_region(decode_region(encode(written)), 0)
    assert region is not None
    former = region.record
    opened = written.with_location(ReplicaLocation(0, "a-server", 7))
    assert state.put_region(decode_region(encode(opened)), 1) is region
    assert region.record == opened
    assert region.record.region_id is former.region_id
    assert region.record.start_key is former.start_key
    assert region.record.end_key is former.end_key


def test_a_record_with_other_keys_keeps_them() -> None:
    """A former record's keys are shared only if they are equal."""
    state = ClusterState()
    state.put_table(TableRecord("a-table", "orders"), 0)
    state.put_region(RegionRecord("a-table", "a-table.0", "from here", "to there"), 0)
    changed = RegionRecord("a-table", "a-table.0", "from there", "to the end")
    region = state.put_region(decode_region(encode(changed)), 1)
    assert region is not None
    assert (region.record.start_key, region.record.end_key) == ("from there", "to the end")


def test_a_region_shares_its_start_key_with_the_end_key_of_the_region_before_it() -> None:
    """Without `_share_key` in `put_region`: each key between two regions was in memory twice."""
    state = ClusterState()
    state.put_table(TableRecord("a-table", "orders"), 0)
    keys = ("", "one key", "two keys", "")
    found = []
    for number in range(3):
        written = RegionRecord("a-table", f"a-table.{number}", keys[number], keys[number + 1])
        region = state.put_region(decode_region(encode(written)), 0)
        assert region is not None
        assert region.record == written
        found.append(region.record)
    assert found[1].start_key is found[0].end_key
    assert found[2].start_key is found[1].end_key


def test_the_collector_of_garbage_does_not_visit_the_records_of_regions() -> None:
    """Without `gc=False`: a record with a tuple in it was visited by each collection."""
    number = 0
    incarnation = Incarnation("a-server", 7)
    transition = TransitionRecord(
        "a-table.0", "a-table", 0, RegionState.OPENED, destination=incarnation, took=(number,)
    )
    region = RegionRecord("a-table", "a-table.0", replicas=(ReplicaLocation(number, "a-server", 7),))
    records: list[object] = [incarnation, transition, region, OpenOrder(transition, 1, region, 1)]
    if form() == "compiled":
        records.append(WriteDone("a-table.0-0", 1))
    assert not any(gc.is_tracked(one) for one in records)


# Fails without `_share_locations`: each record then has a location of its own, 200 bytes with its numbers.
def test_regions_that_a_server_opened_together_share_their_location() -> None:
    state = ClusterState()
    state.set_servers({"s": ServerRecord("s", "host", 1, 70_000)}, set())
    state.put_table(TableRecord("t", "orders"), 0)

    def put(number: int, since_ms: int) -> RegionRecord:
        record = RegionRecord("t", f"t.{number}", replicas=(ReplicaLocation(0, "s", 70_000, since_ms, 9_000),))
        region = state.put_region(decode_region(encode(record)), 0)
        assert region is not None
        assert region.record == record
        return region.record

    first, second, third = put(1, 5_000), put(2, 5_000), put(3, 6_000)
    assert first.replicas is second.replicas
    assert third.replicas[0].start_code is state.servers["s"].incarnation.start_code
    assert put(1, 6_000).replicas is third.replicas


# Fails if `set_servers` goes through the index: its order is that of the hashes, so each look misses the caches.
def test_a_server_that_is_read_after_many_regions_gets_its_replicas_in_order() -> None:
    state = ClusterState()
    state.put_table(TableRecord("t", "orders"), 0)
    for number in range(SPLIT_AT):
        replicas = (ReplicaLocation(0, "s", 7),) if number < 10 else ()
        state.put_region(RegionRecord("t", f"t.{number}", replicas=replicas), 0)
    state.set_servers({"s": ServerRecord("s", "host", 1, 7)}, ())
    assert list(state.servers["s"].open) == [f"t.{number}-0" for number in range(10)]


def test_the_replicas_of_many_regions_are_looked_at_table_by_table() -> None:
    state = ClusterState()
    for table in ("t", "u"):
        state.put_table(TableRecord(table, table), 0)
    for number in range(SPLIT_AT):
        state.put_region(RegionRecord("tu"[number % 2], f"{'tu'[number % 2]}.{number}"), 0)
        if number == 3:
            assert [one.key for one in state.in_order()] == ["t.0-0", "u.1-0", "t.2-0", "u.3-0"]
    found = [one.key for one in state.in_order()]
    assert found == [f"{'tu'[odd]}.{number}-0" for odd in (0, 1) for number in range(odd, SPLIT_AT, 2)]


def test_a_replica_has_the_rare_fields_only_while_one_of_them_is_set() -> None:
    state = ClusterState()
    state.put_table(TableRecord("t", "orders"), 0)
    region = state.put_region(RegionRecord("t", "t.0"), 0)
    assert region is not None
    [replica] = region.replicas
    replica.move, replica.plan_id, replica.failure = None, "", None
    assert replica._work is None
    replica.move, replica.move_plan, replica.not_before_ms = "", "p1", 500
    assert (replica.move, replica.move_plan, replica.move_reason, replica.failed) == ("", "p1", "", None)
    replica.forget_work(600)
    assert replica.move == "", "a requested move was forgotten"
    replica.move = None
    replica.forget_work(400)
    assert replica.not_before_ms == 500, "the pause of an order was forgotten"
    replica.forget_work(500)
    assert replica._work is None
    replica.damage = (Incarnation("s", 7), "row 'b' is damaged")
    replica.forget_work(600)
    assert replica.damage is not None
