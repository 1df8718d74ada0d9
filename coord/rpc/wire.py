"""Encoding of RegionKeeper's own RPC. Pure: no reactor, no socket.

Masters, region servers and the CLI exchange frames over one TCP connection, in both directions at once:

    stream   := preamble frame*
    preamble := "RKRP" version:u16                    both sides send it first, without waiting
    frame    := length:u32 payload                    big-endian; length counts the payload, at most FRAME_BYTES_MAX
    payload  := msgpack array, the first item is the kind:
                [0, id, body, cluster]                request; `id` is chosen by the caller, unique on its connection;
                                                      `cluster`: id of the addressed cluster, "" if not known
                [1, id, body]                         reply
                [2, id, code, message, hint]          error; `code` is a value of `Code` or of the application;
                                                      UNAUTHENTICATED with id 0 concerns the connection, which ends
    body     := a msgspec Struct of a tagged union    the union is defined by the application (`regions.messages`)

Replies come in any order, each with the id of its request; requests are pipelined. A side that receives a wrong
preamble, an oversized length or a malformed payload closes the connection, because the rest of the stream cannot be
interpreted.
"""

from __future__ import annotations

import functools
import struct
import typing
from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

import msgspec

from coord.errors import CoordError, ProtocolError

PREAMBLE: Final = b"RKRP" + struct.pack(">H", 1)
#: A batch for a server with 10,000 regions is about 2 MB. A longer frame comes from a broken or hostile sender.
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
#: A request's type is an identifier. A longer name is not repeated in the error reply.
TYPE_SHOWN_MAX: Final = 128
_LENGTH: Final = struct.Struct(">I")

T = TypeVar("T", bound=msgspec.Struct)


class Code:
    """Codes of errors between two processes. Applications add their own codes."""

    #: No connection could be made: the request was not executed.
    UNREACHABLE: Final = "unreachable"
    #: The connection broke after the request had been sent: it may or may not have been executed.
    CONNECTION_LOST: Final = "connection_lost"
    #: No reply in time: the request may have been executed, or may still be.
    TIMEOUT: Final = "timeout"
    #: The client was closed by its owner.
    CLOSED: Final = "closed"
    #: Too many calls are pending; the request was not executed.
    BUSY: Final = "busy"
    #: The message does not fit in a frame; nothing was sent.
    TOO_LARGE: Final = "too_large"
    #: The receiver could not decode the request.
    BAD_REQUEST: Final = "bad_request"
    #: The receiver does not know the type of request: it is another service or an earlier version.
    UNSUPPORTED: Final = "unsupported"
    #: The reply is not of the expected type.
    BAD_REPLY: Final = "bad_reply"
    #: An exception in the receiver; its log has the details.
    INTERNAL: Final = "internal"
    #: The peer uses another protocol, or another version of this one.
    PROTOCOL: Final = "protocol"
    #: One end has not proved who it is (`coord.security`): nothing was executed.
    UNAUTHENTICATED: Final = "unauthenticated"


_OUTCOME_UNKNOWN: Final = frozenset({Code.CONNECTION_LOST, Code.TIMEOUT, Code.CLOSED, Code.INTERNAL})


