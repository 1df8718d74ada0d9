"""Discovery: a new node asks members of a store for the cluster id and the configuration.

The calls block; no other part of the node runs yet. An address may be a member's peer address, or its client address,
where /zookeeper/config has the peer addresses. Discovery does not make the node a member: an operator adds it
(`rk coord add`, `reconfig`).
"""

from __future__ import annotations

import contextlib
import socket
import time
from typing import Final

from coord.errors import CoordError, RemoteProtocolError
from coord.peers import framing
from coord.peers.guard import PeerGuard
from coord.raft.membership import Configuration
from coord.server.config.addresses import Address, parse_config_text, shown
from coord.server.peers import codec, hello_frames
from coord.tree.datatree import CONFIG
from coord.wire import opcodes as op
from coord.wire.jute import buffer
from coord.wire.records import decode_data_reply, encode_connect_request
from coord.wire.values import NO_PASSWD, ConnectRequest

#: Time for which a node searches for members, and time limit of one member's answer.
SEARCH_S: Final = 30.0
ANSWER_S: Final = 3.0
PAUSE_S: Final = 0.3
_FRAME_BYTES_MAX: Final = 1 << 20


class DiscoveredStore:
    """The store that a member at `address` belongs to."""

    def __init__(self, cluster: bytes, index: int, config: Configuration, address: Address) -> None:
        self.cluster = cluster
        self.index = index
        self.config = config
        self.address = address


def find_store(
    addresses: tuple[Address, ...], *, search_s: float = SEARCH_S, guard: PeerGuard | None = None
) -> DiscoveredStore:
    """Ask each address for its store, and repeat for `search_s`. Return the newest configuration among the answers.

    Raise CoordError with the reason for each address.
    """
    deadline = time.monotonic() + search_s
    while True:
        reasons: list[str] = []
        best: DiscoveredStore | None = None
        for address in addresses:
            try:
                found = _ask(address, guard)
            except (OSError, RemoteProtocolError) as error:
                reasons.append(f"{shown(address)}: {error or type(error).__name__}")
                continue
            if best is None or found.index > best.index:
                best = found
        if best is not None:
            return best
        if time.monotonic() > deadline:
            raise CoordError("no member of a store answers: " + "; ".join(reasons))
        time.sleep(PAUSE_S)


def _ask(address: Address, guard: PeerGuard | None) -> DiscoveredStore:
    """Ask one address as a peer; if that fails, ask it as a client for the peers' addresses. Raise OSError."""
    try:
        return ask_peer(address, guard)
    except (OSError, RemoteProtocolError) as as_peer:
        try:
            peers = _peers_by_client_port(address)
        except (OSError, RemoteProtocolError):
            raise as_peer from None
    reason: Exception = RemoteProtocolError("its /zookeeper/config has no peer addresses")
    for peer in peers:
        try:
            return ask_peer(peer, guard)
        except (OSError, RemoteProtocolError) as error:
            reason = error
    raise reason


def ask_peer(address: Address, guard: PeerGuard | None = None) -> DiscoveredStore:
    """Ask a member at its peer address. Raise OSError, RemoteProtocolError."""
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(socket.create_connection(address, ANSWER_S))
        if guard is not None:
            context = guard.client()
            if context is not None:
                sock = stack.enter_context(context.wrap_socket(sock, server_hostname=address[0]))
            _prove(sock, guard)
        sock.sendall(hello_frames.encode_who())
        body = _read_frame(sock)
    if body[:1] == bytes([framing.REFUSED]):
        raise RemoteProtocolError("refused: " + body[1:].decode(errors="replace"))
    if body[:1] != bytes([codec.CLUSTER]):
        raise RemoteProtocolError("this is not the peer address of a store")
    cluster, index, config = hello_frames.decode_cluster(body[1:])
    return DiscoveredStore(cluster, index, config, address)


def _prove(sock: socket.socket, guard: PeerGuard) -> None:
    """Authenticate both sides by the peers' shared secret, if there is one."""
    handshake = guard.dialing()
    if handshake is not None:
        sock.sendall(handshake.challenge())
        answer = _read_frame(sock)
        sock.sendall(handshake.prove(answer[0], answer[1:]))


def _peers_by_client_port(address: Address) -> list[Address]:
    with socket.create_connection(address, ANSWER_S) as sock:
        request = encode_connect_request(ConnectRequest(0, 4000, 0, NO_PASSWD))
        sock.sendall(buffer(request))
        _read_frame(sock)
        get = (1).to_bytes(4, "big") + op.OP_GET_DATA.to_bytes(4, "big") + buffer(CONFIG) + b"\0"
        close = (2).to_bytes(4, "big") + op.OP_CLOSE_SESSION.to_bytes(4, "big", signed=True)
        sock.sendall(buffer(get) + buffer(close))
        reply = _read_frame(sock)
    if len(reply) < 16 or reply[12:16] != bytes(4):
        raise RemoteProtocolError("rejects reading its configuration")
    data, _ = decode_data_reply(reply, 16, len(reply))
    try:
        members, _ = parse_config_text(data or b"")
    except ValueError as error:
        raise RemoteProtocolError(str(error)) from error
    return [members[i][0].peer for i in sorted(members)]


def _read_frame(sock: socket.socket) -> bytes:
    length = int.from_bytes(_read(sock, 4), "big")
    if not 0 < length <= _FRAME_BYTES_MAX:
        raise RemoteProtocolError(f"frame of {length} bytes")
    return _read(sock, length)


def _read(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise RemoteProtocolError("closed the connection without an answer")
        data += part
    return data
