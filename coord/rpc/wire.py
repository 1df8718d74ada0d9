"""The bytes of RegionKeeper's own RPC, and the blocking call that tools make. No reactor is imported here.

Masters, region servers and the CLI speak to each other in frames over one TCP connection, in both directions at once:

    stream   := preamble frame*
    preamble := "RKRP" version:u16                    both sides send it first and wait for nothing
    frame    := length:u32 payload                    big-endian; length counts the payload, at most FRAME_BYTES_MAX
    payload  := msgpack array, the first item names the kind:
                [0, id, body, cluster]                request; `id` is chosen by the caller, unique on its connection;
                                                      `cluster`: id of the cluster that is meant, "" if not known
                [1, id, body]                         reply
                [2, id, code, message, hint]          the call failed; `code` is a word of `Code` or of the application
    body     := a msgspec Struct of a tagged union    which union: the two sides agree, `regions.messages` for us

Replies come in any order, each with the id of its request; requests are pipelined. A side that reads a wrong
preamble, an oversized length or a payload it cannot decode closes the connection: after that the stream has no
meaning.
"""

from __future__ import annotations

import functools
import struct
import typing
from collections.abc import Iterator
from typing import Any, Final, TypeVar

import msgspec

from coord.errors import CoordError, ProtocolError

PREAMBLE: Final = b"RKRP" + struct.pack(">H", 1)
#: A batch for a whole server of 10,000 regions is about 2 MB; beyond this the sender is broken or hostile.
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
#: A request's type is an identifier; a longer one is not repeated to its sender.
TYPE_SHOWN_MAX: Final = 128
_LENGTH: Final = struct.Struct(">I")

T = TypeVar("T", bound=msgspec.Struct)


class Code:
    """Words for what can go wrong between two processes. Applications add their own words beside them."""

    #: No connection could be made: the request was certainly not executed.
    UNREACHABLE: Final = "unreachable"
    #: The connection broke after the request had been sent: it may or may not have been executed.
    CONNECTION_LOST: Final = "connection_lost"
    #: No answer in time: it may or may not have been executed, and may still be.
    TIMEOUT: Final = "timeout"
    #: This client was closed by its owner.
    CLOSED: Final = "closed"
    #: Too many calls are under way; the request was not executed.
    BUSY: Final = "busy"
    #: The message does not fit in a frame; nothing was sent.
    TOO_LARGE: Final = "too_large"
    #: The receiver could not read the request.
    BAD_REQUEST: Final = "bad_request"
    #: The receiver answers no requests of that type: it is another service, or an earlier version.
    UNSUPPORTED: Final = "unsupported"
    #: The answer is not of the agreed kind.
    BAD_REPLY: Final = "bad_reply"
    #: A fault of the receiver; its log has the details, they are not sent.
    INTERNAL: Final = "internal"
    #: The peer does not speak this protocol, or another version of it.
    PROTOCOL: Final = "protocol"


_OUTCOME_UNKNOWN: Final = frozenset({Code.CONNECTION_LOST, Code.TIMEOUT, Code.CLOSED, Code.INTERNAL})


