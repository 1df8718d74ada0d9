"""Views that search the history: one search at a time, the others in turn."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import Clock

from master.api import prepared
from master.page.feed import Feed
from master.page.views import SEARCHES_WAITING_MAX, Busy, Views
from regions.records.znodes import Layout
from tests.unit.master.page.fake_master import FakeMaster, cluster_of


class _SlowStore:
    """A session whose answers come when the test gives them: the history has no segment."""

    def __init__(self) -> None:
        self.asked: list[Deferred[list[str]]] = []

    def children(self, _path: str) -> Deferred[list[str]]:
        self.asked.append(Deferred())
        return self.asked[-1]


def test_searches_of_the_history_wait_for_each_other() -> None:
    """Two browsers that show a region both get its life; one too many is told to try again.

    Fails if a second search is refused, if it begins before the first has ended, and if any number may wait.
    """
    clock, store = Clock(), _SlowStore()
    master: Any = FakeMaster(clock, cluster_of(1))
    master.client = store
    views = Views(clock, master, Layout("/rk"), Feed(clock, master, lambda _feed: {}))
    found: list[Any] = []
    for _ in range(1 + SEARCHES_WAITING_MAX + 1):
        ensureDeferred(views.read("life", {"id": "r"})).addBoth(found.append)
    assert [one.type for one in found] == [Busy]
    for number in range(1 + SEARCHES_WAITING_MAX):
        assert len(store.asked) == number + 1
        store.asked[number].callback([])
    assert found[1:] == [{"steps": [], "is_complete": True}] * (1 + SEARCHES_WAITING_MAX)


@pytest.mark.parametrize("view", ["region", "table"])
def test_a_role_that_changes_while_keys_are_put_in_order_counts(view: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the former role's state is shown: a standby's view of a tablet ended in an assertion when it became
    active."""
    monkeypatch.setattr(prepared, "AT_ONCE", 2)
    clock = Clock()
    master: Any = FakeMaster(clock, cluster_of(6))
    views = Views(clock, master, Layout("/rk"), Feed(clock, master, lambda _feed: {}))
    region = next(iter(master.active_master.world.regions.values()))
    found: list[Any] = []
    given = {"id": region.record.region_id, "name": region.table.record.name}
    ensureDeferred(views.read(view, given)).addBoth(found.append)
    assert not found
    master.stand_by(None)
    while not found:
        clock.advance(0)
    assert [one.type for one in found] == [Busy]
