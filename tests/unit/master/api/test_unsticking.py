"""N11: a step of `rk unstick` is taken exactly as it was shown, or not at all, and leaves a record for its undo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from twisted.internet.defer import ensureDeferred
from twisted.python.failure import Failure

from coord.client.ops import Check
from coord.rpc.server import RpcError
from regions import messages as ms
from regions.records.acts.undo import UNDO_RECORDS_MAX, Remedy, UndoRecord
from regions.records.model import (
    Incarnation,
    RegionRecord,
    RegionState,
    ReplicaLocation,
    ServerRecord,
    TransitionRecord,
)
from regions.records.znodes import decode_region, decode_undo, encode
from tests.unit.master.active_fixture import LAYOUT, Bench, LossyStore, lay_ground

REGION = LAYOUT.region("t", "t.0")
TRANSITION = LAYOUT.transition("t.0", 0)
PARKED = TransitionRecord(
    "t.0", "t", 0, RegionState.OFFLINE, None, None, epoch=4, attempt=8, parked=True, last_error="boom"
)


def bench(folder: Path, *, unassigned: bool = False, parked: bool = False) -> Bench:
    """Return a master with one region: open on s1, unassigned, or parked; its server does nothing."""
    store = LossyStore()
    lay_ground(store, servers=2)
    if unassigned:
        store.put(REGION, encode(RegionRecord("t", "t.0", replicas=(ReplicaLocation(0, "s1"),), unassigned=True)), 3)
    if parked:
        store.put(REGION, encode(RegionRecord("t", "t.0", "", "m", replicas=(ReplicaLocation(0, "s1"),))), 3)
        other = RegionRecord("t", "t.1", "m", replicas=(ReplicaLocation(0, "s1", 7),))  # so this is not a startup
        store.put(LAYOUT.region("t", "t.1"), encode(other))
        store.put(TRANSITION, encode(PARKED), 6)
    found = Bench(folder, store=store)
    found.hold_servers()
    return found


def asked(on: Bench, request: ms.MasterRequest) -> Any:
    """Return the reply, or the text of its RpcError."""
    found: list[Any] = []

    def came(result: Any) -> None:
        if isinstance(result, Failure):
            assert isinstance(result.value, RpcError), result.getTraceback()
            result = result.value.message
        found.append(result)

    ensureDeferred(on.api.dispatch(request)).addBoth(came)
    on.go_on()
    on.go_on()
    return found[0] if found else None


def version(on: Bench, path: str) -> int:
    return on.store.nodes[path][1] if path in on.store.nodes else -1


def shown(on: Bench, start_code: int = 0) -> ms.Shown:
    return ms.Shown(version(on, REGION), version(on, TRANSITION), start_code)


def records(on: Bench) -> list[UndoRecord]:
    below = sorted(path for path in on.store.nodes if path.startswith(f"{LAYOUT.undo}/"))
    return [decode_undo(on.store.nodes[path][0]) for path in below]


def server_event(on: Bench) -> None:
    """Deliver an event of the servers' directory to the master."""
    for watched, callback in list(on.store.persistent):
        if watched == LAYOUT.servers:
            callback(1, LAYOUT.server("s1"), 0)
    on.go_on()


def request(on: Bench, action: Remedy, server: str = "", start_code: int = 0) -> ms.UnstickRegion:
    return ms.UnstickRegion("t.0", 0, action, shown(on, start_code), server, "ada@here", "it hangs")


def undo_of(record: UndoRecord, on: Bench, **more: Any) -> ms.UndoUnstick:
    return ms.UndoUnstick(record.undo_id, version(on, LAYOUT.undo_record(record.undo_id)), **more)


def unchanged(on: Bench, act: Any) -> str:
    """Return the refusal of `act()`, which must leave every znode as it is."""
    before = {path: value for path, value in on.store.nodes.items() if not path.startswith(LAYOUT.history)}
    refusal = act()
    after = {path: value for path, value in on.store.nodes.items() if not path.startswith(LAYOUT.history)}
    assert after == before
    assert isinstance(refusal, str), refusal
    assert refusal.startswith("nothing was done"), refusal
    return refusal


