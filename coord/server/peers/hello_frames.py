"""The frames with which a connection between two nodes begins. Pure: bytes in, values out.

    hello    := frame kind 1: magic "RKPR" version:u16 cluster:16 bytes src:u64 dst:u64 incarnation:u64 has_log:u8
                config:u64                index of the sender's newest configuration
                version 3: address        the sender's address in that configuration, as UTF-8, to the end
                version 4: address_length:u16 address field*
    field    := tag:u16 length:u16 value  unknown tags are ignored; 1 and 2 have a u32
                1 supported               the highest feature level of the sender's build; 0 if missing
                2 required                the highest feature level in the sender's log; 0 if missing
    removed  := frame kind 10: config:u64                             the configuration that lacks the receiver
    who      := frame kind 11: magic version:u16                      request for the cluster
    cluster  := frame kind 12: cluster:16 bytes config:u64 configuration              the reply to who

A listener replies to a hello in the version of that hello. Builds before version 4 reject a hello of version 4 with the
sentence that `refused_version` parses; the dialer then dials again with their version.
"""

from __future__ import annotations

import re
import struct
from typing import Final

from coord.errors import RemoteProtocolError
from coord.peers.framing import HELLO, frame
from coord.raft.bounds import NUMBER_MAX
from coord.raft.membership import MEMBER_ID_MAX, Configuration
from coord.server.config.addresses import check_configuration, parse_host_port
from coord.server.peers.codec import CLUSTER, MAGIC, REMOVED, VERSION, VERSION_BEFORE, WHO

#: WHO has no fields that could differ between versions. Its version stays, so that builds of both versions can join
#: each other's store.
WHO_VERSION: Final = 3

_HELLO: Final = struct.Struct(">4sH16sQQQ?Q")
_FIELD: Final = struct.Struct(">HH")
_TAG_SUPPORTED: Final = 1
_TAG_REQUIRED: Final = 2
_LEVEL_BYTES: Final = 4
_WHO: Final = struct.Struct(">4sH")
_CLUSTER: Final = struct.Struct(">16sQ")
_INDEX: Final = struct.Struct(">Q")


class Hello:
    """The first frame from a node to a peer."""

    def __init__(
        self,
        cluster: bytes,
        src: int,
        dst: int,
        incarnation: int,
        has_log: bool,
        version: int = VERSION,
        config: int = 0,
        address: str = "",
        supported: int = 0,
        required: int = 0,
    ) -> None:
        #: 16 bytes, equal on all nodes of one cluster.
        self.cluster = cluster
        self.src = src
        self.dst = dst
        #: Number that no earlier process of this node used.
        self.incarnation = incarnation
        #: True if that node's log has entries (`coord.server.membership.joining`).
        self.has_log = has_log
        self.version = version
        #: Index of that node's newest configuration, and the node's peer address in it ("": none).
        self.config = config
        self.address = address
        #: Highest feature level of that node's build, and highest level in its log (`coord.server.membership.levels`).
        self.supported = supported
        self.required = required


def encode_hello(hello: Hello) -> bytes:
    """Encode a hello in the version that it names."""
    fixed = _HELLO.pack(
        MAGIC,
        hello.version,
        hello.cluster,
        hello.src,
        hello.dst,
        hello.incarnation,
        hello.has_log,
        hello.config,
    )
    address = hello.address.encode()
    if hello.version == VERSION_BEFORE:
        return frame(HELLO, fixed + address)
    parts = [fixed, len(address).to_bytes(2, "big"), address]
    for tag, level in ((_TAG_SUPPORTED, hello.supported), (_TAG_REQUIRED, hello.required)):
        parts.append(_FIELD.pack(tag, _LEVEL_BYTES) + level.to_bytes(_LEVEL_BYTES, "big"))
    return frame(HELLO, b"".join(parts))


