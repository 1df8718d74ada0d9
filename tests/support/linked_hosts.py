"""Tablet hosts in one process, on the links of region servers: real sockets, real disks, real threads."""

from __future__ import annotations

import socket
from typing import Any

from coord.env_os import OsEntropy, OsRng
from coord.peers.guard import PeerGuard
from coord.peers.reactor import TurnReactor
from coord.peers.stream import listening_socket
from regionserver.tablets.links.links import TabletLinks
from tests.support.hosts_in_process import CLUSTER, START_MS, Machine

SECRET = b"0123456789abcdef"


class SharedReactor:
    """A TurnReactor for several hosts. A TurnReactor has room for only one function at the end of a turn, so this class
    replaces that function."""

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
