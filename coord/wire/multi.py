"""Requests and replies of a multi and of a multiRead. The conventions are those of `coord.wire.codec`."""

from __future__ import annotations

import struct
from typing import Final

from coord.errors import RemoteProtocolError
from coord.wire.codec import (
    encode_create,
    encode_path_version,
    encode_path_watch,
    encode_set_data,
    encode_stat,
    read_create,
    read_path,
    read_path_version,
    read_set_data,
    read_stat,
)
from coord.wire.jute import (
    I32,
    IS_COMPILED,
    NULL,
    buffer,
    read_bool,
    read_buffer,
    read_i32,
    read_string,
    read_strings,
    short,
    strings,
)
from coord.wire.opcodes import (
    OP_CHECK,
    OP_CREATE,
    OP_CREATE2,
    OP_CREATE_CONTAINER,
    OP_CREATE_TTL,
    OP_DELETE,
    OP_ERROR,
    OP_GET_CHILDREN,
    OP_GET_DATA,
    OP_SET_DATA,
)
from coord.wire.values import CreateRequest, MultiOp, MultiResult

if IS_COMPILED:
    from librt.strings import BytesWriter, read_i32_be, write_i32_be, write_i64_be

_MULTI_HEADER: Final = struct.Struct("!i?i")
_MULTI_END: Final = _MULTI_HEADER.pack(OP_ERROR, True, -1)


def _read_multi_header(data: bytes, at: int, end: int) -> tuple[int, bool, int, int]:
    """Return (type, done, err, next_at)."""
    if at + 9 > end:
        raise short(at, end)
    if IS_COMPILED:
        return read_i32_be(data, at), data[at + 4] != 0, read_i32_be(data, at + 5), at + 9
    opcode, done, err = _MULTI_HEADER.unpack_from(data, at)
    return opcode, done, err, at + 9


def decode_multi(data: bytes, at: int, end: int) -> list[MultiOp]:
    """Decode the parts of a multi or multiRead. The tree, not this function, rejects a mix of reads and writes."""
    ops: list[MultiOp] = []
    opcode, done, _, at = _read_multi_header(data, at, end)
    while not done:
        if opcode == OP_SET_DATA:
            path, value, version, at = read_set_data(data, at, end)
            ops.append(MultiOp(opcode, path, value, version))
        elif opcode in (OP_CHECK, OP_DELETE):
            path, version, at = read_path_version(data, at, end)
            ops.append(MultiOp(opcode, path, None, version))
        elif opcode in (OP_CREATE, OP_CREATE2, OP_CREATE_CONTAINER, OP_CREATE_TTL):
            create, at = read_create(opcode, data, at, end)
            ops.append(MultiOp(opcode, create.path, create.data, -1, create))
        elif opcode in (OP_GET_DATA, OP_GET_CHILDREN):
            path, at = read_path(data, at, end)
            watch, at = read_bool(data, at, end)
            ops.append(MultiOp(opcode, path, None, -1, None, watch))
        else:
            raise RemoteProtocolError(f"operation {opcode} has no place in a multi")
        opcode, done, _, at = _read_multi_header(data, at, end)
    return ops


def _write_buffer(out: BytesWriter, value: bytes | None) -> None:
    """Append the bytes that `buffer` returns."""
    if value is None:
        out.write(NULL)
    else:
        write_i32_be(out, len(value))
        out.write(value)


def _write_create(out: BytesWriter, request: CreateRequest) -> None:
    """Append the bytes that `encode_create` returns."""
    _write_buffer(out, request.path)
    _write_buffer(out, request.data)
    acl = request.acl
    if acl is None:
        out.write(NULL)
    else:
        write_i32_be(out, len(acl))
        for line in acl:
            write_i32_be(out, line.perms)
            _write_buffer(out, line.scheme)
            _write_buffer(out, line.id)
    write_i32_be(out, request.flags)
    if request.opcode == OP_CREATE_TTL:
        write_i64_be(out, request.ttl_ms)


def _encode_multi_natively(ops: list[MultiOp]) -> bytes:
    """Encode a multi or multiRead. Compiled builds only."""
    out = BytesWriter()
    for op in ops:
        opcode = op.opcode
        write_i32_be(out, opcode)
        out.append(0)
        write_i32_be(out, -1)
        create = op.create
        if create is not None:
            _write_create(out, create)
            continue
        _write_buffer(out, op.path)
        if opcode == OP_SET_DATA:
            _write_buffer(out, op.data)
            write_i32_be(out, op.version)
        elif opcode in (OP_CHECK, OP_DELETE):
            write_i32_be(out, op.version)
        else:
            out.append(1 if op.watch else 0)
    out.write(_MULTI_END)
    return out.getvalue()


def encode_multi(ops: list[MultiOp]) -> bytes:
    """Encode a multi or multiRead."""
    if IS_COMPILED:
        return _encode_multi_natively(ops)
    parts: list[bytes] = []
    for op in ops:
        opcode = op.opcode
        parts.append(_MULTI_HEADER.pack(opcode, False, -1))
        if op.create is not None:
            parts.append(encode_create(op.create))
        elif opcode == OP_SET_DATA:
            parts.append(encode_set_data(op.path, op.data, op.version))
        elif opcode in (OP_CHECK, OP_DELETE):
            parts.append(encode_path_version(op.path, op.version))
        else:
            parts.append(encode_path_watch(op.path, op.watch))
    parts.append(_MULTI_END)
    return b"".join(parts)


def decode_multi_reply(data: bytes, at: int, end: int) -> list[MultiResult]:
    """Decode the reply to a multi or multiRead: one result per part of the request."""
    results: list[MultiResult] = []
    opcode, done, _, at = _read_multi_header(data, at, end)
    while not done:
        result = MultiResult(opcode)
        if opcode == OP_ERROR:
            result.err, at = read_i32(data, at, end)
        elif opcode == OP_SET_DATA:
            result.stat, at = read_stat(data, at, end)
        elif opcode == OP_CREATE:
            result.path, at = read_string(data, at, end)
        elif opcode in (OP_CREATE2, OP_CREATE_CONTAINER, OP_CREATE_TTL):
            result.path, at = read_string(data, at, end)
            result.stat, at = read_stat(data, at, end)
        elif opcode == OP_GET_DATA:
            result.data, at = read_buffer(data, at, end)
            result.stat, at = read_stat(data, at, end)
        elif opcode == OP_GET_CHILDREN:
            result.children, at = read_strings(data, at, end)
        elif opcode not in (OP_CHECK, OP_DELETE):
            raise RemoteProtocolError(f"operation {opcode} has no place in the answer to a multi")
        results.append(result)
        opcode, done, _, at = _read_multi_header(data, at, end)
    return results


def encode_multi_reply(results: list[MultiResult]) -> bytes:
    """Encode the reply to a multi or multiRead."""
    parts: list[bytes] = []
    for result in results:
        opcode = result.opcode
        parts.append(_MULTI_HEADER.pack(opcode, False, result.err))
        if opcode == OP_ERROR:
            parts.append(I32.pack(result.err))
        elif opcode == OP_GET_DATA:
            parts.append(buffer(result.data))
        elif opcode == OP_GET_CHILDREN:
            parts.append(strings(result.children or []))
        elif opcode in (OP_CREATE, OP_CREATE2, OP_CREATE_CONTAINER, OP_CREATE_TTL):
            parts.append(buffer(result.path))
        if result.stat is not None and opcode != OP_CREATE:
            parts.append(encode_stat(result.stat))
    parts.append(_MULTI_END)
    return b"".join(parts)
