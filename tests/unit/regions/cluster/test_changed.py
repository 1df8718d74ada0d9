"""Which transitions the active master reads after events of its watch."""

from __future__ import annotations

from coord.wire.records import EVENT_CREATED, EVENT_DATA_CHANGED, EVENT_DELETED
from regions.cluster.reads.changed import ChangedTransitions
from regions.cluster.state import ClusterState
from regions.records.model import RegionRecord, RegionState, TableRecord, TransitionRecord
from regions.transitions.states import Cause

OFFLINE = TransitionRecord("t.0", "t", 0, RegionState.OFFLINE)


def test_own_writes_are_not_read_and_tablets_are_left_to_the_keeper() -> None:
    """Without the own writes, half of the events of an opening need no read. (Edit: `is_own_write` returns False.)"""
    state = ClusterState()
    state.put_table(TableRecord("t", "orders"), 0, [(RegionRecord("t", f"t.{number}"), 0) for number in range(2)])
    state.begin_write(state.replicas["t.0-0"], Cause.ASSIGN, OFFLINE)
    changed = ChangedTransitions()
    kinds = (EVENT_CREATED, EVENT_DATA_CHANGED, EVENT_DELETED)
    names = ("07/t.0-0", "07/t.1-0", "07", "07/u.0-2", "07/x.0-0")

    def see(kind: int) -> list[tuple[int, str, int]]:
        return changed.see([(kind, f"/un/{name}", 5) for name in names], "/un", state, {"u.0"}, 0)

    assert [see(kind) for kind in kinds] == [[(kind, "u.0", 2)] for kind in kinds]
    assert changed.take(9) == ["t.1-0", "x.0-0", "t.0-0"]
    see(EVENT_CREATED)
    assert changed.take(9) == ["t.1-0", "x.0-0"], "t.0 was created by the master itself"
    assert not changed.queued
