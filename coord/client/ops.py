"""Operations of a multi and of a multi-read, and digest access lists, in the caller's terms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mypy_extensions import mypyc_attr

from coord.errors import BadArguments, MultiFailed, OperationError, error_for
from coord.wire.digests import digest_of
from coord.wire.multi import decode_multi_reply, encode_multi
from coord.wire.opcodes import (
    ANY_VERSION,
    CREATE_CONTAINER,
    CREATE_EPHEMERAL,
    CREATE_SEQUENTIAL,
    CREATE_SEQUENTIAL_TTL,
    CREATE_TTL,
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
    PERM_ALL,
)
from coord.wire.values import OPEN_ACL, Acl, CreateRequest, MultiOp, MultiResult, Stat

#: Estimated size of an operation in a frame, besides its path and data.
OP_OVERHEAD_BYTES: Final = 48


@mypyc_attr(acyclic=True)
class _Op:
    """An operation on a path. Operations are values: equal if all parts are equal, and never changed."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    def _parts(self) -> tuple[object, ...]:
        return (self.path,)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, _Op) and self._parts() == other._parts()

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._parts()))})"


@mypyc_attr(acyclic=True)
class Create(_Op):
    """Create a znode. The result is its path."""

    __slots__ = ("acl", "container", "data", "ephemeral", "sequence", "ttl_ms")

    def __init__(
        self,
        path: str,
        data: bytes = b"",
        ephemeral: bool = False,
        sequence: bool = False,
        container: bool = False,
        ttl_ms: int | None = None,
        acl: list[Acl] | None = None,
    ) -> None:
        super().__init__(path)
        self.data = data
        self.ephemeral = ephemeral
        self.sequence = sequence
        self.container = container
        self.ttl_ms = ttl_ms
        self.acl = acl

    def _parts(self) -> tuple[object, ...]:
        return self.path, self.data, self.ephemeral, self.sequence, self.container, self.ttl_ms, self.acl


@mypyc_attr(acyclic=True)
class SetData(_Op):
    """Replace a znode's data. The result is its Stat."""

    __slots__ = ("data", "version")

    def __init__(self, path: str, data: bytes, version: int = ANY_VERSION) -> None:
        super().__init__(path)
        self.data = data
        self.version = version

    def _parts(self) -> tuple[object, ...]:
        return self.path, self.data, self.version


@mypyc_attr(acyclic=True)
class Delete(_Op):
    """Delete a znode. The result is None."""

    __slots__ = ("version",)

    def __init__(self, path: str, version: int = ANY_VERSION) -> None:
        super().__init__(path)
        self.version = version

    def _parts(self) -> tuple[object, ...]:
        return self.path, self.version


@mypyc_attr(acyclic=True)
class Check(_Op):
    """Fail the multi unless the znode exists with this version. The result is None."""

    __slots__ = ("version",)

    def __init__(self, path: str, version: int) -> None:
        super().__init__(path)
        self.version = version

    def _parts(self) -> tuple[object, ...]:
        return self.path, self.version


@mypyc_attr(acyclic=True)
class GetData(_Op):
    """Read a znode. The result is (data, Stat) or an OperationError."""

    __slots__ = ()


class GetChildren(_Op):
    """List a znode's children. The result is a list of names or an OperationError."""

    __slots__ = ()


WriteOp = Create | SetData | Delete | Check
ReadOp = GetData | GetChildren
WriteResult = str | Stat | None
ReadResult = tuple[bytes, Stat] | list[str] | OperationError


def weight(op: WriteOp, acl_bytes: int = 0) -> int:
    """Return roughly the bytes that an operation adds to a multi. `acl_bytes` is the access list of a create."""
    if isinstance(op, Create):
        return len(op.path) + len(op.data) + OP_OVERHEAD_BYTES + acl_bytes
    data = len(op.data) if isinstance(op, SetData) else 0
    return len(op.path) + data + OP_OVERHEAD_BYTES


def digest_acl(user: str, password: str, perms: int = PERM_ALL) -> Acl:
    """Return the access list entry for a user of scheme `digest`. The entry holds a hash, not the password."""
    return Acl(perms, b"digest", digest_of(user, password).encode())


