"""Moves through the API, and what becomes of them when servers die."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regions import messages as ms
from tests.unit.master.active_fixture import LAYOUT, Bench, LossyStore, lay_ground


def test_a_move_is_not_answered_while_the_region_is_open_nowhere(tmp_path: Path) -> None:
    """It was answered as done, with "is open on nowhere", when the servers died while it waited."""
    store = LossyStore()
    lay_ground(store, servers=2)
    on = Bench(tmp_path, store=store)
    on.hold_servers()
    results: list[Any] = []
    on.ask_into(ms.MoveRegion("t.0", destination="s2", wait_ms=600_000), results)
    on.go_on()
    for server in ("s1", "s2"):
        store.drop(LAYOUT.server(server))
        for _ in range(4):
            on.go_on(1.0)
    assert results == []
    on.ask_into(ms.SetRegionIntent("t.0", assigned=False), [])
    for _ in range(4):
        on.go_on(1.0)
    assert results == [ms.BAD_REQUEST], "the region was closed meanwhile"
