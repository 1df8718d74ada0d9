"""Commands in the log: batches of commands, each a client's request in the client's own bytes.

A Raft entry is one batch: all writes of one turn of the leader's reactor. Integers are big-endian.

    batch   = time_ms:i64 flags_and_count:u32 command*count
    command = length:u32 session_id:i64 owner:i64 cxid:i32 opcode:i32 body      (length counts the bytes after it)
    body    = the request's jute record, unchanged, or one of

    CREATE_SESSION  timeout_ms:int passwd:16 bytes address:ustring identity*
    ATTACH          timeout_ms:int passwd:buffer   address:ustring identity*
    AUTH            identity identity*
    identity      = scheme:ustring id:ustring          (the id as in an access list: secrets are never in the log)
    EXPIRE, CLOSE_SESSION                              (empty)

The two highest bits of `flags_and_count` are decisions of the leader at the time of the batch, so that every node
decides alike: whether quotas are enforced, and whether the store is full, so that nothing may grow. The other bits are
the count.

`time_ms` is the leader's clock at the time of the batch and never decreases; it is the only time that the tree uses.
Every command takes the next zxid, rejected or not. So zxids have no gaps and count commands, while the Raft index
counts batches.

`owner` identifies the connection that owns the session. It is the zxid of the session's latest CREATE_SESSION or
ATTACH. A command with an older owner comes from a connection that the client has left, and is rejected. EXPIRE names
the owner that the leader saw, so a session that has re-attached meanwhile survives. CREATE_SESSION and ATTACH have no
owner yet; they carry a token by which the proposing node finds the waiting connection. Session 0 with owner 0 is the
leader itself (reaping of containers and TTL znodes).
"""

from __future__ import annotations

import struct
from typing import Final

from coord.errors import RemoteProtocolError
from coord.tree.acl import OPEN
from coord.wire.codec import read_acl, read_path
from coord.wire.jute import (
    I32,
    IS_COMPILED,
    NATIVE_BYTES_MAX,
    buffer,
    i32,
    read_buffer,
    read_i32,
    read_i64,
    read_string,
    short,
)
from coord.wire.opcodes import OP_CREATE_TTL
from coord.wire.values import OPEN_ACL, PASSWD_BYTES, CreateRequest

if IS_COMPILED:
    from librt.strings import BytesWriter, read_i32_be, write_i32_be, write_i64_be

BATCH_HEADER: Final = struct.Struct("!qI")
#: length, session_id, owner, cxid, opcode
COMMAND_HEADER: Final = struct.Struct("!Iqqii")
BATCH_HEADER_BYTES: Final = 12
COMMAND_HEADER_BYTES: Final = 28
#: Bytes that `length` counts besides the body.
_COMMAND_FIXED_BYTES: Final = 24

#: Flag in a batch's count: hard limits of quotas are enforced.
ENFORCE_QUOTAS: Final = 1 << 31
#: Flag in a batch's count: the store has reached its limit of znodes or bytes.
IS_FULL: Final = 1 << 30
COUNT_MASK: Final = IS_FULL - 1

#: Session id of commands that the leader proposes by itself.
INTERNAL_SESSION: Final = 0

_i32: Final = I32.unpack_from
_OPEN_ENCODED: Final = OPEN.encoded
_OPEN_BYTES: Final = len(OPEN.encoded)


class Command:
    """One decoded command. `body` is the request record; see the grammar above."""

    def __init__(self, session_id: int, owner: int, cxid: int, opcode: int, body: bytes) -> None:
        self.session_id = session_id
        self.owner = owner
        self.cxid = cxid
        self.opcode = opcode
        self.body = body


def encode_command(session_id: int, owner: int, cxid: int, opcode: int, body: bytes) -> bytes:
    """Encode a command as part of a batch, with its length."""
    if IS_COMPILED and len(body) <= NATIVE_BYTES_MAX:
        out = BytesWriter()
        write_i32_be(out, _COMMAND_FIXED_BYTES + len(body))
        write_i64_be(out, session_id)
        write_i64_be(out, owner)
        write_i32_be(out, cxid)
        write_i32_be(out, opcode)
        out.write(body)
        return out.getvalue()
    return COMMAND_HEADER.pack(_COMMAND_FIXED_BYTES + len(body), session_id, owner, cxid, opcode) + body


def encode_batch(time_ms: int, commands: list[bytes], *, enforce_quotas: bool = False, is_full: bool = False) -> bytes:
    """Encode a batch of commands made by encode_command, in the order in which they will be applied."""
    assert len(commands) <= COUNT_MASK, f"a batch of {len(commands)} commands"
    assert time_ms >= 0, f"a batch at time {time_ms}"
    flags = (ENFORCE_QUOTAS if enforce_quotas else 0) | (IS_FULL if is_full else 0)
    return b"".join([BATCH_HEADER.pack(time_ms, len(commands) | flags), *commands])