def decode_hello(body: bytes) -> Hello:
    """Decode a hello; a hello of an unknown version has only its version set.

    Raise RemoteProtocolError for bytes that are not a hello.
    """
    if len(body) < 6 or body[:4] != MAGIC:
        raise RemoteProtocolError("the first bytes are not a hello of a store node")
    version = int.from_bytes(body[4:6], "big")
    if version not in (VERSION_BEFORE, VERSION):
        return Hello(bytes(16), 0, 0, 0, False, version)
    if len(body) < _HELLO.size:
        raise RemoteProtocolError(f"a hello has {len(body)} bytes")
    _, version, cluster, src, dst, incarnation, has_log, config = _HELLO.unpack_from(body)
    hello = Hello(cluster, src, dst, incarnation, has_log, version, config)
    at = _HELLO.size
    if version == VERSION_BEFORE:
        hello.address = body[at:].decode(errors="replace")
        _check_hello(src, config, hello.address)
        return hello
    end = at + 2 + int.from_bytes(body[at : at + 2], "big")
    if at + 2 > len(body) or end > len(body):
        raise RemoteProtocolError(f"a hello has {len(body)} bytes")
    hello.address = body[at + 2 : end].decode(errors="replace")
    _check_hello(src, config, hello.address)
    _read_fields(hello, body, end)
    return hello


def _read_fields(hello: Hello, body: bytes, at: int) -> None:
    """Set the fields of a hello that this build knows; skip the others. Raise RemoteProtocolError."""
    while at < len(body):
        start = at + _FIELD.size
        if start > len(body):
            raise RemoteProtocolError("a hello ends within a field")
        tag, length = _FIELD.unpack_from(body, at)
        at = start + length
        if at > len(body) or (tag in (_TAG_SUPPORTED, _TAG_REQUIRED) and length != _LEVEL_BYTES):
            raise RemoteProtocolError(f"field {tag} of a hello has {length} bytes")
        if tag == _TAG_SUPPORTED:
            hello.supported = int.from_bytes(body[start:at], "big")
        elif tag == _TAG_REQUIRED:
            hello.required = int.from_bytes(body[start:at], "big")


def refused_version(reason: str) -> int:
    """Return the version of a listener that rejected our hello because of its version; 0 for another reason."""
    found = re.fullmatch(r"speaks version \d+, this node (\d+)", reason)
    return int(found[1]) if found is not None else 0


def _check_hello(src: int, config: int, address: str) -> None:
    """Raise RemoteProtocolError for an invalid id, index or address: this node may dial the address."""
    if src > MEMBER_ID_MAX or config >= NUMBER_MAX:
        raise RemoteProtocolError(f"hello of node {src} with a configuration at {config}")
    if address:
        try:
            parse_host_port(address)
        except ValueError as error:
            raise RemoteProtocolError(f"hello of node {src} with the peer address {error}") from error


def encode_who() -> bytes:
    """Encode the request for the cluster of a node."""
    return frame(WHO, _WHO.pack(MAGIC, WHO_VERSION))


def is_who(body: bytes) -> bool:
    """Return True for a WHO of the version that this build knows."""
    return body == _WHO.pack(MAGIC, WHO_VERSION)


def encode_cluster(cluster: bytes, index: int, config: Configuration) -> bytes:
    """Encode the reply to WHO; `index` is that of the configuration."""
    return frame(CLUSTER, _CLUSTER.pack(cluster, index) + config.encode())


def decode_cluster(body: bytes) -> tuple[bytes, int, Configuration]:
    """Return (cluster, index of the configuration, configuration). Raise RemoteProtocolError."""
    try:
        cluster, index = _CLUSTER.unpack_from(body)
        config = check_configuration(body[_CLUSTER.size :])
    except (struct.error, ValueError) as error:
        raise RemoteProtocolError(f"malformed reply to WHO: {error}") from error
    if index >= NUMBER_MAX:
        raise RemoteProtocolError(f"the reply to WHO has a configuration at index {index}")
    return cluster, index, config


def encode_removed(index: int) -> bytes:
    """Encode REMOVED for a node that the configuration committed at `index` has removed."""
    return frame(REMOVED, _INDEX.pack(index))


def decode_removed(body: bytes) -> int:
    """Return the index of the configuration that removed this node. Raise RemoteProtocolError."""
    if len(body) != _INDEX.size:
        raise RemoteProtocolError(f"a REMOVED frame has {len(body)} bytes")
    index = int.from_bytes(body, "big")
    if index >= NUMBER_MAX:
        raise RemoteProtocolError(f"a REMOVED frame has a configuration at index {index}")
    return index
