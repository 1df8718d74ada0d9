"""Kept connections: reused, replaced when their server has closed them, and the errors of broken ones."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from coord.rpc.wire import PREAMBLE, Failed, Reply, Request, RpcError, RpcFrameReader, encode_body, encode_frame
from regions.messages import Accepted, GetServerStatus
from regionserver.client.connections import Connections
from tests.support.helpers import eventually


class Server:
    """Answers each request with the number of connections so far; `silent` after that many requests."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address = self.listening.getsockname()
        self.connections: list[socket.socket] = []
        self.refuses = False
        self.is_silent = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        reader = RpcFrameReader()
        connection.sendall(PREAMBLE)
        while data := connection.recv(65536):
            for request in reader.feed(data):
                assert isinstance(request, Request)
                if self.is_silent:
                    continue
                answer = (
                    Failed(request.id, "no", "not now")
                    if self.refuses
                    else Reply(request.id, encode_body(self._count()))
                )
                connection.sendall(encode_frame(answer))
        connection.close()

    def _count(self) -> Accepted:
        return Accepted(str(len(self.connections)))

    def close_all(self) -> None:
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Stop listening."""
        self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close_all()
    with contextlib.suppress(OSError):
        made.end()


@pytest.fixture
def connections() -> Iterator[Connections]:
    made = Connections()
    yield made
    made.close()


def ask(connections: Connections, server: Server, timeout_s: float = 60.0) -> str:
    return connections.call(server.address, GetServerStatus(), Accepted, timeout_s).detail


def test_one_connection_serves_call_after_call(server: Server, connections: Connections) -> None:
    """A rejection does not close it."""
    assert [ask(connections, server) for _ in range(3)] == ["1", "1", "1"]
    server.refuses = True
    with pytest.raises(RpcError, match="no: not now"):
        ask(connections, server)
    server.refuses = False
    assert ask(connections, server) == "1"


def test_a_connection_that_its_server_closed_is_not_used(server: Server, connections: Connections) -> None:
    """Otherwise a call that may not be repeated would end with an unknown outcome."""
    ask(connections, server)
    server.close_all()
    eventually(lambda: not connections._pool._idle[server.address][0].is_quiet(), what="the end of the stream")
    server.connections = [server.connections[0]]
    assert ask(connections, server) == "2"


def test_a_silent_and_an_absent_server_are_distinguished(server: Server, connections: Connections) -> None:
    """Without an answer the outcome is unknown. Without a listener nothing was done."""
    server.is_silent = True
    with pytest.raises(RpcError) as caught:
        ask(connections, server, timeout_s=0.05)
    assert (caught.value.code, caught.value.is_outcome_unknown) == ("timeout", True)
    server.end()
    with pytest.raises(RpcError) as caught:
        ask(connections, server, timeout_s=60.0)
    assert (caught.value.code, caught.value.is_outcome_unknown) == ("unreachable", False)