# --- as it was shown --------------------------------------------------------------------------------------------------


def test_an_assignment_is_one_multi_with_its_record(tmp_path: Path) -> None:
    on = bench(tmp_path, unassigned=True)
    wanted = request(on, Remedy.ASSIGN)
    assert asked(on, wanted).detail == "t.0 is assigned"
    [multi] = [ops for ops in on.store.multis if any(op.path.startswith(f"{LAYOUT.undo}/") for op in ops)]
    assert {op.path for op in multi} >= {REGION}
    assert Check(REGION, 3) in multi
    assert not decode_region(on.store.nodes[REGION][0]).unassigned
    [record] = records(on)
    assert (record.action, record.by, record.why, record.region_version) == (Remedy.ASSIGN, "ada@here", "it hangs", 4)
    assert TRANSITION in on.store.nodes, "the region is being opened"


def test_a_retry_is_taken_and_recorded(tmp_path: Path) -> None:
    on = bench(tmp_path, parked=True)
    assert asked(on, request(on, Remedy.RETRY)).detail == "retrying t.0-0"
    assert [one.action for one in records(on)] == [Remedy.RETRY]
    on.go_on(1.0)
    assert version(on, TRANSITION) > 6, "the master has taken the step of the retry"


def test_a_fence_is_taken_and_its_record_has_the_replicas(tmp_path: Path) -> None:
    on = bench(tmp_path)
    assert asked(on, request(on, Remedy.FENCE, "s1", 7)).detail.startswith("s1 is fenced")
    [record] = records(on)
    assert (record.server, record.replicas) == (Incarnation("s1", 7), {"t.0-0": 0})
    assert LAYOUT.server("s1") not in on.store.nodes


# --- what has changed meanwhile ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", [Remedy.ASSIGN, Remedy.RETRY, Remedy.FENCE])
def test_nothing_is_done_if_the_regions_record_has_changed(tmp_path: Path, action: Remedy) -> None:
    on = bench(tmp_path, unassigned=action is Remedy.ASSIGN, parked=action is Remedy.RETRY)
    fence = ("s1", 7) if action is Remedy.FENCE else ("", 0)
    wanted = request(on, action, *fence)
    data, at, owner = on.store.nodes[REGION]
    on.store.put(REGION, data, at + 1, owner)
    refusal = unchanged(on, lambda: asked(on, wanted))
    assert f"the record of region t.0 was shown at version {at} and is at version {at + 1}" in refusal


def test_nothing_is_done_if_the_transition_has_changed(tmp_path: Path) -> None:
    on = bench(tmp_path, parked=True)
    wanted = request(on, Remedy.RETRY)
    on.store.put(TRANSITION, encode(msgspec.structs.replace(PARKED, attempt=2)), 7)
    assert "its transition was shown at version 6 and is at version 7, OFFLINE now" in unchanged(
        on, lambda: asked(on, wanted)
    )


def test_nothing_is_done_if_a_transition_has_begun(tmp_path: Path) -> None:
    on = bench(tmp_path)
    wanted = request(on, Remedy.FENCE, "s1", 7)
    on.store.put(TRANSITION, encode(PARKED))
    assert "its transition exists now" in unchanged(on, lambda: asked(on, wanted))


def test_a_server_that_has_restarted_is_not_fenced(tmp_path: Path) -> None:
    on = bench(tmp_path)
    wanted = request(on, Remedy.FENCE, "s1", 7)
    on.store.put(LAYOUT.server("s1"), encode(ServerRecord("s1", "h", 2, 8)))
    assert "server s1 has restarted: start 7 was shown, start 8 is running" in unchanged(on, lambda: asked(on, wanted))
    del on.store.nodes[LAYOUT.server("s1")]
    assert "server s1 is not registered any more" in unchanged(on, lambda: asked(on, wanted))


