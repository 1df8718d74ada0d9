"""The cluster state: what readers may see while a table is added."""

from __future__ import annotations

from collections.abc import Iterator

from regions.cluster.state import ClusterState
from regions.records.model import RegionRecord, ReplicaLocation, ServerRecord, TableRecord
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
