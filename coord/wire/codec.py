"""The records of ZooKeeper 3.9's client protocol: one encoder and one decoder per record.

    request  = xid:int opcode:int <request record>            reply = xid:int zxid:long err:int <reply record>
    event    = a reply with xid -1 and a WatcherEvent         (all framed by client_conn.py: length:int payload)

Conventions of every function here:

* `decode_x(data, at, end)` decodes the record that begins at `at` and returns its value; bytes after the record are
  ignored. Malformed bytes raise RemoteProtocolError; no other exception is raised.
* `encode_x(...)` returns the record's bytes, without header or frame.
* Paths, schemes, ids and children are UTF-8 bytes and stay bytes. Data is `bytes`, or None where the wire has null
  (a znode created with null data returns null). A null string is read as empty, except for a path, which is rejected
  as ZooKeeper rejects it.
* Small read requests decode to tuples; larger records decode to plain classes (values.py).
"""

from __future__ import annotations

import struct
from typing import Final

from coord.errors import RemoteProtocolError
from coord.wire.jute import (
    I32,
    IS_COMPILED,
    NATIVE_BYTES_MAX,
    NULL,
    boolean,
    buffer,
    i64,
    read_buffer,
    read_count,
    read_i32,
    read_i64,
    read_string,
    read_strings,
    short,
    strings,
)
from coord.wire.opcodes import (
    OP_CREATE_TTL,
    STATE_CONNECTED,
    XID_NOTIFICATION,
)
from coord.wire.values import (
    Acl,
    ConnectRequest,
    ConnectResponse,
    CreateRequest,
    Stat,
    WatcherEvent,
    WatchSets,
)

if IS_COMPILED:
    from librt.strings import BytesWriter, read_i32_be, read_i64_be, write_i32_be, write_i64_be

_u32: Final = I32.unpack_from
_I32_PAIR: Final = struct.Struct("!ii")
FRAMED_REQUEST_HEADER: Final = struct.Struct("!iii")
REPLY_HEADER: Final = struct.Struct("!iqi")
FRAMED_REPLY_HEADER: Final = struct.Struct("!iiqi")
_STAT: Final = struct.Struct("!qqqqiiiqiiq")
_CONNECT_HEAD: Final = struct.Struct("!iqiq")
_CONNECTED_HEAD: Final = struct.Struct("!iiq")

REQUEST_HEADER_BYTES: Final = 8
REPLY_HEADER_BYTES: Final = 16
STAT_BYTES: Final = 68

#: Fewest bytes of one ACL entry: permissions and two empty strings.
_ACL_BYTES_MIN: Final = 12


# --- headers and frames ----------------------------------------------------------------------------------------------


def encode_request_frame(xid: int, opcode: int, body: bytes) -> bytes:
    """Encode a request with length prefix and header."""
    return FRAMED_REQUEST_HEADER.pack(8 + len(body), xid, opcode) + body


def decode_reply_header(data: bytes, at: int, end: int) -> tuple[int, int, int]:
    """Return (xid, zxid, err). The body begins REPLY_HEADER_BYTES after `at`."""
    if at + REPLY_HEADER_BYTES > end:
        raise short(at, end)
    xid, zxid, err = REPLY_HEADER.unpack_from(data, at)
    return xid, zxid, err


def encode_reply_frame(xid: int, zxid: int, err: int, body: bytes) -> bytes:
    """Encode a reply with length prefix and header. An error reply (err != 0) has an empty body."""
    if IS_COMPILED and len(body) <= NATIVE_BYTES_MAX:
        out = BytesWriter()
        write_i32_be(out, 16 + len(body))
        write_i32_be(out, xid)
        write_i64_be(out, zxid)
        write_i32_be(out, err)
        out.write(body)
        return out.getvalue()
    return FRAMED_REPLY_HEADER.pack(16 + len(body), xid, zxid, err) + body


def encode_event_frame(event_type: int, state: int, path: bytes, zxid: int) -> bytes:
    """Encode a watch notification with length prefix and header."""
    return (
        FRAMED_REPLY_HEADER.pack(28 + len(path), XID_NOTIFICATION, zxid, 0)
        + FRAMED_REQUEST_HEADER.pack(event_type, state, len(path))
        + path
    )


