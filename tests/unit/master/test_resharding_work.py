"""The master's handling of orders, replies and rejected writes of splits and merges (X11)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import ensureDeferred, succeed

from master.resharding.work import ReshardingWork
from regions import messages as ms
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.records.acts.resharding import ReshardingRecord, ReshardingState
from regions.records.intents import TabletIntents, TabletMove
from regions.records.members import Member
from regions.records.model import RegionRecord, ServerRecord
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


class Intents:
    """The intents of one tablet."""

    def __init__(self) -> None:
        self.kept = TabletIntents("t", "t.1")

    async def change(self, changes: Any, _table_ids: Any) -> None:
        self.kept = changes["t.1"](self.kept)


@pytest.mark.parametrize("is_canceled", [False, True])
def test_an_order_to_move_a_member_for_a_merge_is_carried_out_once(is_canceled: bool) -> None:
    """A write may take so long that the assigner orders another move, or until the merge is canceled.

    Tried: without the checks two members move to one server, or a member moves for nothing.
    """
    intents, work = Intents(), None if is_canceled else MERGE
    context: Any = SimpleNamespace(
        assigner=SimpleNamespace(reshardings=SimpleNamespace(find=lambda _region_id: work)),
        keeper=SimpleNamespace(intents=intents),
        persist=lambda write: ensureDeferred(write()),
    )
    orders, moves = ReshardingWork(context, lambda _failure: None), [TabletMove("s4", "s1"), TabletMove("s5", "s1")]
    for move in moves:
        orders.carry_out(fx.AlignParents(MERGE, "t.1", move))
    assert list(intents.kept.moves) == ([] if is_canceled else moves[:1])


def test_a_leader_that_names_no_members_is_asked_again() -> None:
    """Its replica has failed since the seal. Tried: without the check the daughters have no members, for ever."""
    reply = ms.TabletSealed(ms.SealAnswer.DONE, 5)
    events: list[ev.Event] = []
    context: Any = SimpleNamespace(
        dispatcher=SimpleNamespace(seal_tablet=lambda _effect: succeed(reply)), handle_soon=events.append
    )
    orders = ReshardingWork(context, lambda _failure: None)
    order = fx.SealParent(MERGE, "t.0", ServerRecord("s1", "h", 1, 7))
    orders.carry_out(order)
    reply = ms.TabletSealed(ms.SealAnswer.DONE, 5, members=(Member(1, "s1"),))
    orders.carry_out(order)
    first, second = (one for one in events if isinstance(one, ev.ParentSealed))
    assert (first.error, first.is_final) == ("its leader has failed since it was sealed", False)
    assert (second.error, second.index, len(second.members)) == ("", 5, 1)
