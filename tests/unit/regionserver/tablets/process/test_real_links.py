"""Three hosts on the links of region servers: real sockets, real disks, real threads."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from coord.env_os import OsEntropy, OsRng
from coord.peers.guard import PeerGuard
from coord.peers.reactor import TurnReactor
from coord.peers.stream import listening_socket
from regionserver.tablets.host.requests import Fate
from regionserver.tablets.links.links import TabletLinks
from tests.support.hosts_in_process import CLUSTER, START_MS, Cluster, Machine
from tests.support.reactors import in_reactor

SECRET = b"0123456789abcdef"


class SharedReactor:
    """A TurnReactor for several hosts. It has room for only one function at the end of a turn, so this class replaces
    it."""

    def __init__(self, reactor: TurnReactor) -> None:
        self._reactor = reactor

    def __getattr__(self, name: str) -> Any:
        if name == "at_turn_end":
            raise AttributeError(name)
        return getattr(self._reactor, name)


class LinkedMachine(Machine):
    """A server with real links; its peer port changes with each start."""

    links: TabletLinks

    def make_links(self) -> TabletLinks:
        self.listening: socket.socket = listening_socket("127.0.0.1", 0)
        self.links = TabletLinks(
            self.wires.reactor,
            cluster=CLUSTER,
            server=self.uuid,
            start_code=START_MS + self.starts,
            address=("127.0.0.1", self.listening.getsockname()[1]),
            rng=OsRng(),
            guard=PeerGuard(OsEntropy().token, secret=SECRET),
        )
        return self.links

    def started(self) -> None:
        self.links.start(self.running(), self.listening)
        for other in self.wires.machines.values():
            if isinstance(other, LinkedMachine) and other is not self and other.host is not None:
                self.links.learn(other.uuid, ("127.0.0.1", other.listening.getsockname()[1]))

    def lose_links(self) -> None:
        self.links.stop()


def test_elect_write_lose_a_leader_and_take_it_back(tmp_path: Path) -> None:
    async def main(reactor: Any) -> None:
        cluster = Cluster(SharedReactor(reactor), tmp_path, machine=LinkedMachine)
        cluster.start()
        await cluster.make(["t", "u"])
        await cluster.put("t", "a", b"1")
        await cluster.put("u", "a", bytes(1_000_000))
        former = await cluster.leader("t")
        await former.stop()
        assert await cluster.get("t", "a") == b"1"
        answer = await cluster.put("t", "a", b"2")
        # On another port: it dials its peers, and announces its address.
        former.start()
        found = await former.running().read("t", lambda rows: rows.values([b"a"])[0], at_least=answer.index)
        while found.fate is not Fate.DONE:
            found = await former.running().read("t", lambda rows: rows.values([b"a"])[0], at_least=answer.index)
        assert found.value == b"2"
        await cluster.stop()

    in_reactor(main, make=TurnReactor)