@pytest.mark.parametrize("action", [Remedy.ASSIGN, Remedy.FENCE])
def test_a_write_between_the_masters_read_and_its_multi_is_noticed(tmp_path: Path, action: Remedy) -> None:
    """The store checks the versions, so nothing depends on what the master has read."""
    on = bench(tmp_path, unassigned=action is Remedy.ASSIGN)
    wanted = request(on, action, *(("s1", 7) if action is Remedy.FENCE else ()))
    multi = on.store.multi

    def raced(operations: list[Any]) -> Any:
        if any(op.path.startswith(f"{LAYOUT.undo}/") for op in operations):
            on.store.multi = multi  # type: ignore[method-assign]
            data, at, owner = on.store.nodes[REGION]
            on.store.put(REGION, data, at + 1, owner)
        return multi(operations)

    on.store.multi = raced  # type: ignore[method-assign]
    assert f"{REGION} was written at the same moment" in asked(on, wanted)
    assert records(on) == []
    assert decode_region(on.store.nodes[REGION][0]).unassigned == (action is Remedy.ASSIGN)
    assert LAYOUT.server("s1") in on.store.nodes


def test_an_action_that_does_not_fit_the_state_is_refused(tmp_path: Path) -> None:
    on = bench(tmp_path)
    for action in (Remedy.RETRY, Remedy.ASSIGN, Remedy.NOTHING, Remedy.FENCE):
        unchanged(on, lambda action=action: asked(on, request(on, action)))


# --- undo -------------------------------------------------------------------------------------------------------------


def test_an_assignment_is_undone_once(tmp_path: Path) -> None:
    on = bench(tmp_path, unassigned=True)
    asked(on, request(on, Remedy.ASSIGN))
    [record] = records(on)
    undo = undo_of(record, on, region_version=version(on, REGION))
    assert asked(on, undo).detail == "t.0 is unassigned again, and closes"
    assert decode_region(on.store.nodes[REGION][0]).unassigned
    assert records(on)[0].undone_ms > 0
    assert "was used" in unchanged(on, lambda: asked(on, undo))


def test_the_undo_of_an_assignment_is_refused_when_the_region_has_changed(tmp_path: Path) -> None:
    on = bench(tmp_path, unassigned=True)
    asked(on, request(on, Remedy.ASSIGN))
    [record] = records(on)
    data, at, owner = on.store.nodes[REGION]
    undo = undo_of(record, on, region_version=at)
    on.store.put(REGION, data, at + 1, owner)
    assert "the region's record was written" in unchanged(on, lambda: asked(on, undo))
    on.store.put(REGION, data, at + 2, owner)
    assert "has been written 1 more time since" in unchanged(on, lambda: asked(on, undo))


def test_the_undo_of_a_fence_moves_the_regions_back(tmp_path: Path) -> None:
    on = bench(tmp_path)
    asked(on, request(on, Remedy.FENCE, "s1", 7))
    [record] = records(on)
    assert on.active_master is not None
    on.store.put(REGION, encode(RegionRecord("t", "t.0", replicas=(ReplicaLocation(0, "s2", 7),))), 1)
    replica, world = on.active_master.world.replicas["t.0-0"], on.active_master.world
    world.set_home(replica, Incarnation("s2", 7))
    undo = undo_of(record, on, replicas=("t.0-0",))
    server_event(on)
    assert "has not registered again" in unchanged(on, lambda: asked(on, undo))
    on.store.put(LAYOUT.server("s1"), encode(ServerRecord("s1", "h", 2, 8)))
    server_event(on)
    unchanged(on, lambda: asked(on, undo_of(record, on, replicas=("t.0-0", "t.9-0"))))
    assert asked(on, undo).detail == "1 regions move back to s1"
    assert any(op.path.startswith(LAYOUT.moves) for ops in on.store.multis for op in ops)
    assert Check(REGION, 1) in [op for ops in on.store.multis for op in ops]


def test_the_oldest_records_are_deleted(tmp_path: Path) -> None:
    on = bench(tmp_path, unassigned=True)
    for number in range(UNDO_RECORDS_MAX):
        old = UndoRecord(f"{number:013d}-t.0-0", Remedy.RETRY, "t", "t.0", 0, number)
        on.store.put(LAYOUT.undo_record(old.undo_id), encode(old))
    asked(on, request(on, Remedy.ASSIGN))
    kept = records(on)
    assert len(kept) == UNDO_RECORDS_MAX
    assert (kept[0].at_ms, kept[-1].action) == (1, Remedy.ASSIGN)
