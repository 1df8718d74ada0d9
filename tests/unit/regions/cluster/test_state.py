"""The cluster state: what readers may see while a table is added."""

from __future__ import annotations

from collections.abc import Iterator

from regions.cluster.state import ClusterState
from regions.records.model import RegionRecord, TableRecord


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
