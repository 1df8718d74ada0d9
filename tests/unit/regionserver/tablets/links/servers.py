"""Several TabletLinks with real sockets in one reactor, and foreign processes."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from typing import Any

from coord.errors import RemoteProtocolError
from coord.peers.guard import PeerGuard
from coord.peers.reactor import TurnReactor
from coord.peers.stream import listening_socket
from regionserver.tablets.host.envelope import BeatFrame, Header, TurnFrame, encode_beat
from regionserver.tablets.links.links import TabletLinks
from tests.support.store_nodes import SeededRng

CLUSTER = "c" * 32
SECRET = b"0123456789abcdef"
#: Time limit of steps that take milliseconds on an idle machine.
DEADLINE_S = 30.0


def guard(secret: bytes = SECRET) -> PeerGuard:
    return PeerGuard(SeededRng(7).token, secret=secret)


class Machine:
    """One reactor that the test turns, with the servers on it."""

    def __init__(self) -> None:
        self.reactor = TurnReactor()
        self.reactor.seconds = time.monotonic
        self.faults: list[Exception] = []
        self.reactor.at_fault(self.faults.append)
        self.servers: list[Server] = []
        self.sockets: list[socket.socket] = []

    def server(self, name: str, **more: Any) -> Server:
        server = Server(self, name, **more)
        self.servers.append(server)
        return server

    def turn(self) -> None:
        self.reactor.runUntilCurrent()
        self.reactor.doPoll(0.002)
        assert not self.faults, self.faults

    def until(self, holds: Callable[[], object], what: str) -> None:
        """Run turns until `holds` returns a truthy value."""
        end = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < end, f"not within {DEADLINE_S} s: {what}"
            self.turn()

    def turns(self, count: int = 30) -> None:
        """Run some turns in which a forbidden event could happen."""
        for _ in range(count):
            self.turn()

    def stranger(self, server: Server) -> socket.socket:
        """Open a connection to a server's peer port without a hello."""
        sock = socket.create_connection(server.address)
        sock.setblocking(False)
        self.sockets.append(sock)
        return sock

    def is_closed(self, sock: socket.socket) -> bool:
        """Return True if the other end has closed; replies are read and dropped."""
        with contextlib.suppress(BlockingIOError):
            try:
                while sock.recv(1 << 16):
                    pass
            except ConnectionError:
                return True
            return True
        return False

    def stop(self) -> None:
        for server in self.servers:
            server.links.stop()
        for sock in self.sockets:
            sock.close()
        for call in self.reactor.getDelayedCalls():
            call.cancel()


class Server:
    """The links of one server, and their reports."""

    def __init__(
        self,
        machine: Machine,
        name: str,
        *,
        start_code: int = 1,
        cluster: str = CLUSTER,
        secret: bytes | None = SECRET,
        guarded: PeerGuard | None = None,
    ) -> None:
        self.machine = machine
        self.name = name
        self.cluster = cluster
        self.start_code = start_code
        self.listening = listening_socket("127.0.0.1", 0)
        host, port = self.listening.getsockname()
        self.address = (host, port)
        self.events: list[tuple[str, str, int]] = []
        self.frames: list[tuple[str, TurnFrame | BeatFrame]] = []
        self.refuses_frames = False
        self.links = TabletLinks(
            machine.reactor,
            cluster=cluster,
            server=name,
            start_code=start_code,
            address=self.address,
            rng=SeededRng(start_code),
            guard=guarded or (guard(secret) if secret is not None else None),
        )
        self.links.start(self, self.listening)

    def peer_introduced(self, server: str, start_code: int) -> None:
        self.events.append(("introduced", server, start_code))

    def peer_lost(self, server: str, start_code: int) -> None:
        self.events.append(("lost", server, start_code))

    def peer_frame(self, server: str, frame: TurnFrame | BeatFrame) -> None:
        if self.refuses_frames:
            raise RemoteProtocolError("the host does not like this frame")
        self.frames.append((server, frame))

    def numbers(self, server: str) -> list[int]:
        """Return the numbers of the BEATs from `server`."""
        return [frame.number for name, frame in self.frames if name == server and isinstance(frame, BeatFrame)]

    def knows(self, *others: Server) -> None:
        for other in others:
            self.links.learn(other.name, other.address)

    def beat(self, to: str, number: int) -> bool:
        sent = self.links.send(to, self.frame(to, number))
        self.links.flush()
        return sent

    def frame(self, to: str, number: int = 1, **more: Any) -> bytes:
        header = Header(**{
            "cluster": self.cluster, "sender": self.name, "start_code": self.start_code, "recipient": to, **more
        })  # fmt: skip
        return encode_beat(header, number, disk_answers=True, heartbeats=[])[0]

    def restarted(self) -> Server:
        """Return its next start, at another port."""
        self.links.stop()
        return self.machine.server(self.name, start_code=self.start_code + 1, cluster=self.cluster)
