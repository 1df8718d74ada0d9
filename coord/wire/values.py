"""Values of the protocol's larger records: plain classes without logic.

Strings are UTF-8 bytes, as everywhere in coord.wire. Every name here is also in coord.wire.records.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from coord.wire.opcodes import PERM_ALL

PASSWD_BYTES: Final = 16
NO_PASSWD: Final = bytes(PASSWD_BYTES)


@mypyc_attr(acyclic=True)
class Stat:
    """A znode's metadata as sent to clients. Times are ms since 1970; ephemeral_owner is 0 for a persistent znode."""

    def __init__(
        self,
        czxid: int = 0,
        mzxid: int = 0,
        ctime: int = 0,
        mtime: int = 0,
        version: int = 0,
        cversion: int = 0,
        aversion: int = 0,
        ephemeral_owner: int = 0,
        data_length: int = 0,
        num_children: int = 0,
        pzxid: int = 0,
    ) -> None:
        self.czxid = czxid
        self.mzxid = mzxid
        self.ctime = ctime
        self.mtime = mtime
        self.version = version
        self.cversion = cversion
        self.aversion = aversion
        self.ephemeral_owner = ephemeral_owner
        self.data_length = data_length
        self.num_children = num_children
        self.pzxid = pzxid

    def as_tuple(self) -> tuple[int, int, int, int, int, int, int, int, int, int, int]:
        """Return the fields in wire order."""
        return (
            self.czxid,
            self.mzxid,
            self.ctime,
            self.mtime,
            self.version,
            self.cversion,
            self.aversion,
            self.ephemeral_owner,
            self.data_length,
            self.num_children,
            self.pzxid,
        )

    def __eq__(self, other: object) -> bool:
        """Return True if every field is equal."""
        return isinstance(other, Stat) and self.as_tuple() == other.as_tuple()

    def __hash__(self) -> int:
        """Return the hash of all fields."""
        return hash(self.as_tuple())

    def __repr__(self) -> str:
        """Return the short form for logs: zxids, versions, children."""
        return (
            f"Stat(czxid={self.czxid:#x} mzxid={self.mzxid:#x} pzxid={self.pzxid:#x} version={self.version}"
            f" cversion={self.cversion} aversion={self.aversion} owner={self.ephemeral_owner:#x}"
            f" bytes={self.data_length} children={self.num_children})"
        )


@mypyc_attr(acyclic=True)
class Acl:
    """One entry of an access list: permission bits for an identity `scheme:id`."""

    def __init__(self, perms: int, scheme: bytes, id: bytes) -> None:  # noqa: A002
        self.perms = perms
        self.scheme = scheme
        self.id = id

    def __eq__(self, other: object) -> bool:
        """Return True if permissions and identity are equal."""
        return (
            isinstance(other, Acl) and self.perms == other.perms and self.scheme == other.scheme and self.id == other.id
        )

    def __hash__(self) -> int:
        """Return the hash of permissions and identity."""
        return hash((self.perms, self.scheme, self.id))

    def __repr__(self) -> str:
        """Return the form `Acl(31,world:anyone)`."""
        return f"Acl({self.perms},{self.scheme.decode(errors='replace')}:{self.id.decode(errors='replace')})"


#: Grants all permissions to everyone.
OPEN_ACL: Final[list[Acl]] = [Acl(PERM_ALL, b"world", b"anyone")]


class ConnectRequest:
    """The first record of a connection. `has_read_only`: the client sent the read-only byte of ZooKeeper 3.4+; then the
    response has it, too."""

    def __init__(
        self,
        last_zxid_seen: int = 0,
        timeout_ms: int = 0,
        session_id: int = 0,
        passwd: bytes = NO_PASSWD,
        read_only: bool = False,
        has_read_only: bool = True,
        protocol_version: int = 0,
    ) -> None:
        self.protocol_version = protocol_version
        self.last_zxid_seen = last_zxid_seen
        self.timeout_ms = timeout_ms
        self.session_id = session_id
        self.passwd = passwd
        self.read_only = read_only
        self.has_read_only = has_read_only


class ConnectResponse:
    """The response to a ConnectRequest. Timeout 0 with session 0 means that the session has expired."""

    def __init__(
        self,
        timeout_ms: int,
        session_id: int,
        passwd: bytes,
        read_only: bool = False,
        has_read_only: bool = True,
        protocol_version: int = 0,
    ) -> None:
        self.protocol_version = protocol_version
        self.timeout_ms = timeout_ms
        self.session_id = session_id
        self.passwd = passwd
        self.read_only = read_only
        self.has_read_only = has_read_only


@mypyc_attr(acyclic=True)
class CreateRequest:
    """A create, create2, createContainer or createTTL. `acl` is None for null on the wire; `ttl_ms` is 0 for no TTL."""

    def __init__(
        self,
        opcode: int,
        path: bytes,
        data: bytes | None,
        acl: list[Acl] | None,
        flags: int,
        ttl_ms: int = 0,
    ) -> None:
        self.opcode = opcode
        self.path = path
        self.data = data
        self.acl = acl
        self.flags = flags
        self.ttl_ms = ttl_ms


@mypyc_attr(acyclic=True)
class MultiOp:
    """One part of a multi or multiRead.

    The fields used depend on `opcode`: a create of any kind uses `create`; delete and check use `version`; setData
    uses `data` and `version`; getData and getChildren use `watch`, which the server ignores inside a multi.
    """

    def __init__(
        self,
        opcode: int,
        path: bytes,
        data: bytes | None = None,
        version: int = -1,
        create: CreateRequest | None = None,
        watch: bool = False,
    ) -> None:
        self.opcode = opcode
        self.path = path
        self.data = data
        self.version = version
        self.create = create
        self.watch = watch


@mypyc_attr(acyclic=True)
class MultiResult:
    """One part of the reply to a multi or multiRead. The fields used depend on `opcode`; OP_ERROR uses only `err`."""

    def __init__(
        self,
        opcode: int,
        err: int = 0,
        path: bytes = b"",
        data: bytes | None = None,
        stat: Stat | None = None,
        children: list[bytes] | None = None,
    ) -> None:
        self.opcode = opcode
        self.err = err
        self.path = path
        self.data = data
        self.stat = stat
        self.children = children


class WatchSets:
    """The watches that a client restores after a reconnect. setWatches has only the first three lists."""

    def __init__(
        self,
        relative_zxid: int,
        data: list[bytes],
        exist: list[bytes],
        child: list[bytes],
        persistent: list[bytes],
        recursive: list[bytes],
    ) -> None:
        self.relative_zxid = relative_zxid
        self.data = data
        self.exist = exist
        self.child = child
        self.persistent = persistent
        self.recursive = recursive


class WatcherEvent:
    """A fired watch, or a change of the connection state when `event_type` is EVENT_NONE."""

    def __init__(self, event_type: int, state: int, path: bytes) -> None:
        self.event_type = event_type
        self.state = state
        self.path = path