class RpcError(CoordError):
    """A failed call: `code` for programs, `message` for people, `hint` such as the address of the active master."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.hint = hint

    @property
    def is_outcome_unknown(self) -> bool:
        """True if the request may have been executed."""
        return self.code in _OUTCOME_UNKNOWN


class StreamError(ProtocolError):
    """Raised when the received bytes violate the protocol, or reject this connection. The caller must close the
    connection; `code` is that of the RpcError for pending calls."""

    def __init__(self, message: str, code: str = Code.PROTOCOL) -> None:
        super().__init__(message)
        self.code = code


class Request(msgspec.Struct, array_like=True, tag=0):
    """A request with its body still encoded: a malformed body must not cost the whole connection."""

    id: int
    body: msgspec.Raw
    #: Id of the addressed cluster, "" if the caller does not know one. Earlier builds neither send nor read it.
    cluster: str = ""


class Reply(msgspec.Struct, array_like=True, tag=1):
    """The reply to the request with this id."""

    id: int
    body: msgspec.Raw


class Failed(msgspec.Struct, array_like=True, tag=2):
    """The error reply to the request with this id."""

    id: int
    code: str
    message: str
    hint: str = ""


Payload = Request | Reply | Failed

#: Exceptions of the decoder for malformed bytes; RecursionError comes from deeply nested arrays.
UNREADABLE: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)

_encoder: Final = msgspec.msgpack.Encoder()
_payload_decoder: Final = msgspec.msgpack.Decoder(Payload)


@functools.cache
def body_decoder(union: Any) -> msgspec.msgpack.Decoder[Any]:
    """Return the decoder of a tagged union of Structs. Cached, because building a decoder is expensive.

    Not for several threads: see `coord.rpc.blocking.reply_in_thread`.
    """
    return msgspec.msgpack.Decoder(union)


def encode_body(message: msgspec.Struct) -> msgspec.Raw:
    """Encode a message as the body of a frame."""
    return msgspec.Raw(_encoder.encode(message))


def encode_frame(payload: Payload) -> bytes:
    """Encode one frame. Raise RpcError(TOO_LARGE) beyond FRAME_BYTES_MAX."""
    data = _encoder.encode(payload)
    if len(data) > FRAME_BYTES_MAX:
        raise RpcError(Code.TOO_LARGE, f"the message has {len(data)} bytes; the limit is {FRAME_BYTES_MAX}")
    return _LENGTH.pack(len(data)) + data


class RpcFrameReader:
    """Decodes received bytes into payloads. One per connection; unusable after it has raised an exception."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._buffer = bytearray()
        self._greeted = False
        self._frame_bytes_max = frame_bytes_max

    @property
    def rest(self) -> int:
        """Bytes that were received and not decoded yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Generator[Payload, None, None]:
        """Yield each payload that `data` completes. Raise StreamError for bytes that violate the protocol.

        A caller that closes the generator early, or never begins it, gets the other payloads by the next `feed`.
        """
        self._buffer += data
        return self._payloads()

    def _payloads(self) -> Generator[Payload, None, None]:
        buffer = self._buffer
        start = 0
        try:
            if not self._greeted:
                if bytes(buffer[: len(PREAMBLE)]) != PREAMBLE[: len(buffer)]:
                    raise StreamError(f"the peer uses another protocol: its first bytes are {bytes(buffer[:6])!r}")
                if len(buffer) < len(PREAMBLE):
                    return
                self._greeted = True
                start = len(PREAMBLE)
            while len(buffer) - start >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(buffer, start)
                if length > self._frame_bytes_max:
                    raise StreamError(f"the peer announced {length} bytes; the limit is {self._frame_bytes_max}")
                end = start + _LENGTH.size + length
                if len(buffer) < end:
                    break
                payload = bytes(buffer[start + _LENGTH.size : end])
                start = end
                yield _decode_payload(payload)
        finally:
            del buffer[:start]


def _decode_payload(data: bytes) -> Payload:
    try:
        payload: Payload = _payload_decoder.decode(data)
    except UNREADABLE as error:
        raise StreamError(f"undecodable frame of {len(data)} bytes: {error}") from error
    if payload.id == 0 and isinstance(payload, Failed) and payload.code == Code.UNAUTHENTICATED:
        raise StreamError(payload.message, payload.code)
    return payload


def rejection(error: StreamError) -> bytes:
    """Return the whole stream of a server that rejects a connection.

    Builds that do not know id 0 take the second frame for the answer to the first request of their connection.
    """
    return PREAMBLE + b"".join(encode_frame(Failed(number, error.code, str(error))) for number in (0, 1))


class _Tagged(msgspec.Struct):
    """Decodes only the type of a malformed body."""

    type: str = ""


_tagged_decoder: Final = msgspec.msgpack.Decoder(_Tagged)


@functools.cache
def _tags(union: Any) -> frozenset[str]:
    """Return the type tags of a tagged union."""
    return frozenset(str(one.__struct_config__.tag) for one in typing.get_args(union) or (union,))


def _type_of(body: msgspec.Raw) -> str:
    """Return the type named in a malformed body, or "" if the name is absent or not fit to be shown."""
    try:
        found = _tagged_decoder.decode(body).type
    except UNREADABLE:
        return ""
    return found if found.isprintable() and len(found) <= TYPE_SHOWN_MAX else ""


def decode_request(request: Request, requests: Any, receiver: Callable[[], str] = lambda: "the receiver") -> Any:
    """Return the request Struct in `request`; `receiver` returns the name of this process for error messages.

    Raises:
        RpcError: UNSUPPORTED for a type that is not in the union `requests`, BAD_REQUEST for a malformed body.
    """
    try:
        return body_decoder(requests).decode(request.body)
    except UNREADABLE as error:
        name = _type_of(request.body)
        if name and name not in _tags(requests):
            raise RpcError(Code.UNSUPPORTED, f"{receiver()} does not answer {name} requests") from error
        why = f"{receiver()} cannot read this {name or 'unnamed'} request: {error}"
        raise RpcError(Code.BAD_REQUEST, why) from error


def decode_reply(payload: Payload, replies: Any) -> Any:
    """Return the reply Struct in `payload`. Raise the peer's RpcError, or RpcError BAD_REPLY for a malformed reply."""
    if isinstance(payload, Failed):
        raise RpcError(payload.code, payload.message, payload.hint)
    if isinstance(payload, Request):
        raise RpcError(Code.BAD_REPLY, "the peer sent a request instead of a reply")
    try:
        return body_decoder(replies).decode(payload.body)
    except UNREADABLE as error:
        raise RpcError(Code.BAD_REPLY, f"malformed reply: {error}") from error
