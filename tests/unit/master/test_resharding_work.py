"""What the master reads again when the store has refused a write about a split or merge (X11)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from twisted.internet.defer import ensureDeferred, succeed

from master.resharding.work import ReshardingWork
from regions.cluster import events as ev
from regions.records.acts.resharding import ReshardingRecord, ReshardingState
from regions.records.model import RegionRecord
from regions.records.znodes import Layout, encode
from tests.unit.master.fake_store import FakeStore

LAYOUT = Layout("/rk")
LEFT, RIGHT = RegionRecord("t", "t.0", end_key="m"), RegionRecord("t", "t.1", start_key="m")
MERGE = ReshardingRecord("t", ("t.0", "t.1"), (RegionRecord("t", "t.0M"),), ReshardingState.CLOSING)


def test_each_record_is_passed_on_before_the_next_reply() -> None:
    """A region's record that waits for another reply may be old by then: it would bring back a replaced region."""
    store = FakeStore()
    store.put(LAYOUT.region("t", "t.0"), encode(LEFT), 3)
    store.put(LAYOUT.region("t", "t.1"), encode(RIGHT), 5)
    store.put(LAYOUT.resharding("t.0"), encode(MERGE), 2)
    events: list[ev.Event] = []
    context: Any = SimpleNamespace(
        fence=SimpleNamespace(layout=LAYOUT, client=store),
        operations=SimpleNamespace(refresh_table=lambda _table_id: succeed(None)),
        handle_soon=events.append,
    )
    ensureDeferred(ReshardingWork(context, lambda _failure: None).read(MERGE))
    after_each: list[list[str]] = []
    while store.waiting:
        before = len(events)
        store.answer(1)
        after_each.append([type(one).__name__ for one in events[before:]])
    assert after_each == [["RegionSeen", "RegionSeen"], ["TransitionRead"], ["TransitionRead"], ["ReshardingSeen"]]