def decode_batch(data: bytes) -> tuple[int, list[Command]]:
    """Return (time_ms, commands) of a batch. For tools and tests; applying does not use this function.

    Raise RemoteProtocolError if the bytes are not a whole batch.
    """
    if len(data) < BATCH_HEADER_BYTES:
        raise short(0, len(data))
    time_ms, count = BATCH_HEADER.unpack_from(data)
    count &= COUNT_MASK
    commands: list[Command] = []
    at = BATCH_HEADER_BYTES
    for _ in range(count):
        end = command_end(data, at)
        if end < 0:
            raise short(at, len(data))
        _, session_id, owner, cxid, opcode = COMMAND_HEADER.unpack_from(data, at)
        commands.append(Command(session_id, owner, cxid, opcode, data[at + COMMAND_HEADER_BYTES : end]))
        at = end
    if at != len(data):
        raise RemoteProtocolError(f"{len(data) - at} bytes after the last command of a batch")
    return time_ms, commands


def command_end(data: bytes, at: int) -> int:
    """Return the end of the command at `at`, or -1 if it does not fit into `data`."""
    if at + COMMAND_HEADER_BYTES > len(data):
        return -1
    length: int = COMMAND_HEADER.unpack_from(data, at)[0]
    end = at + 4 + length
    return end if length >= _COMMAND_FIXED_BYTES and end <= len(data) else -1


# --- bodies of the internal commands ---------------------------------------------------------------------------------


def encode_create_session(timeout_ms: int, passwd: bytes, address: bytes, proved: bytes = b"") -> bytes:
    """Encode the body of CREATE_SESSION. `passwd` has PASSWD_BYTES bytes; `address` is the peer's IP address as text.

    `proved` has the identities that the connection proved before the session existed (`encode_identities`).
    """
    if len(passwd) != PASSWD_BYTES:
        raise ValueError(f"a session's password has {PASSWD_BYTES} bytes, not {len(passwd)}")
    return i32(timeout_ms) + passwd + buffer(address) + proved


def decode_create_session(data: bytes, at: int, end: int) -> tuple[int, bytes, bytes, list[tuple[bytes, bytes]]]:
    """Return (timeout_ms, passwd, address, identities)."""
    timeout_ms, at = read_i32(data, at, end)
    stop = at + PASSWD_BYTES
    if stop > end:
        raise short(at, end)
    address, at = read_string(data, stop, end)
    return timeout_ms, data[stop - PASSWD_BYTES : stop], address, decode_identities(data, at, end)


def encode_attach(timeout_ms: int, passwd: bytes, address: bytes, proved: bytes = b"") -> bytes:
    """Encode the body of ATTACH. The password is the client's, of any length."""
    return i32(timeout_ms) + buffer(passwd) + buffer(address) + proved


def decode_attach(data: bytes, at: int, end: int) -> tuple[int, bytes, bytes, list[tuple[bytes, bytes]]]:
    """Return (timeout_ms, passwd, address, identities)."""
    timeout_ms, at = read_i32(data, at, end)
    passwd, at = read_buffer(data, at, end)
    address, at = read_string(data, at, end)
    return timeout_ms, passwd or b"", address, decode_identities(data, at, end)


def encode_identities(identities: list[tuple[bytes, bytes]]) -> bytes:
    """Encode the body of AUTH: identities that the server has checked, such as (digest, user:hash)."""
    return b"".join([buffer(scheme) + buffer(identity) for scheme, identity in identities])


def decode_identities(data: bytes, at: int, end: int) -> list[tuple[bytes, bytes]]:
    """Return the (scheme, id) pairs up to the end of the body."""
    found: list[tuple[bytes, bytes]] = []
    while at < end:
        scheme, at = read_string(data, at, end)
        identity, at = read_string(data, at, end)
        found.append((scheme, identity))
    return found


# --- fast decoders of frequent client requests -----------------------------------------------------------------------
#
# These make up almost all traffic. They return and reject the same as the decoders of coord.wire.codec, which decode
# all other requests; a test compares both. They exist because an interpreted call costs as much as the work done here.


def decode_path_watch(data: bytes, at: int, end: int) -> tuple[bytes, bool]:
    """Decode an exists, getData, getChildren or getChildren2: (path, whether to set a watch)."""
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
    """Decode a setData: (path, data, version)."""
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
    """Decode a create of any kind. An access list equal to OPEN_ACL is returned as OPEN_ACL itself."""
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
