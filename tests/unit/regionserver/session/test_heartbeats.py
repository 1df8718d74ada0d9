"""Which masters get a server's heartbeats, and when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock

from regions.messages.heartbeat import HeartbeatReply, ServerFigures
from regions.records.model import MasterRecord, ServerRecord
from regions.records.znodes import Layout, encode
from regionserver.replica.effects import Key
from regionserver.session import heartbeats
from regionserver.session.heartbeats import HeartbeatSender
from regionserver.session.master_link import HeartbeatState

PATHS = Layout("/rk")
#: Address of each master, and whether it leads.
MASTERS = {("m", 1): True, ("m", 2): False, ("static", 3): False}


class Store:
    """A session with a store in which the masters with the host `m` are registered."""

    def add_watch(self, _path: str, _callback: object, *, recursive: bool) -> Deferred[None]:
        assert recursive
        return succeed(None)

    async def children(self, path: str) -> list[str]:
        assert path == PATHS.masters
        return [str(port) for host, port in MASTERS if host == "m"]

    async def get(self, path: str) -> tuple[bytes, None]:
        name = path.rpartition("/")[2]
        return encode(MasterRecord(f"m{name}", "m", int(name), 1)), None


class Source:
    """A server without replicas."""

    def heartbeat_state(self) -> HeartbeatState:
        return HeartbeatState("c", ServerRecord("s1", "h", 1, 7), 3, ServerFigures(0), lambda _: None, list)

    def take_changed(self) -> list[Key]:
        return []

    def rates(self) -> Mapping[Key, float]:
        return {}

    def learn_epoch(self, epoch: int) -> int:
        return epoch

    def heartbeat_ended(self, *, is_answered: bool) -> None:
        assert is_answered


def test_every_master_gets_a_heartbeat_in_each_period(monkeypatch: pytest.MonkeyPatch) -> None:
    """HB-06: the one that leads, a standby, and one that is not in the store.

    Fails if a tick leaves out masters that have answered as standbys.
    """
    sent: list[tuple[str, int]] = []

    class Client:
        def __init__(self, _reactor: object, host: str, port: int) -> None:
            self.address = (host, port)

        def call(self, _beat: object, _timeout_s: float, *, expect: type) -> Deferred[HeartbeatReply]:
            assert expect is HeartbeatReply
            sent.append(self.address)
            return succeed(HeartbeatReply("c", f"m{self.address[1]}", 1, MASTERS[self.address], 3))

        def close(self) -> None:
            """Nothing is open."""

    monkeypatch.setattr(heartbeats, "RpcClient", Client)
    clock: Any = Clock()
    store: Any = Store()
    sender = HeartbeatSender(clock, store, PATHS, Source(), period_s=1.0, static=[("static", 3)])
    sender.start()
    clock.pump([0.1] * 5)
    for _ in range(3):
        sent.clear()
        clock.advance(1.0)
        assert sorted(sent) == sorted(MASTERS)
    sender.stop()
    assert not clock.getDelayedCalls()
