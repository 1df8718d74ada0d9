"""Load on a store by raw connections: the same requests again and again, many in flight on each connection.

The frames are made once, and answers are counted by their bytes, so this process can keep up with a store node that
needs less than a microsecond for a request.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import time
from collections.abc import Sequence
from typing import Final

from coord.wire import opcodes as op
from coord.wire import records as r
from tests.support.rawclient import RawClient

PATH: Final = b"/bench-security"
DATA: Final = bytes(100)
_SESSION_MS: Final = 30_000
REQUESTS: Final = {
    "get": r.encode_request_frame(1, op.OP_GET_DATA, r.encode_path_watch(PATH, False)),
    "set": r.encode_request_frame(1, op.OP_SET_DATA, r.encode_set_data(PATH, DATA, -1)),
}


def session(address: str, token: str, tls: ssl.SSLContext | None) -> RawClient:
    """Return a client with a session, which has proved the token, if there is one."""
    client = RawClient(address, tls=tls)
    answer = client.hello(r.ConnectRequest(0, _SESSION_MS, 0, bytes(16)))
    assert answer is not None, "the store opens no session"
    if token:
        client.sock.sendall(r.encode_request_frame(op.XID_AUTH, op.OP_AUTH, r.encode_auth(b"digest", token.encode())))
        assert client.answer() == (0, b""), "the store rejects the token"
    return client


def prepare(address: str, token: str, tls: ssl.SSLContext | None) -> None:
    """Create the znode that is read and written."""
    client = session(address, token, tls)
    client.ask(op.OP_CREATE, r.encode_create(r.CreateRequest(op.OP_CREATE, PATH, DATA, r.OPEN_ACL, 0)))
    client.close()


def load(
    addresses: Sequence[str],
    token: str,
    tls: ssl.SSLContext | None,
    what: str,
    connections: int,
    window: int,
    seconds: float,
) -> float:
    """Return requests per second. The connections are spread over the nodes; each sends `window` requests at once, and
    the next ones when all are answered."""
    clients = [session(addresses[number % len(addresses)], token, tls) for number in range(connections)]
    request = REQUESTS[what]
    clients[0].sock.sendall(request)
    frame = clients[0].frame()
    assert frame is not None, "the store has closed the connection"
    expected = (4 + len(frame)) * window
    batch = request * window
    missing: dict[socket.socket, int] = {}
    done = 0
    with selectors.DefaultSelector() as selector:
        for one in clients:
            one.sock.sendall(batch)
            missing[one.sock] = expected
            selector.register(one.sock, selectors.EVENT_READ)
        began = time.perf_counter()
        while (spent := time.perf_counter() - began) < seconds:
            for key, _ in selector.select(1.0):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                missing[sock] -= _received(sock)
                if missing[sock] == 0:
                    done += window
                    missing[sock] = expected
                    sock.sendall(batch)
    for one in clients:
        one.close()
    return done / spent


def _received(sock: socket.socket) -> int:
    """Read what has arrived, and return its length in bytes. TLS may hold decrypted bytes, which `select` does not
    see."""
    size = 0
    while True:
        part = sock.recv(1 << 20)
        assert part, "the store has closed a connection"
        size += len(part)
        if not (isinstance(sock, ssl.SSLSocket) and sock.pending()):
            return size
