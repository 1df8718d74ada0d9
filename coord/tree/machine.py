"""The replicated state machine: committed batches go in, outcomes and events come out.

    batch bytes -> command -> plan (deltas or an error code) -> apply to the tree -> CommandOutcome(reply body, events)

Two replicas that apply the same batches have the same tree, sessions, zxids and digest. The state depends neither on a
clock nor on randomness nor on the order of a set. No request of a client raises an exception: a rejected command is an
outcome, too. It takes a zxid and changes nothing else. A malformed record is rejected with MarshallingError.

Differences from ZooKeeper 3.9, each where ZooKeeper is plainly at fault:

- A malformed write is rejected; in ZooKeeper it stops the ensemble.
- create with the container flag makes a container; in ZooKeeper a persistent znode, because the flag is lost.
- createTTL without a TTL flag is BadArguments; in ZooKeeper it can kill every server.
- deleteContainer deletes only znodes that may be reaped, and needs the permission to delete.
- A hard quota rejects only growth, and counts the earlier parts of the same multi.
- Sequence numbers continue after 2147483647 instead of turning negative; a version never becomes -1.
- No client can have the session id 0.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import Final

from mypy_extensions import mypyc_attr

from coord.errors import (
    AUTH_FAILED,
    BAD_ARGUMENTS,
    MARSHALLING_ERROR,
    OK,
    QUOTA_EXCEEDED,
    RECONFIG_DISABLED,
    RUNTIME_INCONSISTENCY,
    SESSION_EXPIRED,
    SESSION_MOVED,
    UNIMPLEMENTED,
    QuotaExceeded,
    RemoteProtocolError,
    UnsupportedLevel,
)
from coord.tree.acl import IDENTITY_SCHEMES, IP, AccessList, Identity
from coord.tree.command import (
    BATCH_HEADER,
    BATCH_HEADER_BYTES,
    COMMAND_HEADER,
    COMMAND_HEADER_BYTES,
    COUNT_MASK,
    INTERNAL_SESSION,
    IS_FULL,
    Command,
    decode_attach,
    decode_create,
    decode_create_session,
    decode_identities,
    decode_set_data,
)
from coord.tree.datatree import CONFIG, DataTree, Event
from coord.tree.levels import CREATE_TTL_IN_MULTI, SUPPORTED, decode_level
from coord.tree.node import KIND_CONTAINER, CreateDelta, DeleteDelta, Delta, SetDataDelta, parent_of
from coord.tree.plan import (
    Planned,
    plan_create,
    plan_delete,
    plan_delete_container,
    plan_multi,
    plan_set_acl,
    plan_set_data,
)
from coord.tree.reads import Answer, WatchRestore, answer_read, begin_watches
from coord.tree.sessions import Session, SessionTable, passwords_match
from coord.tree.snapshot import SnapshotDecoder, write_snapshot
from coord.tree.watches import Notification, WatchTable
from coord.wire.codec import decode_path, decode_path_version, decode_set_acl
from coord.wire.jute import I32, IS_COMPILED, i32
from coord.wire.multi import decode_multi
from coord.wire.opcodes import (
    CREATE_CONTAINER,
    OP_ATTACH,
    OP_AUTH,
    OP_CHECK,
    OP_CLOSE_SESSION,
    OP_CREATE,
    OP_CREATE2,
    OP_CREATE_CONTAINER,
    OP_CREATE_SESSION,
    OP_CREATE_TTL,
    OP_DELETE,
    OP_DELETE_CONTAINER,
    OP_ERROR,
    OP_EXPIRE,
    OP_MULTI,
    OP_RECONFIG,
    OP_SET_ACL,
    OP_SET_DATA,
    OP_SET_WATCHES2,
    PERM_READ,
)
from coord.wire.values import MultiOp

if IS_COMPILED:
    from librt.strings import BytesWriter, read_i32_be, read_i64_be

_MASK_64: Final = (1 << 64) - 1
#: Factors that keep the digest parts of sessions and level apart from the tree's.
_SESSION_WEIGHT: Final = 0x9E3779B97F4A7C15
_LEVEL_WEIGHT: Final = 0xBF58476D1CE4E5B9

_MULTI_END: Final = i32(OP_ERROR) + b"\1" + i32(-1)
_DONE: Final = b"\0" + i32(OK)
_SET_DONE: Final = i32(OP_SET_DATA) + _DONE
_pack_i32: Final = I32.pack
_unpack_command: Final = COMMAND_HEADER.unpack_from
_NO_EVENTS: Final[list[Event]] = []


@mypyc_attr(acyclic=True)
class CommandOutcome:
    """The result of one command.

    `err` is OK or an error code; `body` is the reply record, empty after an error. `events` are for watchers, in order:
    (event type, path, access list that decides which sessions may get the event). `owner` is the command's: for
    CREATE_SESSION and ATTACH it is a token of the waiting connection, and `zxid` is the connection's owner from now on.
    """

    def __init__(self, zxid: int, session_id: int, owner: int, cxid: int, opcode: int) -> None:
        self.zxid = zxid
        self.session_id = session_id
        self.owner = owner
        self.cxid = cxid
        self.opcode = opcode
        self.err = OK
        self.body = b""
        self.events: list[Event] = _NO_EVENTS


class StateMachine:
    """Tree and sessions at `last_zxid`. One per node; used from one thread."""

    def __init__(
        self, tree: DataTree | None = None, sessions: SessionTable | None = None, supported: int = SUPPORTED
    ) -> None:
        """`supported` is the highest feature level of this build, or of the build that a test simulates."""
        assert supported >= 0, supported
        self.tree = tree if tree is not None else DataTree()
        self.sessions = sessions if sessions is not None else SessionTable()
        self.supported = supported
        #: The feature level in force, by which the next command is planned. Raised by a LEVEL entry, never lowered.
        self.level: int = 0
        #: Zxid of the last command, rejected ones included. Moves by one before the command is applied, which is safe:
        #: every replica applies the same commands in the same order, and no reader runs in between.
        self.last_zxid: int = 0
        #: Largest leader time of an applied batch. Never decreases: a new leader's clock may be behind.
        self.applied_time_ms: int = 0
        # See `serve_clients`.
        self._answered: Container[int] | None = None
        self._watches: WatchTable | None = None

    def serve_clients(self, sessions: Container[int] | None, watches: WatchTable | None) -> None:
        """Encode reply bodies only for commands of `sessions`. Collect events only while `watches` is not empty.

        `sessions` None means all sessions, `watches` None means always. The caller changes both objects as clients
        connect and leave. The replicated state does not depend on them.
        """
        self._answered = sessions
        self._watches = watches

    # --- writes ------------------------------------------------------------------------------------------------------

    def apply_batch(self, data: bytes) -> list[CommandOutcome]:
        """Apply a whole entry. Return one outcome per command, in order.

        Bytes that are not a batch, or that end inside one, become a single rejected command of session 0. The log has
        checksums, so only a bug can have written such bytes; all replicas continue alike.
        """
        outcomes: list[CommandOutcome] = []
        count = 1
        size = len(data)
        at = BATCH_HEADER_BYTES
        if size >= BATCH_HEADER_BYTES:
            count = self.begin_batch(data)
        for _ in range(count):
            body_at = at + COMMAND_HEADER_BYTES
            if body_at > size:
                outcomes.append(self._refuse_torn())
                break
            length: int
            if IS_COMPILED:
                length, session_id, owner = read_i32_be(data, at), read_i64_be(data, at + 4), read_i64_be(data, at + 12)
                cxid, opcode = read_i32_be(data, at + 20), read_i32_be(data, at + 24)
            else:
                length, session_id, owner, cxid, opcode = _unpack_command(data, at)
            at += 4 + length
            if at < body_at or at > size:
                outcomes.append(self._refuse_torn())
                break
            outcomes.append(self._apply(session_id, owner, cxid, opcode, data, body_at, at))
        return outcomes

    def begin_batch(self, data: bytes) -> int:
        """Adopt time and flags of a batch, and return the number of its commands, to be applied one by one.

        `data` has at least a whole header.
        """
        assert len(data) >= BATCH_HEADER_BYTES, f"a batch header of {len(data)} bytes"
        time_ms, flags_and_count = BATCH_HEADER.unpack_from(data)
        count: int = flags_and_count & COUNT_MASK
        tree = self.tree
        tree.is_full = flags_and_count & IS_FULL != 0
        tree.enforces_quotas = flags_and_count != count
        self._advance_time(time_ms)
        return count

    def _refuse_torn(self) -> CommandOutcome:
        self.last_zxid += 1
        torn = CommandOutcome(self.last_zxid, INTERNAL_SESSION, 0, 0, OP_ERROR)
        torn.err = MARSHALLING_ERROR
        return torn

    def apply(self, command: Command, time_ms: int) -> CommandOutcome:
        """Apply one command as a batch of its own."""
        self._advance_time(time_ms)
        body = command.body
        return self._apply(command.session_id, command.owner, command.cxid, command.opcode, body, 0, len(body))

    def apply_membership(self, text: bytes) -> CommandOutcome:
        """Write the members' server lines `text` into /zookeeper/config, after a committed change of the members.

        The change takes a zxid like a command of session 0, and that zxid is the version at the end of the text. Data
        watches of the znode fire. Its version stays -1, as in ZooKeeper.
        """
        self.last_zxid += 1
        outcome = CommandOutcome(self.last_zxid, INTERNAL_SESSION, 0, 0, OP_RECONFIG)
        content = text + b"version=" + format(outcome.zxid, "x").encode()
        events = self._events_of(outcome)
        self.tree.apply(SetDataDelta(CONFIG, content, -1), outcome.zxid, self.applied_time_ms, events)
        return outcome

    def raise_level(self, data: bytes) -> CommandOutcome:
        """Apply a LEVEL entry: later commands are planned by its level. A lower level changes nothing.

        The entry takes a zxid like a command of session 0, so that replicas with equal zxids have equal digests. Raise
        UnsupportedLevel or ValueError without having changed anything.
        """
        level = decode_level(data)
        if level > self.supported:
            raise UnsupportedLevel("the log raises the store to", level, self.supported)
        self.last_zxid += 1
        self.level = max(self.level, level)
        assert level <= self.level <= self.supported, f"level {self.level}, this build supports {self.supported}"
        return CommandOutcome(self.last_zxid, INTERNAL_SESSION, 0, 0, OP_ERROR)

    def has(self, level: int) -> bool:
        """Return True if the change of `level` is in force. Planning must not depend on the level that a build
        supports."""
        assert level <= SUPPORTED, f"level {level} is not in LEVELS"
        return self.level >= level

    def _events_of(self, outcome: CommandOutcome) -> list[Event] | None:
        """Return the list for the events of an outcome, or None if no session watches anything."""
        if self._watches is not None and self._watches.is_empty():
            return None
        outcome.events = []
        return outcome.events

    def _advance_time(self, time_ms: int) -> None:
        if time_ms > self.applied_time_ms:
            self.applied_time_ms = time_ms

    def _apply(
        self, session_id: int, owner: int, cxid: int, opcode: int, data: bytes, at: int, end: int
    ) -> CommandOutcome:
        self.last_zxid += 1
        outcome = CommandOutcome(self.last_zxid, session_id, owner, cxid, opcode)
        try:
            session = self.sessions.find(session_id)
            if session is None:
                outcome.err = self._without_session(outcome, data, at, end)
            elif opcode == OP_ATTACH:
                outcome.err = self._attach(session, outcome.zxid, data, at, end)
            elif opcode == OP_CREATE_SESSION:
                outcome.err = BAD_ARGUMENTS
            elif session.owner != owner:
                outcome.err = SESSION_MOVED
            elif opcode == OP_SET_DATA:
                path, value, version = decode_set_data(data, at, end)
                self._perform(outcome, plan_set_data(self.tree, session, path, value, version))
            elif opcode == OP_MULTI:
                self._multi(outcome, session, data, at, end)
            else:
                self._command(outcome, session, data, at, end)
        except RemoteProtocolError:
            # Every branch decodes before it changes anything.
            outcome.err = MARSHALLING_ERROR
        return outcome

    def _command(self, outcome: CommandOutcome, session: Session, data: bytes, at: int, end: int) -> None:
        """Apply a command of a live session, other than setData and multi."""
        opcode = outcome.opcode
        tree = self.tree
        if opcode in (OP_CREATE, OP_CREATE2, OP_CREATE_CONTAINER, OP_CREATE_TTL):
            self._perform(outcome, plan_create(tree, session, decode_create(opcode, data, at, end)))
        elif opcode == OP_DELETE:
            path, version = decode_path_version(data, at, end)
            self._perform(outcome, plan_delete(tree, session, path, version))
        elif opcode == OP_SET_ACL:
            path, lines, version = decode_set_acl(data, at, end)
            self._perform(outcome, plan_set_acl(tree, session, path, lines, version))
        elif opcode == OP_DELETE_CONTAINER:
            path = decode_path(data, at, end)
            self._perform(outcome, plan_delete_container(tree, session.identities, path, self.applied_time_ms))
        elif opcode in (OP_CLOSE_SESSION, OP_EXPIRE):
            self._end_session(outcome, session)
        elif opcode == OP_AUTH:
            outcome.err = self._authenticate(session, data, at, end)
        else:
            outcome.err = RECONFIG_DISABLED if opcode == OP_RECONFIG else UNIMPLEMENTED

    def _perform(self, outcome: CommandOutcome, planned: Planned) -> None:
        """Apply a planned change to the tree and encode the reply."""
        if isinstance(planned, int):
            outcome.err = planned
            return
        node = self.tree.apply(planned, outcome.zxid, self.applied_time_ms, self._events_of(outcome))
        if node is None or (self._answered is not None and outcome.session_id not in self._answered):
            return
        if not isinstance(planned, CreateDelta):
            outcome.body = node.stat()
        elif outcome.opcode == OP_CREATE:
            outcome.body = _pack_i32(len(planned.path)) + planned.path
        else:
            outcome.body = _pack_i32(len(planned.path)) + planned.path + node.stat()

    def _multi(self, outcome: CommandOutcome, session: Session, data: bytes, at: int, end: int) -> None:
        """Apply a multi. The header of the reply has OK even if the parts were rejected."""
        ops = decode_multi(data, at, end)
        for op in ops:
            if op.opcode == OP_CREATE_TTL and self.has(CREATE_TTL_IN_MULTI):
                _convert_to_create(op)
            if op.create is None and op.opcode not in (OP_SET_DATA, OP_CHECK, OP_DELETE):
                raise RemoteProtocolError(f"operation {op.opcode} is not allowed in a multi")
            if op.create is not None and op.opcode != OP_CREATE_TTL and not 0 <= op.create.flags <= CREATE_CONTAINER:
                # Alone such a create is BadArguments; in a multi ZooKeeper fails before it looks at the parts.
                raise RemoteProtocolError(f"invalid create flags {op.create.flags}")
        planned = plan_multi(self.tree, session, ops)
        if planned.err:
            outcome.body = _rejected_multi(len(ops), planned.failed, planned.err)
            return
        events = self._events_of(outcome)
        parts: list[bytes] = []
        is_answered = self._answered is None or outcome.session_id in self._answered
        if IS_COMPILED and is_answered and ops and all(isinstance(delta, SetDataDelta) for delta in planned.deltas):
            outcome.body = self._perform_sets(planned.deltas, outcome.zxid, events)
            return
        for i, delta in enumerate(planned.deltas):
            if is_answered:
                self._perform_part(ops[i].opcode, delta, outcome.zxid, events, parts)
            elif delta is not None:
                self.tree.apply(delta, outcome.zxid, self.applied_time_ms, events)
        if is_answered:
            parts.append(_MULTI_END)
            outcome.body = b"".join(parts)

    def _perform_sets(self, deltas: list[Delta | None], zxid: int, events: list[Event] | None) -> bytes:
        """Apply a multi of setData alone and return its reply, written in one piece. Compiled builds only."""
        out = BytesWriter()
        for delta in deltas:
            assert delta is not None, "a setData without a change"
            node = self.tree.apply(delta, zxid, self.applied_time_ms, events)
            assert node is not None, delta.path
            out.write(_SET_DONE)
            node.write_stat(out)
        out.write(_MULTI_END)
        return out.getvalue()

    def _perform_part(
        self, opcode: int, delta: Delta | None, zxid: int, events: list[Event] | None, parts: list[bytes]
    ) -> None:
        """Apply one part of a multi and append its part of the reply."""
        if delta is None:
            parts.append(_pack_i32(opcode) + _DONE)
            return
        node = self.tree.apply(delta, zxid, self.applied_time_ms, events)
        if opcode == OP_SET_DATA and node is not None:
            parts.append(_SET_DONE)
            parts.append(node.stat())
        elif isinstance(delta, CreateDelta):
            path = delta.path
            if opcode == OP_CREATE and delta.kind != KIND_CONTAINER:
                parts.append(_pack_i32(opcode) + _DONE + _pack_i32(len(path)) + path)
            else:
                # Every create whose reply has a Stat is reported as create2.
                assert node is not None, path
                parts.append(_pack_i32(OP_CREATE2) + _DONE + _pack_i32(len(path)) + path + node.stat())
        elif node is not None:
            parts.append(_pack_i32(opcode) + _DONE + node.stat())
        else:
            parts.append(_pack_i32(opcode) + _DONE)

    # --- sessions ----------------------------------------------------------------------------------------------------

    def _without_session(self, outcome: CommandOutcome, data: bytes, at: int, end: int) -> int:
        """Apply a command without a live session: a new session, the leader's own command, or a late command."""
        opcode = outcome.opcode
        session_id = outcome.session_id
        if opcode == OP_CREATE_SESSION:
            timeout_ms, passwd, address, proved = decode_create_session(data, at, end)
            if session_id == INTERNAL_SESSION or timeout_ms <= 0 or not _are_identities(proved):
                return BAD_ARGUMENTS
            self.sessions.add(Session(session_id, passwd, timeout_ms, outcome.zxid, [(IP, address), *proved]))
            return OK
        if session_id == INTERNAL_SESSION and opcode == OP_DELETE_CONTAINER and outcome.owner == 0:
            path = decode_path(data, at, end)
            self._perform(outcome, plan_delete_container(self.tree, None, path, self.applied_time_ms))
            return outcome.err
        return SESSION_EXPIRED

    def _attach(self, session: Session, zxid: int, data: bytes, at: int, end: int) -> int:
        timeout_ms, passwd, address, proved = decode_attach(data, at, end)
        if not passwords_match(session.passwd, passwd):
            # The same error as for an expired session, so that a wrong password reveals nothing.
            return SESSION_EXPIRED
        if timeout_ms <= 0 or not _are_identities(proved):
            return BAD_ARGUMENTS
        self.sessions.attach(session, zxid, timeout_ms, address, proved)
        assert session.owner == zxid, f"session {session.session_id:#x} has owner {session.owner}, not {zxid}"
        return OK

    def _authenticate(self, session: Session, data: bytes, at: int, end: int) -> int:
        proved = decode_identities(data, at, end)
        if not proved:
            raise RemoteProtocolError("an AUTH command has no identity")
        if not _are_identities(proved) or not self.sessions.add_identities(session, proved):
            return AUTH_FAILED
        return OK

    def _end_session(self, outcome: CommandOutcome, session: Session) -> None:
        """Remove the session and all its ephemeral znodes, under one zxid."""
        events = self._events_of(outcome)
        for path in self.tree.ephemerals_of(session.session_id):
            self.tree.apply(DeleteDelta(path, parent_of(path)), outcome.zxid, self.applied_time_ms, events)
        assert not self.tree.ephemerals_of(session.session_id), f"session {session.session_id:#x} leaves ephemerals"
        self.sessions.remove(session)

    # --- reads and watches -------------------------------------------------------------------------------------------

    def read(
        self, opcode: int, body: bytes, session: Session, watches: WatchTable, at: int = 0, end: int = -1
    ) -> Answer:
        """Answer a read from this replica. Return (error code, reply record); never raises.

        The request record is `body[at:end]`, to the end of `body` by default. Supports getData, exists, getChildren,
        getChildren2, getACL, getEphemerals, getAllChildrenNumber, multiRead, whoAmI, sync, addWatch, checkWatches
        and removeWatches; other opcodes return UNIMPLEMENTED. Watches are set in `watches` under the session's id.
        """
        try:
            return answer_read(self.tree, opcode, body, at, len(body) if end < 0 else end, session, watches)
        except RemoteProtocolError:
            return MARSHALLING_ERROR, b""

    def begin_watches(
        self, opcode: int, body: bytes, session: Session, watches: WatchTable
    ) -> tuple[int, WatchRestore | None]:
        """Begin setWatches or setWatches2. Return (error code, restore); `restore_watches` performs the restore in
        parts."""
        try:
            second = opcode == OP_SET_WATCHES2
            return OK, begin_watches(body, 0, len(body), session, watches, second=second)
        except RemoteProtocolError:
            return MARSHALLING_ERROR, None
        except QuotaExceeded:
            return QUOTA_EXCEEDED, None

    def restore_watches(
        self, restore: WatchRestore, session: Session, watches: WatchTable, most: int
    ) -> list[tuple[int, bytes]]:
        """Restore at most `most` watches. Return the events to send, whose zxid is -1."""
        return restore.step(self.tree, session, watches, most)

    def notify(self, outcome: CommandOutcome, watches: WatchTable) -> list[Notification]:
        """Return the notifications for an outcome's events, in the order to send them.

        Remove the one-shot watches that fire. As in ZooKeeper, a session that may not read the znode gets no
        notification.
        """
        fired: list[Notification] = []
        last: Notification | None = None
        for event_type, path, acl in outcome.events:
            notified = watches.triggered(event_type, path)
            if notified and not acl.world & PERM_READ:
                notified = [each for each in notified if self._may_read(each, acl)]
            if not notified:
                continue
            if last is None or (last.sessions is not notified and last.sessions != notified):
                last = Notification(notified)
                fired.append(last)
            last.types.append(event_type)
            last.paths.append(path)
        return fired

    def _may_read(self, session_id: int, acl: AccessList) -> bool:
        session = self.sessions.find(session_id)
        return session is not None and acl.allows(PERM_READ, session.identities)

    # --- digest, invariants, snapshots -------------------------------------------------------------------------------

    def digest(self) -> int:
        """Return 64 bits over tree, sessions and level, equal on all replicas with equal `last_zxid`.

        At level 0 the digest is the one of builds without feature levels.
        """
        parts = self.tree.digest_sum() + self.sessions.digest_sum * _SESSION_WEIGHT + self.level * _LEVEL_WEIGHT
        return parts & _MASK_64

    def validate(self) -> None:
        """Raise AssertionError if an invariant of tree, sessions or machine does not hold. Changes nothing. For tests,
        between two entries of the log."""
        self.tree.validate()
        self.sessions.validate(self.last_zxid)
        for session_id in self.tree.ephemerals:
            assert session_id in self.sessions.sessions, f"ephemerals outlive their session {session_id:#x}"
        for path, node in self.tree.nodes.items():
            newest = max(node.czxid, node.mzxid, node.pzxid)
            assert newest <= self.last_zxid, f"{path!r} has zxid {newest}, the last zxid is {self.last_zxid}"
            assert node.mtime <= self.applied_time_ms, f"{path!r} was written at {node.mtime}, later than the log"
        assert 0 <= self.level <= self.supported, f"level {self.level}, this build supports {self.supported}"

    def reap_candidates(self, time_ms: int) -> list[bytes]:
        """Return the znodes for which the leader may propose DELETE_CONTAINER (session 0, owner 0), sorted."""
        return self.tree.reap_candidates(time_ms)

    def snapshot_chunks(self) -> Iterator[bytes]:
        """Yield the state as chunks (snapshot.py). Only reads the state, so a forked child can write it."""
        time_ms = self.applied_time_ms
        return write_snapshot(self.tree, self.sessions, self.last_zxid, time_ms, self.digest(), self.level)

    @classmethod
    def restore(cls, pieces: Iterable[bytes], supported: int = SUPPORTED) -> StateMachine:
        """Return the state machine of a snapshot in pieces of any size. Raise CorruptRecord, UnsupportedLevel."""
        reader = SnapshotDecoder(supported=supported)
        for piece in pieces:
            reader.feed(piece)
        return cls.of_snapshot(reader)

    @classmethod
    def of_snapshot(cls, reader: SnapshotDecoder) -> StateMachine:
        """Return the state machine of a snapshot that was fed to `reader` completely. Raise CorruptRecord."""
        reader.check_end()
        machine = cls(reader.tree, reader.sessions, reader.supported)
        machine.level = reader.level
        machine.last_zxid = reader.last_zxid
        machine.applied_time_ms = reader.applied_time_ms
        assert 0 <= machine.level <= machine.supported, f"level {machine.level}, supported are {machine.supported}"
        reader.check_digest(machine.digest())
        return machine


def _convert_to_create(op: MultiOp) -> None:
    """Turn a createTTL whose flags name no TTL into a create (level CREATE_TTL_IN_MULTI).

    Invalid flags stay: ZooKeeper rejects that part with BadArguments.
    """
    create = op.create
    if create is not None and 0 <= create.flags <= CREATE_CONTAINER:
        op.opcode = create.opcode = OP_CREATE
        create.ttl_ms = 0


def _are_identities(proved: list[Identity]) -> bool:
    """Return True if a session may have these identities."""
    return all(scheme in IDENTITY_SCHEMES for scheme, _ in proved)


def _rejected_multi(count: int, failed: int, err: int) -> bytes:
    """Return the reply to a multi whose part `failed` was rejected with `err`."""
    assert 0 <= failed < count, f"part {failed} of {count} was rejected"
    parts: list[bytes] = []
    for i in range(count):
        code = i32(OK if i < failed else err if i == failed else RUNTIME_INCONSISTENCY)
        parts.append(i32(OP_ERROR) + b"\0" + code + code)
    parts.append(_MULTI_END)
    return b"".join(parts)
