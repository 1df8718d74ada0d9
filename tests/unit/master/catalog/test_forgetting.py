"""The records of deleted tables are removed some time after their rows (MD-06)."""

from __future__ import annotations

from pathlib import Path

import pytest

from coord.rpc.wire import RpcError
from master.catalog import forgetting
from master.catalog.janitor import PRUNE_EVERY_MS
from master.settings import MasterSettings
from regions import messages as ms
from regions.records.acts.resharding import ReshardingRecord, ReshardingState
from regions.records.forgotten import ForgottenTables
from regions.records.model import RegionRecord, TabletState
from regions.records.znodes import decode_forgotten, encode
from tests.unit.master.active_fixture import LAYOUT
from tests.unit.master.catalog.test_purging import HOUR_S, Purger

KEPT_S = 7 * 86_400.0
PRUNE_S = PRUNE_EVERY_MS / 1000


@pytest.fixture
def bench(tmp_path: Path) -> Purger:
    return Purger(tmp_path, servers=2)


def purged(bench: Purger) -> None:
    """Delete the table, and let its rows be removed."""
    bench.delete()
    bench.go_on(HOUR_S)
    bench.go_on(1)
    bench.go_on(1)
    assert bench.table().purged_ms > 0


def pruned(bench: Purger) -> None:
    """Let the next round of the janitor pass."""
    for _ in range(4):
        bench.go_on(PRUNE_S / 2)
        bench.go_on(0.5)


def records(bench: Purger) -> list[str]:
    """Return the paths of the table's record, its directory and its regions."""
    directory = LAYOUT.table_regions("t")
    paths = (LAYOUT.table("t"), directory)
    return [path for path in bench.store.nodes if path in paths or path.startswith(f"{directory}/")]


def forgotten(bench: Purger) -> list[str]:
    path = LAYOUT.forgotten_ids("t")
    return sorted(decode_forgotten(bench.store.nodes[path][0]).purged_ms) if path in bench.store.nodes else []


def test_the_default_retention_is_a_week() -> None:
    assert MasterSettings(store="s:1", data_dir=Path("/none"), host="h", port=1).forget_after_s == KEPT_S


def test_records_are_kept_until_the_retention_is_over(bench: Purger) -> None:
    purged(bench)
    before = records(bench)
    assert len(before) == 3
    bench.go_on(KEPT_S - 4 * PRUNE_S)
    pruned(bench)
    assert records(bench) == before
    bench.go_on(4 * PRUNE_S)
    pruned(bench)
    assert (records(bench), forgotten(bench)) == ([], ["t"])
    [multi] = [ops for ops in bench.store.multis if any(op.path == LAYOUT.forgotten_ids("t") for op in ops)]
    assert {op.path for op in multi} >= {LAYOUT.table("t"), LAYOUT.table_regions("t")}, "one write ends them"


def test_a_table_that_still_has_rows_is_kept(bench: Purger) -> None:
    bench.delete()
    bench.answer = RpcError("unreachable", "no server removes the rows")
    before = records(bench)
    bench.go_on(2 * KEPT_S)
    pruned(bench)
    assert records(bench) == before
    assert forgotten(bench) == []


def test_beyond_the_limit_the_first_purged_tables_are_forgotten_early(
    bench: Purger, monkeypatch: pytest.MonkeyPatch
) -> None:
    purged(bench)
    monkeypatch.setattr(forgetting, "DELETED_KEPT_MAX", 1)
    pruned(bench)
    assert forgotten(bench) == [], "as many as may be kept"
    monkeypatch.setattr(forgetting, "DELETED_KEPT_MAX", 0)
    pruned(bench)
    assert forgotten(bench) == ["t"]


def test_the_next_round_finishes_what_was_cut_short(bench: Purger) -> None:
    purged(bench)
    del bench.store.nodes[LAYOUT.region("t", "t.0")]
    bench.go_on(KEPT_S)
    pruned(bench)
    assert (records(bench), forgotten(bench)) == ([], ["t"])


def test_a_new_table_never_gets_a_forgotten_id(bench: Purger) -> None:
    ids = iter([bytes.fromhex("deadbeef"), bytes.fromhex("deadbeef"), bytes.fromhex("01020304")])
    assert bench.active_master is not None
    bench.active_master.operations._token = lambda _size: next(ids)
    bench.store.put(LAYOUT.forgotten_ids("deadbeef"), encode(ForgottenTables({"deadbeef": 1})))
    made = bench.ask(ms.CreateTable("again", request_id="c-9"))
    assert made.tables[0].table.table_id == "01020304"


def test_records_of_replaced_regions_are_removed_when_nothing_needs_them(bench: Purger) -> None:
    """Those in use stay, and a parent whose files a split still has to remove.

    Taking away the look at the work under way removes `t.9` as well.
    """
    master = bench.active_master
    assert master is not None
    for name, state in (("t.7", TabletState.REPLACED), ("t.8", TabletState.RUNNING), ("t.9", TabletState.REPLACED)):
        bench.store.put(LAYOUT.region("t", name), encode(RegionRecord("t", name, "x", "y", state=state)))
    work = ReshardingRecord("t", ("t.9",), (), state=ReshardingState.CLEANING)
    master.assigner.reshardings.records = lambda: [work]  # type: ignore[method-assign]
    forgotten_tablets: list[str] = []
    master.keeper.forgotten = forgotten_tablets.append  # type: ignore[method-assign]
    directory = LAYOUT.table_regions("t")
    pruned(bench)
    assert LAYOUT.region("t", "t.7") in bench.store.nodes
    bench.go_on(KEPT_S)
    pruned(bench)
    assert sorted(one.rpartition("/")[2] for one in bench.store.nodes if one.startswith(f"{directory}/")) == [
        "t.0",
        "t.8",
        "t.9",
    ]
    assert forgotten_tablets == ["t.7"]
