"""One RPC over a blocking socket, for command-line tools and threads. Reactor processes use `coord.rpc.client`."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any, Final, TypeVar, overload

import msgspec

from coord.errors import shown_s
from coord.rpc.wire import (
    PREAMBLE,
    Code,
    Payload,
    Request,
    RpcError,
    RpcFrameReader,
    StreamError,
    body_decoder,
    decode_reply,
    encode_body,
    encode_frame,
)
from coord.security import process
from coord.security.channel import ProofChannel, Unproven, address_of

T = TypeVar("T", bound=msgspec.Struct)

_building: Final = threading.Lock()
#: The types whose decoder is built.
_decodable: Final[set[Any]] = set()


@overload
def call_blocking(
    address: tuple[str, int], message: msgspec.Struct, timeout_s: float = ..., *, expect: type[T], cluster: str = ...
) -> T: ...
@overload
def call_blocking(
    address: tuple[str, int], message: msgspec.Struct, timeout_s: float = ..., *, replies: Any, cluster: str = ...
) -> Any: ...
def call_blocking(
    address: tuple[str, int],
    message: msgspec.Struct,
    timeout_s: float = 10.0,
    *,
    expect: type[Any] | None = None,
    replies: Any = None,
    cluster: str = "",
) -> Any:
    """Send one request on a new connection and wait for the reply. For the CLI and tests, never in a reactor.

    Pass `expect` (the only type of the reply) or `replies` (a tagged union). `timeout_s` covers connecting, sending
    and waiting together. A receiver that belongs to another cluster than `cluster` rejects the request. Raise RpcError.
    """
    union = replies if expect is None else expect
    assert union is not None, "call_blocking needs `expect` or `replies`"
    host, port = address
    deadline = time.monotonic() + timeout_s
    try:
        frame = encode_frame(Request(1, encode_body(message), cluster))
    except OverflowError as error:
        what = f"a number in the {type(message).__name__} request needs more than 64 bits: give a smaller one"
        raise RpcError(Code.BAD_REQUEST, what) from error
    try:
        connection = socket.create_connection(address, timeout=timeout_s)
    except OSError as error:
        raise RpcError(Code.UNREACHABLE, f"cannot connect to {host}:{port}: {error.strerror or error}") from error
    with connection:
        try:
            channel = prove(connection, deadline, host)
            connection.sendall(channel.send(PREAMBLE + frame) if channel is not None else PREAMBLE + frame)
            return reply_in_thread(_read_payload(connection, channel, deadline), union)
        except TimeoutError as error:
            raise RpcError(Code.TIMEOUT, f"{host}:{port} did not reply within {shown_s(timeout_s)} s") from error
        except StreamError as error:
            raise RpcError(error.code, f"{host}:{port}: {error}") from error
        except OSError as error:
            raise RpcError(
                Code.CONNECTION_LOST, f"{host}:{port} closed the connection: {error.strerror or error}"
            ) from error


def reply_in_thread(payload: Payload, replies: Any) -> Any:
    """Decode as `decode_reply`, in any thread. Only one thread at a time builds a decoder: msgspec caches data of a
    Struct in its class, and a second thread that reads half-built data crashes the process."""
    if replies not in _decodable:
        with _building:
            body_decoder(replies)
        _decodable.add(replies)
    return decode_reply(payload, replies)


def prove(connection: socket.socket, deadline: float, host: str = "") -> ProofChannel | None:
    """Prove the identity of this process on a new connection, and have the peer prove its own.

    `host` is the dialed one. Return the channel through which all bytes go, None if they go
    unchanged. Raise StreamError, OSError.
    """
    credentials = process.own()
    if credentials is None:
        return None
    channel = credentials.dialer(host=host)
    channel.start(address_of(*connection.getsockname()[:2]), address_of(*connection.getpeername()[:2]))
    connection.sendall(channel.take())
    while not channel.is_done:
        unseal(channel, _receive(connection, deadline))
        connection.sendall(channel.take())
    return None if channel.is_plain else channel


def unseal(channel: ProofChannel | None, data: bytes) -> bytes:
    """Return the plain bytes of received ones. Raise StreamError."""
    try:
        return data if channel is None else channel.receive(data)
    except Unproven as error:
        raise StreamError(str(error), Code.UNAUTHENTICATED) from error


def _read_payload(connection: socket.socket, channel: ProofChannel | None, deadline: float) -> Payload:
    reader = RpcFrameReader()
    while True:
        for payload in reader.feed(unseal(channel, _receive(connection, deadline))):
            return payload


def _receive(connection: socket.socket, deadline: float) -> bytes:
    remaining_s = deadline - time.monotonic()
    if remaining_s <= 0:
        raise TimeoutError
    connection.settimeout(remaining_s)
    data = connection.recv(65536)
    if not data:
        raise ConnectionResetError("end of stream before the reply")
    return data
