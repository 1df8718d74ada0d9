"""Requests for splits and merges: what is refused at once, and what a client asks for again (X11)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.python.failure import Failure

from coord.rpc.server import RpcError
from master.api.resharding import requests
from regions import messages as ms
from regions.cluster.state import ClusterState
from regions.records.members import Storage
from regions.records.model import RegionRecord, TableRecord


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