def create_request(
    op: Create, path: bytes, default_acl: list[Acl] = OPEN_ACL, *, with_stat: bool = False
) -> CreateRequest:
    """Return the wire form of a create of `path` (chroot included). An `op` without an access list gets `default_acl`.

    Raise BadArguments for kinds of znode that exclude each other.
    """
    acl = default_acl if op.acl is None else op.acl
    if op.container:
        if op.ephemeral or op.sequence or op.ttl_ms is not None:
            raise BadArguments(op.path, "a container cannot be ephemeral or sequential and has no ttl")
        return CreateRequest(OP_CREATE_CONTAINER, path, op.data, acl, CREATE_CONTAINER)
    if op.ttl_ms is not None:
        if op.ephemeral or op.ttl_ms <= 0:
            raise BadArguments(op.path, "a ttl must be positive and cannot be combined with ephemeral")
        flags = CREATE_SEQUENTIAL_TTL if op.sequence else CREATE_TTL
        return CreateRequest(OP_CREATE_TTL, path, op.data, acl, flags, op.ttl_ms)
    flags = (CREATE_EPHEMERAL if op.ephemeral else 0) | (CREATE_SEQUENTIAL if op.sequence else 0)
    return CreateRequest(OP_CREATE2 if with_stat else OP_CREATE, path, op.data, acl, flags)


def multi_body(operations: Sequence[WriteOp], chroot: bytes, default_acl: list[Acl]) -> tuple[list[str], bytes]:
    """Return the paths of a multi and its body. Raise BadArguments for a relative path and as `create_request`."""
    paths: list[str] = []
    parts: list[MultiOp] = []
    for op in operations:
        path = op.path
        full = full_path(path, chroot)
        paths.append(path)
        if isinstance(op, Create):
            create = create_request(op, full, default_acl)
            parts.append(MultiOp(create.opcode, full, create=create))
        elif isinstance(op, SetData):
            parts.append(MultiOp(OP_SET_DATA, full, op.data, op.version))
        elif isinstance(op, Delete):
            parts.append(MultiOp(OP_DELETE, full, None, op.version))
        else:
            parts.append(MultiOp(OP_CHECK, full, None, op.version))
    return paths, encode_multi(parts)


def read_body(operations: Sequence[ReadOp], chroot: bytes) -> tuple[list[str], bytes]:
    """Return the paths of a multi-read and its body. Raise BadArguments for a relative path."""
    paths = [op.path for op in operations]
    parts = [
        MultiOp(OP_GET_DATA if isinstance(op, GetData) else OP_GET_CHILDREN, full_path(op.path, chroot))
        for op in operations
    ]
    return paths, encode_multi(parts)


def full_path(path: str, chroot: bytes) -> bytes:
    """Return the server's form of a path: with chroot, as bytes. Raise BadArguments for a relative path: after a
    chroot, `x` would name a sibling of the chroot."""
    if not path.startswith("/"):
        raise BadArguments(path, "a path begins with /")
    return below(chroot, path)


def below(chroot: bytes, path: str) -> bytes:
    """Return the server's form of an absolute path below `chroot`, b"" for none."""
    if chroot:
        return chroot if path == "/" else chroot + path.encode()
    return path.encode()


def write_results(paths: list[str], chroot_length: int, data: bytes, at: int, end: int) -> list[WriteResult]:
    """Decode the reply to a multi on `paths` and remove the chroot from created paths. Raise MultiFailed."""
    results = decode_multi_reply(data, at, end)
    found: list[WriteResult] = []
    for result in results:
        if result.opcode == OP_ERROR:
            _raise_failed(results, paths)
        elif result.path:
            found.append(result.path[chroot_length:].decode() or "/")
        else:
            found.append(result.stat)
    return found


def _raise_failed(results: list[MultiResult], paths: list[str]) -> None:
    """Raise MultiFailed if a part has failed."""
    errors = [error_for(part.err, path) if part.err else None for part, path in zip(results, paths, strict=False)]
    # The parts before the failed one have error 0, the parts after it RuntimeInconsistency.
    for position, error in enumerate(errors):
        if error is not None:
            raise MultiFailed(position, error, errors)


def read_results(paths: list[str], data: bytes, at: int, end: int) -> list[ReadResult]:
    """Decode the reply to a multi-read on `paths`. Failed parts are returned as errors in the list."""
    found: list[ReadResult] = []
    for result, path in zip(decode_multi_reply(data, at, end), paths, strict=False):
        if result.opcode == OP_ERROR:
            found.append(error_for(result.err, path))
        elif result.opcode == OP_GET_DATA:
            assert result.stat is not None, "a getData result is decoded with its Stat"
            found.append((result.data or b"", result.stat))
        else:
            found.append([name.decode() for name in result.children or []])
    return found
