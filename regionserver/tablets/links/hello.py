"""The first frame of a connection between two region servers, and the frame around all others. Pure.

    hello    := frame kind 1: magic "RKRS" version:u16 start_code:u64 cluster:text src:text dst:text address:text field*
    payload  := frame kind 3: a TURN or BEAT frame of `host.envelope`
    text     := length:u8 UTF-8           printable characters
    field    := tag:u16 length:u16 value  unknown tags are ignored; 1: features:u32

`src` and `dst` are uuids of servers, `address` is `host:port` of the sender's own peer port. The listener answers with
a hello of its own. All numbers are big-endian. The dialer of a connection for a copy (`copying/wire.py`) sends the
same hello in a frame of kind 4.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from coord.errors import RemoteProtocolError
from coord.peers.framing import HEAD, HELLO, HELLO_BYTES_MAX, frame
from coord.peers.stream import Address
from coord.raft.bounds import NUMBER_MAX
from coord.server.config.addresses import parse_host_port, shown

MAGIC: Final = b"RKRS"
VERSION: Final = 1
#: Kind of the frame that carries a TURN or BEAT frame.
PAYLOAD: Final = 3
#: Kind of a hello that begins a connection for a copy. Earlier builds close such a connection.
COPY: Final = 4

#: Features of a build, as bits. A build without any announces none.
FULL_BEATS: Final = 1  #: it reads BEATs of servers whose disks are full
QUIET_TABLETS: Final = 2  #: it reads the words by which tablets become quiet
KNOWN: Final = FULL_BEATS | QUIET_TABLETS

_FEATURES: Final = 1
_FIXED: Final = struct.Struct(">4sHQ")
_FIELD: Final = struct.Struct(">HH")
_FEATURES_FIELD: Final = struct.Struct(">HHI")
_TEXT_BYTES_MAX: Final = 255


@dataclass(frozen=True, slots=True)
class ServerHello:
    """The identity of a process, and the server that it expects at the other end."""

    cluster: str
    src: str
    dst: str
    start_code: int
    address: Address
    version: int = VERSION
    features: int = 0


def encode_hello(hello: ServerHello) -> bytes:
    """Return a hello as a frame. Raise ValueError for names that make it too long for a listener."""
    texts = [text.encode() for text in (hello.cluster, hello.src, hello.dst, shown(hello.address))]
    parts = [_FIXED.pack(MAGIC, hello.version, hello.start_code)]
    for text in texts:
        parts += (len(text).to_bytes(1, "big"), text) if len(text) <= _TEXT_BYTES_MAX else (bytes(HELLO_BYTES_MAX),)
    if hello.features:
        parts.append(_FEATURES_FIELD.pack(_FEATURES, 4, hello.features))
    encoded = frame(HELLO, b"".join(parts))
    if len(encoded) - HEAD.size >= HELLO_BYTES_MAX:
        raise ValueError(f"cluster, servers and peer address are too long for a hello of {HELLO_BYTES_MAX} bytes")
    return encoded


def decode_hello(body: bytes) -> ServerHello:
    """Decode a hello. If the version is unknown, decode only the version.

    Raise RemoteProtocolError for bytes that are not a hello of a region server.
    """
    if len(body) < _FIXED.size or body[:4] != MAGIC:
        raise RemoteProtocolError("the first bytes are not a hello of a region server")
    _, version, start_code = _FIXED.unpack_from(body)
    if version != VERSION:
        return ServerHello("", "", "", 0, ("", 0), version)
    at = _FIXED.size
    texts: list[str] = []
    for _ in range(4):
        text, at = _read_text(body, at)
        texts.append(text)
    cluster, src, dst, where = texts
    features = _read_features(body, at)
    try:
        address = parse_host_port(where)
    except ValueError as error:
        raise RemoteProtocolError(f"a hello with the peer address {error}") from error
    if not 0 < address[1] < 1 << 16 or start_code >= NUMBER_MAX or not cluster or not src:
        raise RemoteProtocolError(f"a hello of server {src!r}, start code {start_code}, at {where}")
    return ServerHello(cluster, src, dst, start_code, address, features=features)


def _read_features(body: bytes, at: int) -> int:
    """Return the features of a build from the fields of its hello, which begin at `at`."""
    features = 0
    while at < len(body):
        if at + _FIELD.size > len(body):
            raise RemoteProtocolError("a hello ends within a field")
        tag, length = _FIELD.unpack_from(body, at)
        at += _FIELD.size + length
        if at > len(body):
            raise RemoteProtocolError("a field is longer than its hello")
        if tag == _FEATURES and length == 4:
            features = int.from_bytes(body[at - length : at], "big")
    return features


def objection_to_answer(hello: ServerHello, cluster: str, src: str, dst: str) -> str:
    """Return why `hello` is not the answer of server `src` to server `dst`, "" if it is."""
    if hello.version != VERSION:
        return f"replies with version {hello.version} of the hello, ours is {VERSION}"
    if hello.cluster != cluster:
        return f"replies as server {hello.src} of another cluster"
    if (hello.src, hello.dst) != (src, dst):
        return f"replies as server {hello.src} to server {hello.dst}"
    return ""


def _read_text(body: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + body[at] if at < len(body) else len(body) + 1
    if end > len(body):
        raise RemoteProtocolError("a text is longer than its hello")
    try:
        text = body[at + 1 : end].decode()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError("a text of a hello is not UTF-8") from error
    if not text.isprintable():
        raise RemoteProtocolError(f"the text {text!r} in a hello has characters that cannot be printed")
    return text, end


def payload_head(length: int) -> bytes:
    """Return the bytes before a TURN or BEAT frame of `length` bytes on a connection."""
    return HEAD.pack(length + 1, PAYLOAD)