def encode_event_frames(types: list[int], paths: list[bytes], zxid: int) -> bytes:
    """Encode the notifications of one command, as many calls of `encode_event_frame` for connected sessions do."""
    if not IS_COMPILED:
        pairs = zip(types, paths, strict=True)
        return b"".join([encode_event_frame(event_type, STATE_CONNECTED, path, zxid) for event_type, path in pairs])
    out = BytesWriter()
    for i, path in enumerate(paths):
        length = len(path)
        write_i32_be(out, 28 + length)
        write_i32_be(out, XID_NOTIFICATION)
        write_i64_be(out, zxid)
        write_i32_be(out, 0)
        write_i32_be(out, types[i])
        write_i32_be(out, STATE_CONNECTED)
        write_i32_be(out, length)
        out.write(path)
    return out.getvalue()


def decode_watcher_event(data: bytes, at: int, end: int) -> WatcherEvent:
    """Decode the body of a watch notification."""
    if at + 8 > end:
        raise short(at, end)
    event_type, state = _I32_PAIR.unpack_from(data, at)
    path, _ = read_string(data, at + 8, end)
    return WatcherEvent(event_type, state, path)


def read_event(data: bytes, at: int, end: int) -> tuple[int, int, bytes]:
    """Return event type, zxid and path of the notification whose reply header begins at `at`; (0, 0, b"") for any
    other reply."""
    body = at + REPLY_HEADER_BYTES
    if body > end:
        raise short(at, end)
    if IS_COMPILED:
        xid, zxid = read_i32_be(data, at), read_i64_be(data, at + 4)
    else:
        xid, zxid, _ = REPLY_HEADER.unpack_from(data, at)
    if xid != XID_NOTIFICATION:
        return 0, 0, b""
    event_type, _ = read_i32(data, body, end)
    return event_type, zxid, read_string(data, body + 8, end)[0]


# --- connect ---------------------------------------------------------------------------------------------------------


def decode_connect_request(data: bytes, at: int, end: int) -> ConnectRequest:
    """Decode a connect request, with or without the read-only byte; the password may have any length."""
    if at + 24 > end:
        raise short(at, end)
    version, last_zxid, timeout_ms, session_id = _CONNECT_HEAD.unpack_from(data, at)
    passwd, at = read_string(data, at + 24, end)
    has_read_only = at < end
    read_only = has_read_only and data[at] != 0
    return ConnectRequest(last_zxid, timeout_ms, session_id, passwd, read_only, has_read_only, version)


def encode_connect_request(request: ConnectRequest) -> bytes:
    """Encode a connect request."""
    head = _CONNECT_HEAD.pack(request.protocol_version, request.last_zxid_seen, request.timeout_ms, request.session_id)
    tail = boolean(request.read_only) if request.has_read_only else b""
    return head + buffer(request.passwd) + tail


def decode_connect_response(data: bytes, at: int, end: int) -> ConnectResponse:
    """Decode a connect response, with or without the read-only byte."""
    if at + 16 > end:
        raise short(at, end)
    version, timeout_ms, session_id = _CONNECTED_HEAD.unpack_from(data, at)
    passwd, at = read_string(data, at + 16, end)
    has_read_only = at < end
    read_only = has_read_only and data[at] != 0
    return ConnectResponse(timeout_ms, session_id, passwd, read_only, has_read_only, version)


def encode_connect_response(response: ConnectResponse) -> bytes:
    """Encode a connect response."""
    head = _CONNECTED_HEAD.pack(response.protocol_version, response.timeout_ms, response.session_id)
    tail = boolean(response.read_only) if response.has_read_only else b""
    return head + buffer(response.passwd) + tail


# --- parts -----------------------------------------------------------------------------------------------------------


