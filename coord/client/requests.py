"""The requests of a session as methods: each builds one record and decodes the reply.

Every method returns a Deferred (await it). It fails with an OperationError of coord.errors: an error reply of the
server, or ConnectionLoss without a connection or if the connection broke before the reply.

A `watch` is called at most once, as `(event type, path, zxid)`, on the next change of the data that was read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from twisted.internet.defer import Deferred, FirstError, fail, gatherResults, succeed
from twisted.python.failure import Failure

from coord.client import ops
from coord.client.connection import Decode, StoreConnection, WatchOrder
from coord.client.watches import (
    KIND_CHILD,
    KIND_DATA,
    KIND_EXIST,
    KIND_PERSISTENT,
    KIND_RECEIVER,
    KIND_RECURSIVE,
    WatchBook,
    WatchCallback,
    WatchReceiver,
)
from coord.errors import BadArguments, NoNode, OperationError, ThrottledOp
from coord.wire import records as r

T = TypeVar("T")


async def gather(waiting: Iterable[Deferred[T]]) -> list[T]:
    """Return the results of several requests in order.

    Raise the exception of the first request that fails; ignore the other failures.
    """
    try:
        return list(await gatherResults(list(waiting), consumeErrors=True))
    except FirstError as error:
        if error.subFailure.value is None:
            raise
        raise error.subFailure.value from None


def _data(data: bytes, at: int, end: int) -> tuple[bytes, r.Stat]:
    """Decode the reply to getData; null data becomes empty."""
    value, stat = r.decode_data_reply(data, at, end)
    return value or b"", stat


def _names(data: bytes, at: int, end: int) -> list[str]:
    """Decode the reply to getChildren."""
    return [name.decode() for name in r.decode_strings_reply(data, at, end)]


def _names_and_stat(data: bytes, at: int, end: int) -> tuple[list[str], r.Stat]:
    """Decode the reply to getChildren2."""
    names, stat = r.decode_children2_reply(data, at, end)
    return [name.decode() for name in names], stat


def _identities(data: bytes, at: int, end: int) -> list[tuple[str, str]]:
    """Decode the reply to whoAmI."""
    return [(scheme.decode(), user.decode()) for scheme, user in r.decode_who_am_i_reply(data, at, end)]


def _none_if_missing(reason: Failure) -> None:
    """Return None for a NoNode failure: the result of exists."""
    reason.trap(NoNode)  # type: ignore[no-untyped-call]


def _listed(op: ops.Create, acl_of: Callable[[str], list[r.Acl]]) -> ops.Create:
    """Return the create with the default access list of its path, unless it has a list."""
    if op.acl is not None:
        return op
    return ops.Create(op.path, op.data, op.ephemeral, op.sequence, op.container, op.ttl_ms, acl_of(op.path))


class Requests:
    """Base of ZkClient: every request of a connected session."""

    _connection: StoreConnection | None
    _watches: WatchBook

    def __init__(
        self, chroot: str, *, acl: list[r.Acl] = r.OPEN_ACL, acl_of: Callable[[str], list[r.Acl]] | None = None
    ) -> None:
        self.chroot = chroot
        #: Access list of znodes that are created without one, unless `acl_of` returns the list of each path.
        self.default_acl = acl
        self._acl_of = acl_of
        self._chroot = chroot.encode()
        self._chroot_length = len(self._chroot)

    def _refusal(self, path: str) -> OperationError:
        """Return the error for a request without a connection."""
        raise NotImplementedError

    # --- znodes -------------------------------------------------------------------------------------------------------

    def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        container: bool = False,
        ttl_ms: int | None = None,
        acl: list[r.Acl] | None = None,
    ) -> Deferred[str]:
        """Create a znode. The Deferred fires with its path, which ends in the sequence number if `sequence`. Without
        `acl` the znode gets `default_acl`."""
        op = ops.Create(path, data, ephemeral, sequence, container, ttl_ms, acl)
        return self._create(op, with_stat=False)

    def create2(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        container: bool = False,
        ttl_ms: int | None = None,
        acl: list[r.Acl] | None = None,
    ) -> Deferred[tuple[str, r.Stat]]:
        """Create a znode. Fires with its path and Stat."""
        op = ops.Create(path, data, ephemeral, sequence, container, ttl_ms, acl)
        return self._create(op, with_stat=True)

    def _create(self, op: ops.Create, *, with_stat: bool) -> Deferred[Any]:
        """Send a create or create2."""
        try:
            op = op if self._acl_of is None else _listed(op, self._acl_of)
            request = ops.create_request(op, self._full(op.path), self.default_acl, with_stat=with_stat)
        except BadArguments as refusal:
            return fail(refusal)
        decode = self._decode_created_stat if with_stat else self._decode_created
        return self._ask(request.opcode, op.path, r.encode_create(request), decode)

    def get(self, path: str, watch: WatchCallback | None = None) -> Deferred[tuple[bytes, r.Stat]]:
        """Read a znode's data and Stat."""
        return self._read(r.OP_GET_DATA, path, _data, KIND_DATA, watch)

    def set(self, path: str, data: bytes, version: int = r.ANY_VERSION) -> Deferred[r.Stat]:
        """Replace a znode's data if its version is `version`. Fires with the new Stat."""
        full = self._full(path)
        return self._ask(r.OP_SET_DATA, path, r.encode_set_data(full, data, version), r.decode_stat)

    def exists(self, path: str, watch: WatchCallback | None = None) -> Deferred[r.Stat | None]:
        """Return a znode's Stat, or None. The watch is set either way: on the znode's creation or on its next
        change."""
        answer: Deferred[Any] = self._read(r.OP_EXISTS, path, r.decode_stat, KIND_EXIST, watch)
        return answer.addErrback(_none_if_missing)

    def delete(self, path: str, version: int = r.ANY_VERSION) -> Deferred[None]:
        """Delete a znode without children if its version is `version`."""
        return self._ask(r.OP_DELETE, path, r.encode_path_version(self._full(path), version), None)

    def children(self, path: str, watch: WatchCallback | None = None) -> Deferred[list[str]]:
        """Return the names of a znode's children, in no particular order."""
        return self._read(r.OP_GET_CHILDREN, path, _names, KIND_CHILD, watch)

    def children2(self, path: str, watch: WatchCallback | None = None) -> Deferred[tuple[list[str], r.Stat]]:
        """Return the names of a znode's children and its Stat."""
        return self._read(r.OP_GET_CHILDREN2, path, _names_and_stat, KIND_CHILD, watch)

    def get_acl(self, path: str) -> Deferred[tuple[list[r.Acl], r.Stat]]:
        """Return a znode's access list and Stat."""
        return self._ask(r.OP_GET_ACL, path, r.encode_path(self._full(path)), r.decode_acl_reply)

    def set_acl(self, path: str, acl: list[r.Acl], version: int = r.ANY_VERSION) -> Deferred[r.Stat]:
        """Replace a znode's access list if the list's version is `version`. Fires with the new Stat."""
        body = r.encode_set_acl(self._full(path), acl, version)
        return self._ask(r.OP_SET_ACL, path, body, r.decode_stat)

    def sync(self, path: str = "/") -> Deferred[None]:
        """Wait until this server has applied everything that was committed when the request arrived."""
        return self._ask(r.OP_SYNC, path, r.encode_path(self._full(path)), None)

    # --- several at once ----------------------------------------------------------------------------------------------

    def multi(self, operations: list[ops.WriteOp]) -> Deferred[list[ops.WriteResult]]:
        """Perform all of `operations` or none. Fires with one result per operation.

        Fails with MultiFailed(index, error, errors) when the server rejects an operation.
        """
        if (acl_of := self._acl_of) is not None:
            operations = [_listed(op, acl_of) if isinstance(op, ops.Create) else op for op in operations]
        try:
            paths, body = ops.multi_body(operations, self._chroot, self.default_acl)
        except BadArguments as refusal:
            return fail(refusal)
        decode = partial(ops.write_results, paths, self._chroot_length)
        return self._ask(r.OP_MULTI, paths[0] if paths else "/", body, decode)

    def multi_read(self, operations: list[ops.ReadOp]) -> Deferred[list[ops.ReadResult]]:
        """Read several znodes. Fires with one result per operation; errors are results.

        The server returns a few megabytes per reply, and this method requests the rest again. So the later parts of a
        large answer may show a later state of the tree.
        """
        return self._read_part(operations, [])

    def _read_part(self, operations: list[ops.ReadOp], found: list[ops.ReadResult]) -> Deferred[list[ops.ReadResult]]:
        """Read `operations`, whose results follow those in `found`."""
        try:
            paths, body = ops.read_body(operations, self._chroot)
        except BadArguments as refusal:
            return fail(refusal)

        def more(results: list[ops.ReadResult]) -> list[ops.ReadResult] | Deferred[list[ops.ReadResult]]:
            done = len(results)
            while done > 1 and isinstance(results[done - 1], ThrottledOp):
                done -= 1
            found.extend(results[:done])
            return self._read_part(operations[done:], found) if done < len(operations) and done else found

        answer: Deferred[list[ops.ReadResult]] = self._ask(
            r.OP_MULTI_READ, paths[0] if paths else "/", body, partial(ops.read_results, paths)
        )
        return answer.addCallback(more)

    # --- watches ------------------------------------------------------------------------------------------------------

    def add_watch(self, path: str, callback: WatchCallback, recursive: bool = True) -> Deferred[None]:
        """Call `callback` for every change of `path`, and with `recursive` of everything below it, until removed.

        The watch survives reconnects; the callback then gets EVENT_GAP. A recursive watch gets no events for lists of
        children, because the event of the child itself has the same information. The watch ends with the session.
        """
        mode, kind = (
            (r.WATCH_PERSISTENT_RECURSIVE, KIND_RECURSIVE) if recursive else (r.WATCH_PERSISTENT, KIND_PERSISTENT)
        )
        full = self._full(path)
        return self._ask(r.OP_ADD_WATCH, path, r.encode_path_version(full, mode), None, (kind, full, callback))

    def watch_below(self, path: str, receiver: WatchReceiver) -> Deferred[None]:
        """Like a recursive `add_watch`, but `receiver` takes a list of events: those that arrive together.

        EVENT_GAP comes alone. An event that also fires another watch of this session comes alone, too, so that each
        callback gets the events in their order.
        """
        full = self._full(path)
        body = r.encode_path_version(full, r.WATCH_PERSISTENT_RECURSIVE)
        return self._ask(r.OP_ADD_WATCH, path, body, None, (KIND_RECEIVER, full, receiver))

    def remove_watch(
        self, path: str, callback: WatchCallback | WatchReceiver | None = None, recursive: bool = True
    ) -> Deferred[None]:
        """Remove a persistent watch, for one callback or all. Fails with NoWatcher if the server has no such watch."""
        kind, watcher = (
            (KIND_RECURSIVE, r.WATCHER_PERSISTENT_RECURSIVE) if recursive else (KIND_PERSISTENT, r.WATCHER_PERSISTENT)
        )
        full = self._full(path)
        shared = self._watches.others(kind, full, callback)
        self._watches.discard(kind, full, callback)
        if shared:
            return succeed(None)
        return self._ask(r.OP_REMOVE_WATCHES, path, r.encode_path_version(full, watcher), None)

    def check_watches(self, path: str, watcher: int) -> Deferred[None]:
        """Succeed if the server holds a watch of this type (WATCHER_*) for this session; fail with NoWatcher
        otherwise."""
        return self._ask(r.OP_CHECK_WATCHES, path, r.encode_path_version(self._full(path), watcher), None)

    # --- the rest -----------------------------------------------------------------------------------------------------

    def ephemerals(self, prefix: str = "/") -> Deferred[list[str]]:
        """Return the paths of this session's ephemeral znodes that begin with `prefix`."""
        return self._ask(r.OP_GET_EPHEMERALS, prefix, r.encode_path(self._full(prefix)), self._decode_paths)

    def all_children_number(self, path: str) -> Deferred[int]:
        """Return the number of znodes below `path`."""
        body = r.encode_path(self._full(path))
        return self._ask(r.OP_GET_ALL_CHILDREN_NUMBER, path, body, r.decode_number_reply)

    def who_am_i(self) -> Deferred[list[tuple[str, str]]]:
        """Return the session's identities as (scheme, user)."""
        return self._ask(r.OP_WHO_AM_I, "/", b"", _identities)

    def reconfig(
        self, *, joining: str = "", leaving: str = "", members: str = "", config_id: int = -1
    ) -> Deferred[tuple[bytes, r.Stat]]:
        """Change the ensemble. Fires with the new /zookeeper/config. Pass either joining and leaving, or members."""
        body = r.encode_reconfig(joining.encode(), leaving.encode(), members.encode(), config_id)
        return self._ask(r.OP_RECONFIG, "/", body, _data)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _ask(
        self, opcode: int, path: str, body: bytes, decode: Decode | None, watch: WatchOrder | None = None
    ) -> Deferred[Any]:
        """Send a request, or fail without a connection."""
        connection = self._connection
        if connection is None:
            return fail(self._refusal(path))
        if path[:1] != "/":
            return fail(BadArguments(path, "a path begins with /"))
        return connection.ask(opcode, body, decode, path, watch)

    def _read(self, opcode: int, path: str, decode: Decode, kind: int, watch: WatchCallback | None) -> Deferred[Any]:
        """Send a read, with a one-shot watch if `watch` is given."""
        full = self._full(path)
        if watch is None:
            return self._ask(opcode, path, r.encode_path_watch(full, False), decode)
        return self._ask(opcode, path, r.encode_path_watch(full, True), decode, (kind, full, watch))

    def _full(self, path: str) -> bytes:
        """Return the server's form of the path: with chroot, as bytes."""
        return ops.below(self._chroot, path)

    def _shown(self, path: bytes) -> str:
        """Return the caller's form of the path: without chroot, as str."""
        return path[self._chroot_length :].decode() or "/"

    def _kind_for(self, kind: int, *, exists: bool) -> int:
        """Return the kind of watch that the server set: `exists` sets a data watch if the znode exists."""
        return KIND_DATA if kind == KIND_EXIST and exists else kind

    def _decode_created(self, data: bytes, at: int, end: int) -> str:
        """Decode the reply to a create. The Stat that follows for containers and TTL znodes is ignored."""
        return self._shown(r.decode_path(data, at, end))

    def _decode_created_stat(self, data: bytes, at: int, end: int) -> tuple[str, r.Stat]:
        """Decode the reply to create2."""
        path, stat = r.decode_create2_reply(data, at, end)
        return self._shown(path), stat

    def _decode_paths(self, data: bytes, at: int, end: int) -> list[str]:
        """Decode the reply to getEphemerals."""
        return [self._shown(path) for path in r.decode_strings_reply(data, at, end)]
