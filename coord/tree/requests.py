"""The requests that make up almost all traffic, decoded in one step each.

Same results and same refusals as the decoders of coord.wire.records, to which everything else is left. They exist
because an interpreted call costs as much as the work it does here; a test holds the two against each other.
"""

from __future__ import annotations

import struct
from typing import Final

from coord.errors import RemoteProtocolError
from coord.tree.acl import OPEN
from coord.wire.codec import read_acl, read_path
from coord.wire.jute import IS_COMPILED, read_buffer, read_i32, read_i64, short
from coord.wire.opcodes import OP_CREATE_TTL
from coord.wire.values import OPEN_ACL, CreateRequest

if IS_COMPILED:
    from librt.strings import read_i32_be

_i32: Final = struct.Struct("!i").unpack_from
_OPEN_ENCODED: Final = OPEN.encoded
_OPEN_BYTES: Final = len(OPEN.encoded)


def decode_path_watch(data: bytes, at: int, end: int) -> tuple[bytes, bool]:
    """exists, getData, getChildren, getChildren2: (path, whether to leave a watch)."""
    start = at + 4
    if start > end:
        raise short(at, end)
    length: int = read_i32_be(data, at) if IS_COMPILED else _i32(data, at)[0]
    stop = start + length
    if length < 0:
        raise RemoteProtocolError(f"null or negative path length {length} at byte {at}")
    if stop >= end:
        raise short(at, end)
    return data[start:stop], data[stop] != 0


def decode_set_data(data: bytes, at: int, end: int) -> tuple[bytes, bytes | None, int]:
    """setData: (path, data, version)."""
    start = at + 4
    if start > end:
        raise short(at, end)
    length: int = read_i32_be(data, at) if IS_COMPILED else _i32(data, at)[0]
    stop = start + length
    if length < 0:
        raise RemoteProtocolError(f"null or negative path length {length} at byte {at}")
    value_at = stop + 4
    if value_at + 4 > end:
        raise short(at, end)
    length = read_i32_be(data, stop) if IS_COMPILED else _i32(data, stop)[0]
    value_end = value_at + length
    if length < 0:
        value, value_end = read_buffer(data, stop, end)
    elif value_end + 4 > end:
        raise short(stop, end)
    else:
        value = data[value_at:value_end]
    version: int = read_i32_be(data, value_end) if IS_COMPILED else _i32(data, value_end)[0]
    return data[start:stop], value, version


def decode_create(opcode: int, data: bytes, at: int, end: int) -> CreateRequest:
    """create, create2, createContainer, createTTL; the access list is OPEN_ACL itself where it says the same."""
    path, at = read_path(data, at, end)
    value, at = read_buffer(data, at, end)
    after_open = at + _OPEN_BYTES
    if after_open <= end and data[at:after_open] == _OPEN_ENCODED:
        acl, at = OPEN_ACL, after_open
    else:
        acl_read, at = read_acl(data, at, end)
        if acl_read is None:
            acl_read = []
        acl = acl_read
    flags, at = read_i32(data, at, end)
    ttl_ms = 0
    if opcode == OP_CREATE_TTL:
        ttl_ms, at = read_i64(data, at, end)
    return CreateRequest(opcode, path, value, acl, flags, ttl_ms)