def read_path(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    """Read a path. Null is rejected; an empty path is accepted here and rejected by the tree."""
    start = at + 4
    if start > end:
        raise short(at, end)
    length: int = read_i32_be(data, at) if IS_COMPILED else _u32(data, at)[0]
    stop = start + length
    if length < 0:
        raise RemoteProtocolError(f"null or negative path length {length} at byte {at}")
    if stop > end:
        raise short(at, end)
    return data[start:stop], stop


def read_stat(data: bytes, at: int, end: int) -> tuple[Stat, int]:
    """Read a Stat."""
    if at + STAT_BYTES > end:
        raise short(at, end)
    if IS_COMPILED:
        stat = Stat(
            read_i64_be(data, at),
            read_i64_be(data, at + 8),
            read_i64_be(data, at + 16),
            read_i64_be(data, at + 24),
            read_i32_be(data, at + 32),
            read_i32_be(data, at + 36),
            read_i32_be(data, at + 40),
            read_i64_be(data, at + 44),
            read_i32_be(data, at + 52),
            read_i32_be(data, at + 56),
            read_i64_be(data, at + 60),
        )
        return stat, at + STAT_BYTES
    return Stat(*_STAT.unpack_from(data, at)), at + STAT_BYTES


def encode_stat(stat: Stat) -> bytes:
    """Encode a Stat, which is also the whole reply to exists, setData and setACL."""
    return _STAT.pack(*stat.as_tuple())


def decode_stat(data: bytes, at: int, end: int) -> Stat:
    """Decode a Stat, which is also the whole reply to exists, setData and setACL."""
    return read_stat(data, at, end)[0]


def read_acl(data: bytes, at: int, end: int) -> tuple[list[Acl] | None, int]:
    """Read an access list; return None for null."""
    count, at = read_count(data, at, end, _ACL_BYTES_MIN)
    if count < 0:
        return None, at
    acl: list[Acl] = []
    for _ in range(count):
        perms, at = read_i32(data, at, end)
        scheme, at = read_string(data, at, end)
        identity, at = read_string(data, at, end)
        acl.append(Acl(perms, scheme, identity))
    return acl, at


def encode_acl(acl: list[Acl] | None) -> bytes:
    """Encode an access list; None becomes null."""
    if acl is None:
        return NULL
    parts = [I32.pack(len(acl))]
    for line in acl:
        parts.append(I32.pack(line.perms))
        parts.append(buffer(line.scheme))
        parts.append(buffer(line.id))
    return b"".join(parts)


# --- requests --------------------------------------------------------------------------------------------------------


def read_create(opcode: int, data: bytes, at: int, end: int) -> tuple[CreateRequest, int]:
    """Read the record of any of the four create operations."""
    path, at = read_path(data, at, end)
    value, at = read_buffer(data, at, end)
    acl, at = read_acl(data, at, end)
    flags, at = read_i32(data, at, end)
    ttl_ms = 0
    if opcode == OP_CREATE_TTL:
        ttl_ms, at = read_i64(data, at, end)
    return CreateRequest(opcode, path, value, acl, flags, ttl_ms), at


def decode_create(opcode: int, data: bytes, at: int, end: int) -> CreateRequest:
    """Decode a create, create2, createContainer or createTTL, as given by `opcode`."""
    return read_create(opcode, data, at, end)[0]


def encode_create(request: CreateRequest) -> bytes:
    """Encode a create of any kind."""
    body = buffer(request.path) + buffer(request.data) + encode_acl(request.acl) + I32.pack(request.flags)
    return body + i64(request.ttl_ms) if request.opcode == OP_CREATE_TTL else body


def read_path_version(data: bytes, at: int, end: int) -> tuple[bytes, int, int]:
    """Read (path, version, next_at)."""
    path, at = read_path(data, at, end)
    version, at = read_i32(data, at, end)
    return path, version, at


def decode_path_version(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    """Decode (path, version) of delete and check, or (path, type or mode) of removeWatches, checkWatches, addWatch."""
    path, version, _ = read_path_version(data, at, end)
    return path, version


def encode_path_version(path: bytes, version: int) -> bytes:
    """Encode a path followed by an int; the inverse of decode_path_version."""
    return buffer(path) + I32.pack(version)


def read_set_data(data: bytes, at: int, end: int) -> tuple[bytes, bytes | None, int, int]:
    """Read (path, data, version, next_at)."""
    start = at + 4
    if IS_COMPILED and start <= end:
        # Null and malformed records are left to the functions below.
        stop: int = start + read_i32_be(data, at)
        value_at = stop + 4
        if start <= stop and value_at <= end:
            value_end: int = value_at + read_i32_be(data, stop)
            if value_at <= value_end and value_end + 4 <= end:
                number: int = read_i32_be(data, value_end)
                return data[start:stop], data[value_at:value_end], number, value_end + 4
    path, at = read_path(data, at, end)
    value, at = read_buffer(data, at, end)
    version, at = read_i32(data, at, end)
    return path, value, version, at


def decode_set_data(data: bytes, at: int, end: int) -> tuple[bytes, bytes | None, int]:
    """Decode a setData: (path, data, version)."""
    path, value, version, _ = read_set_data(data, at, end)
    return path, value, version


def encode_set_data(path: bytes, value: bytes | None, version: int) -> bytes:
    """Encode a setData."""
    return I32.pack(len(path)) + path + buffer(value) + I32.pack(version)


def decode_path_watch(data: bytes, at: int, end: int) -> tuple[bytes, bool]:
    """Decode an exists, getData, getChildren or getChildren2: (path, whether to set a watch)."""
    path, at = read_path(data, at, end)
    if at >= end:
        raise short(at, end)
    return path, data[at] != 0


def encode_path_watch(path: bytes, watch: bool) -> bytes:
    """Encode a path followed by a watch flag; the inverse of decode_path_watch."""
    return I32.pack(len(path)) + path + (b"\x01" if watch else b"\x00")


def decode_path(data: bytes, at: int, end: int) -> bytes:
    """Decode a getACL, sync, getEphemerals, getAllChildrenNumber or deleteContainer, or the reply to create or sync."""
    return read_path(data, at, end)[0]


def encode_path(path: bytes) -> bytes:
    """Encode a single path; the inverse of decode_path."""
    return I32.pack(len(path)) + path


def decode_set_acl(data: bytes, at: int, end: int) -> tuple[bytes, list[Acl] | None, int]:
    """Decode a setACL: (path, access list, version of the access list)."""
    path, at = read_path(data, at, end)
    acl, at = read_acl(data, at, end)
    version, _ = read_i32(data, at, end)
    return path, acl, version


def encode_set_acl(path: bytes, acl: list[Acl] | None, version: int) -> bytes:
    """Encode a setACL."""
    return buffer(path) + encode_acl(acl) + I32.pack(version)


def decode_set_watches(data: bytes, at: int, end: int, *, second: bool) -> WatchSets:
    """Decode a setWatches, or with `second` a setWatches2, which has two more lists."""
    zxid, at = read_i64(data, at, end)
    data_paths, at = read_strings(data, at, end)
    exist, at = read_strings(data, at, end)
    child, at = read_strings(data, at, end)
    if not second:
        return WatchSets(zxid, data_paths, exist, child, [], [])
    persistent, at = read_strings(data, at, end)
    recursive, _ = read_strings(data, at, end)
    return WatchSets(zxid, data_paths, exist, child, persistent, recursive)


def encode_set_watches(sets: WatchSets, *, second: bool) -> bytes:
    """Encode a setWatches, or with `second` a setWatches2."""
    body = i64(sets.relative_zxid) + strings(sets.data) + strings(sets.exist) + strings(sets.child)
    return body + strings(sets.persistent) + strings(sets.recursive) if second else body


def decode_auth(data: bytes, at: int, end: int) -> tuple[int, bytes, bytes]:
    """Decode an auth request: (type, which is always 0; scheme; credential). Never log the credential."""
    kind, at = read_i32(data, at, end)
    scheme, at = read_string(data, at, end)
    credential, _ = read_string(data, at, end)
    return kind, scheme, credential


def encode_auth(scheme: bytes, credential: bytes) -> bytes:
    """Encode an auth request."""
    return I32.pack(0) + buffer(scheme) + buffer(credential)


def decode_sasl(data: bytes, at: int, end: int) -> bytes | None:
    """Decode the token of a SASL request or reply."""
    return read_buffer(data, at, end)[0]


def encode_sasl(token: bytes | None) -> bytes:
    """Encode the token of a SASL request or reply."""
    return buffer(token)


def decode_reconfig(data: bytes, at: int, end: int) -> tuple[bytes, bytes, bytes, int]:
    """Decode a reconfig: (joining, leaving, new members, config version or -1). An omitted argument is empty."""
    joining, at = read_string(data, at, end)
    leaving, at = read_string(data, at, end)
    members, at = read_string(data, at, end)
    config_id, _ = read_i64(data, at, end)
    return joining, leaving, members, config_id


def encode_reconfig(joining: bytes, leaving: bytes, members: bytes, config_id: int) -> bytes:
    """Encode a reconfig. An empty string is sent as null, which is how servers recognize an omitted argument."""
    return buffer(joining or None) + buffer(leaving or None) + buffer(members or None) + i64(config_id)


# --- replies ---------------------------------------------------------------------------------------------------------
# exists, setData, setACL: encode_stat. create, sync: encode_path. delete, check, ping, auth, watches: no body.


def decode_create2_reply(data: bytes, at: int, end: int) -> tuple[bytes, Stat]:
    """Decode the reply to create2, createContainer or createTTL: (path, Stat)."""
    path, at = read_string(data, at, end)
    return path, read_stat(data, at, end)[0]


def encode_create2_reply(path: bytes, stat: Stat) -> bytes:
    """Encode the reply to create2, createContainer or createTTL."""
    return buffer(path) + encode_stat(stat)


def decode_data_reply(data: bytes, at: int, end: int) -> tuple[bytes | None, Stat]:
    """Decode the reply to getData or reconfig: (data, Stat)."""
    value, at = read_buffer(data, at, end)
    return value, read_stat(data, at, end)[0]


def encode_data_reply(value: bytes | None, stat: Stat) -> bytes:
    """Encode the reply to getData or reconfig."""
    return buffer(value) + encode_stat(stat)


def decode_strings_reply(data: bytes, at: int, end: int) -> list[bytes]:
    """Decode the reply to getChildren or getEphemerals."""
    return read_strings(data, at, end)[0]


def encode_strings_reply(values: list[bytes]) -> bytes:
    """Encode the reply to getChildren or getEphemerals."""
    return strings(values)


def decode_children2_reply(data: bytes, at: int, end: int) -> tuple[list[bytes], Stat]:
    """Decode the reply to getChildren2: (children, Stat of the parent)."""
    children, at = read_strings(data, at, end)
    return children, read_stat(data, at, end)[0]


def encode_children2_reply(children: list[bytes], stat: Stat) -> bytes:
    """Encode the reply to getChildren2."""
    return strings(children) + encode_stat(stat)


def decode_acl_reply(data: bytes, at: int, end: int) -> tuple[list[Acl], Stat]:
    """Decode the reply to getACL: (access list, Stat)."""
    acl, at = read_acl(data, at, end)
    return acl or [], read_stat(data, at, end)[0]


def encode_acl_reply(acl: list[Acl], stat: Stat) -> bytes:
    """Encode the reply to getACL."""
    return encode_acl(acl) + encode_stat(stat)


def decode_number_reply(data: bytes, at: int, end: int) -> int:
    """Decode the reply to getAllChildrenNumber."""
    return read_i32(data, at, end)[0]


def encode_number_reply(number: int) -> bytes:
    """Encode the reply to getAllChildrenNumber."""
    return I32.pack(number)


def decode_who_am_i_reply(data: bytes, at: int, end: int) -> list[tuple[bytes, bytes]]:
    """Decode the reply to whoAmI: (scheme, user) of each identity of the session, in no particular order."""
    count, at = read_count(data, at, end, 8)
    identities: list[tuple[bytes, bytes]] = []
    for _ in range(count):
        scheme, at = read_string(data, at, end)
        user, at = read_string(data, at, end)
        identities.append((scheme, user))
    return identities


def encode_who_am_i_reply(identities: list[tuple[bytes, bytes]]) -> bytes:
    """Encode the reply to whoAmI."""
    parts = [I32.pack(len(identities))]
    for scheme, user in identities:
        parts.append(buffer(scheme))
        parts.append(buffer(user))
    return b"".join(parts)
