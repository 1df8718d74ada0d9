"""Requests for splits and merges: what is refused at once, and what a client asks for again (X11)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred, fail, succeed
from twisted.python.failure import Failure

from coord.errors import ConnectionLoss
from coord.rpc.server import RpcError
from master.api.resharding import requests
from master.catalog.locks import LockTable, Rank
from regions import messages as ms
from regions.cluster.state import ClusterState
from regions.records.formats import KNOWN
from regions.records.members import Storage
from regions.records.model import RegionRecord, TableRecord
from regions.records.znodes import Layout


def _refusal(waiting: Deferred[Any]) -> RpcError:
    found: list[Failure] = []
    waiting.addErrback(found.append)
    assert isinstance(found[0].value, RpcError)
    return found[0].value


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (ms.SplitRegion("t.0", "x"), "'x' is not in region t.0"),
        (ms.SplitRegion("t.1", "m"), "'m' is the first key of region t.1"),
        (ms.MergeRegions("t.0", "t.2"), "their key ranges do not touch"),
    ],
)
def test_what_no_wait_can_change_is_refused_first(request_: Any, words: str) -> None:
    """The regions take part in another split, whose end a client would wait for.

    Tried: with the checks in the other order the test fails, because the store is asked first.
    """
    world = ClusterState()
    records = (
        RegionRecord("t", "t.0", end_key="m"),
        RegionRecord("t", "t.1", start_key="m", end_key="p"),
        RegionRecord("t", "t.2", start_key="p"),
    )
    world.put_table(TableRecord("t", "rows", storage=Storage.SHARED), 0, [(one, 0) for one in records])
    for region in world.regions.values():
        region.resharding = "t.0"
    master: Any = SimpleNamespace(
        assigner=SimpleNamespace(world=world, reshardings=SimpleNamespace(find=lambda _region_id: None))
    )
    ask = requests.split if isinstance(request_, ms.SplitRegion) else requests.merge
    error = _refusal(ensureDeferred(ask(master, request_, 0)))
    assert error.code == ms.BAD_REQUEST
    assert words in error.message


def test_regions_stay_locked_until_it_is_known_whether_the_work_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a split of the right region begins beside the merge, when the connection to the store is back.

    Tried: if the record is read in the background, the regions are free at once.
    """
    monkeypatch.setattr(requests.store, "format_in_force", lambda _fence: succeed(KNOWN))
    world, locks = ClusterState(), LockTable()
    records = RegionRecord("t", "t.0", end_key="m"), RegionRecord("t", "t.1", start_key="m")
    world.put_table(TableRecord("t", "rows", storage=Storage.SHARED), 0, [(one, 0) for one in records])
    reading: Deferred[None] = Deferred()
    parents = SimpleNamespace(objection_now=lambda _region: "", objection_to_pair=lambda _left, _right: "")
    reshardings = SimpleNamespace(find=lambda _region_id: None, parents_of=lambda _table: parents)
    master: Any = SimpleNamespace(
        assigner=SimpleNamespace(world=world, reshardings=reshardings),
        fence=SimpleNamespace(layout=Layout("/rk"), epoch=1, write=lambda _ops: fail(ConnectionLoss())),
        operations=SimpleNamespace(locks=locks),
        resharding=SimpleNamespace(read=lambda _record: reading),
        retry_write=lambda write: write(),
        persist=lambda write: write(),
    )
    failed: list[Failure] = []
    ensureDeferred(requests.merge(master, ms.MergeRegions("t.0", "t.1"), 0)).addErrback(failed.append)
    assert [locks.is_locked(Rank.REGION, one) for one in ("t.0", "t.1")] == [True, True]
    reading.callback(None)
    assert len(locks) == 0
    assert isinstance(failed[0].value, ConnectionLoss)