class RpcError(CoordError):
    """A call that brought no reply: a word for programs, a sentence for people, perhaps a hint (an address to try)."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.hint = hint

    @property
    def is_outcome_unknown(self) -> bool:
        """True when the request may have been executed all the same."""
        return self.code in _OUTCOME_UNKNOWN


class StreamError(ProtocolError):
    """What was read is no stream of this protocol; the connection must be closed."""


class Request(msgspec.Struct, array_like=True, tag=0):
    """A question, its body still encoded: one undecodable body must not cost the whole connection."""

    id: int
    body: msgspec.Raw
    #: Id of the cluster that the caller means, "" if it does not know one; earlier builds neither send nor read it.
    cluster: str = ""


class Reply(msgspec.Struct, array_like=True, tag=1):
    """The answer to the request of that id."""

    id: int
    body: msgspec.Raw


class Failed(msgspec.Struct, array_like=True, tag=2):
    """The request of that id failed."""

    id: int
    code: str
    message: str
    hint: str = ""


Payload = Request | Reply | Failed

#: What the decoder raises for bytes that it cannot read; RecursionError for arrays in arrays in arrays.
UNREADABLE: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)

_encoder: Final = msgspec.msgpack.Encoder()
_payload_decoder: Final = msgspec.msgpack.Decoder(Payload)


@functools.cache
def body_decoder(union: Any) -> msgspec.msgpack.Decoder[Any]:
    """The decoder of a tagged union of Structs; built once per union, which is the costly part."""
    return msgspec.msgpack.Decoder(union)


def encode_body(message: msgspec.Struct) -> msgspec.Raw:
    """A message as the body of a frame."""
    return msgspec.Raw(_encoder.encode(message))


def encode_frame(payload: Payload) -> bytes:
    """One frame, ready to write. Raises RpcError(TOO_LARGE) beyond FRAME_BYTES_MAX."""
    data = _encoder.encode(payload)
    if len(data) > FRAME_BYTES_MAX:
        raise RpcError(Code.TOO_LARGE, f"message of {len(data)} bytes, the limit is {FRAME_BYTES_MAX}")
    return _LENGTH.pack(len(data)) + data


class RpcFrameReader:
    """Turns received bytes into payloads. One per connection; of no use after it has raised."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._buffer = bytearray()
        self._greeted = False
        self._frame_bytes_max = frame_bytes_max

    def feed(self, data: bytes) -> Iterator[Payload]:
        """Yield each payload that `data` completes. Raises StreamError on anything that is not this protocol."""
        buffer = self._buffer
        buffer += data
        start = 0
        try:
            if not self._greeted:
                if bytes(buffer[: len(PREAMBLE)]) != PREAMBLE[: len(buffer)]:
                    raise StreamError(f"the peer does not speak this protocol: it began with {bytes(buffer[:6])!r}")
                if len(buffer) < len(PREAMBLE):
                    return
                self._greeted = True
                start = len(PREAMBLE)
            while len(buffer) - start >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(buffer, start)
                if length > self._frame_bytes_max:
                    raise StreamError(f"frame of {length} bytes announced, the limit is {self._frame_bytes_max}")
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
    return payload


class _Tagged(msgspec.Struct):
    """The type of a body that could not be decoded."""

    type: str = ""


_tagged_decoder: Final = msgspec.msgpack.Decoder(_Tagged)


@functools.cache
def _tags(union: Any) -> frozenset[str]:
    """The types of the Structs of a tagged union."""
    return frozenset(str(one.__struct_config__.tag) for one in typing.get_args(union) or (union,))


def _type_of(body: msgspec.Raw) -> str:
    """Return the type that an undecodable body names, "" if it names none that can be shown."""
    try:
        found = _tagged_decoder.decode(body).type
    except UNREADABLE:
        return ""
    return found if found.isprintable() and len(found) <= TYPE_SHOWN_MAX else ""


def decode_request(request: Request, requests: Any, receiver: str = "the receiver") -> Any:
    """Return the request Struct that `request` carries; `receiver` is what a refusal calls this process.

    Raises:
        RpcError: UNSUPPORTED for a type that is not in the union `requests`, BAD_REQUEST for an unreadable body.
    """
    try:
        return body_decoder(requests).decode(request.body)
    except UNREADABLE as error:
        name = _type_of(request.body)
        if name and name not in _tags(requests):
            raise RpcError(Code.UNSUPPORTED, f"{receiver} does not answer {name} requests") from error
        raise RpcError(Code.BAD_REQUEST, f"{receiver} cannot read this {name or 'unnamed'} request: {error}") from error


def decode_reply(payload: Payload, replies: Any) -> Any:
    """The reply Struct that `payload` carries. Raises RpcError: the peer's own, or BAD_REPLY for an unreadable one."""
    if isinstance(payload, Failed):
        raise RpcError(payload.code, payload.message, payload.hint)
    if isinstance(payload, Request):
        raise RpcError(Code.BAD_REPLY, "the peer answered with a question")
    try:
        return body_decoder(replies).decode(payload.body)
    except UNREADABLE as error:
        raise RpcError(Code.BAD_REPLY, f"unreadable reply: {error}") from error
