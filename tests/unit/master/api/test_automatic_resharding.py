"""Splits by a table's settings: what the timer does with the answer to its request (X11)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.task import Clock

from coord.rpc.server import RpcError
from master.api.resharding import automatic, requests
from regions import messages as ms
from regions.assign.resharding.automatic import REFUSED_MS, SizeProposal
from regions.cluster.causes import Causes

NOW_MS = 5_000


def test_a_region_whose_accepted_split_is_canceled_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried: a request without a wait ends before the cancel, and the region is proposed again and again."""

    async def split(_master: object, request: ms.SplitRegion, _now_ms: int, _reason: str) -> None:
        if request.wait_ms:
            raise RpcError(ms.BAD_REQUEST, "the split of t.0 was canceled")

    monkeypatch.setattr(requests, "split", split)
    clock = Clock()
    master: Any = SimpleNamespace(
        is_over=False,
        may_act=True,
        guarded=lambda act: act(),
        applying=SimpleNamespace(running=lambda: ""),
        assigner=SimpleNamespace(causes=Causes(1), reshardings=SimpleNamespace(begun=0), world=None),
    )
    timer = automatic.AutomaticResharding(clock, master, lambda: NOW_MS)
    monkeypatch.setattr(timer._decision, "step", lambda *_: [SizeProposal(("t.0",), "it is large")])
    timer.start()
    clock.advance(automatic.TICK_S)
    assert timer._decision._refused == {("t.0",): NOW_MS + REFUSED_MS}
