"""Requests of clients in order: reads are answered from the tree, writes wait for the log.

Three rules, per connection:

- Replies leave in the order of the requests.
- A read is answered at once if no request of its session is pending; otherwise it waits for the requests before it, so
  that a session reads its own writes. No write goes to the log while a sync of its connection is pending, so that
  neither the sync nor the reads after it see later writes.
- Watch events caused by a command enter the output before the command's own reply and before any later read, so no
  client sees data newer than an event that it has not received. Each connection has one output list for all of them.

`sync` waits for a read index (the quorum confirms the leader), which makes the reads after it linearizable.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from coord.errors import (
    AUTH_FAILED,
    MARSHALLING_ERROR,
    NOT_READ_ONLY,
    OK,
    QUOTA_EXCEEDED,
    SESSION_CLOSED_REQUIRE_SASL_AUTH,
    SESSION_EXPIRED,
    SESSION_MOVED,
    UNIMPLEMENTED,
    RemoteProtocolError,
)
from coord.server.clients.connection import Connection, Limits, Pending
from coord.server.clients.handshake import OPENING, SessionHandshake
from coord.server.clients.proposals import Proposals, Sent
from coord.server.clients.table import ClientTable
from coord.tree.acl import Identity
from coord.tree.command import encode_command, encode_identities
from coord.tree.machine import CommandOutcome, StateMachine
from coord.tree.sessions import Session
from coord.tree.watches import REMOVED_PER_TURN, WatchTable
from coord.wire import opcodes as op
from coord.wire.codec import decode_auth, decode_sasl, encode_event_frames, encode_reply_frame, encode_sasl
from coord.wire.jute import IS_COMPILED
from coord.wire.sasl import SaslError

if IS_COMPILED:
    from librt.strings import read_i32_be

_header_at = struct.Struct("!ii").unpack_from
_pack_length = struct.Struct("!i").pack

#: Requests that this node answers from its tree.
READS: Final = frozenset(
    (
        op.OP_EXISTS,
        op.OP_GET_DATA,
        op.OP_GET_ACL,
        op.OP_GET_CHILDREN,
        op.OP_GET_CHILDREN2,
        op.OP_MULTI_READ,
        op.OP_CHECK_WATCHES,
        op.OP_REMOVE_WATCHES,
        op.OP_GET_EPHEMERALS,
        op.OP_GET_ALL_CHILDREN_NUMBER,
        op.OP_ADD_WATCH,
        op.OP_WHO_AM_I,
    )
)
#: Requests that go into the log unchanged. CHECK exists only inside a multi; RECONFIG is not a command of the tree.
WRITES: Final = op.WRITE_OPCODES - {op.OP_CHECK, op.OP_RECONFIG}
#: A connection's reads of one turn end this time after the first look at the clock, and the rest waits for the next
#: turn. The clock is looked at after READS_PER_LOOK reads and after each read that may take long, if others follow.
READS_MS_MAX: Final = 5
READS_PER_LOOK: Final = 64
#: Number of connections that may use their whole time in one turn. After that, each other connection is served until
#: its first look at the clock.
POSTPONED_MAX: Final = 4
#: Watches of all clients' setWatches that are restored in one turn; the rest waits for the next turns. One frame can
#: have some 50,000 watches, and a write of another client waits for three or four turns.
RESTORED_PER_TURN: Final = 250
#: Opcode of an internal item among a connection's pending requests: the reads after it wait for a read index.
BARRIER: Final = -2


class Pipeline:
    """The requests of one node's clients, from their bytes to the replies."""

    def __init__(
        self,
        node_id: int,
        machine: StateMachine,
        proposals: Proposals,
        limits: Limits,
        token: Callable[[int], bytes],
        ask_read_index: Callable[[Connection, Pending], None],
    ) -> None:
        """`token(n)` returns n unpredictable bytes.

        `ask_read_index` is called for every sync; its caller must call `release_sync` later.
        """
        self.machine: StateMachine
        self.watches = WatchTable(limits.watches_max)
        self.limits = limits
        self.clients = ClientTable(self.watches)
        self.handshake = SessionHandshake(node_id, machine, self.clients, proposals, limits, token)
        self._proposals = proposals
        self._ask_read_index = ask_read_index
        self.serve(machine)
        #: Connections whose sessions were opened by the batch being applied and that have early requests.
        self._opened: list[Connection] = []
        #: Called with every session that a command opened or moved, and with the node that serves the session.
        self.on_session_opened: Callable[[int, int], None] = _ignore_session
        #: Called with every membership request; `answer_membership_request` answers it.
        self.on_membership_request: Callable[[Connection, Pending], None] = _ignore_membership_request
        #: The clock that limits the time of reads in one turn. Without a clock the time is not limited.
        self.monotonic_ms: Callable[[], int] = _no_clock
        #: Connections that have used their time in this turn.
        self.postponed = 0
        #: Watches that may be restored in this turn.
        self._restorable = RESTORED_PER_TURN
        #: Connections with an unfinished setWatches. The first one restores watches, then goes to the end.
        self._restoring: deque[Connection] = deque()
        #: Whether reads wait for a read index, as after a sync.
        self.is_linearizable = False

    def serve(self, machine: StateMachine) -> None:
        """Serve this state: at the start, and after a snapshot from the leader."""
        self.machine = self.handshake.machine = machine
        # The machine encodes replies only for sessions of this node's clients, and events only while there are watches.
        # Reads set watches between the commands of a batch only if the commands are applied one by one.
        machine.serve_clients(self.clients.by_session.keys(), self.watches)

    # --- requests ---------------------------------------------------------------------------------------------------

    def receive(self, connection: Connection, block: bytes, frames: list[tuple[int, int]]) -> None:
        """Handle the requests `block[at:end]` for each range of `frames`, in order."""
        session = connection.session
        if session is None:
            if not connection.is_ending:
                connection.early.append((block, frames))
                connection.pending_bytes += len(block)
                self._maybe_pause(connection, len(connection.early))
            return
        self.clients.active.add(connection)
        if connection.is_choked or connection.parked:
            connection.parked.append((block, frames))
            return
        if not connection.is_admitted:
            self._receive_proofs(connection, block, frames)
            return
        connection.received += len(frames)
        self.clients.received += len(frames)
        pending = connection.pending
        output = connection.output
        machine = self.machine
        read = machine.read
        watches = self.watches
        xid = opcode = 0
        has_barrier = connection.is_read_only
        room = self.limits.output_bytes_max - connection.output_bytes
        requests = iter(frames)
        left: i64 = READS_PER_LOOK
        until_ms = 0  # set at the first look at the clock
        for at, end in requests:
            if connection.is_ending:
                break
            if IS_COMPILED:
                xid, opcode = read_i32_be(block, at), read_i32_be(block, at + 4)
            else:
                xid, opcode = _header_at(block, at)
            if opcode in READS:
                if self.is_linearizable and not has_barrier:
                    # One barrier for all reads up to the next write. That write is parked until the reads are answered.
                    has_barrier = True
                    self._add_barrier(connection)
                if pending:
                    self._wait(connection, Pending(xid, opcode, end - at, block[at + 8 : end], is_read=True))
                else:
                    err, body = read(opcode, block, session, watches, at + 8, end)
                    output.append(encode_reply_frame(xid, machine.last_zxid, err, body))
                    connection.sent += 1
                    room -= len(body)
                    left -= 1
                    if room < 0:
                        connection.parked.insert(0, (block, list(requests)))
                        self._choke(connection)
                    elif (left <= 0 or opcode > op.OP_GET_ACL) and end != frames[-1][1]:
                        left = READS_PER_LOOK
                        now_ms = self.monotonic_ms()
                        until_ms = until_ms or now_ms + (READS_MS_MAX if self.postponed < POSTPONED_MAX else 0)
                        if now_ms >= until_ms:
                            self._postpone(connection, block, list(requests))
            elif opcode in WRITES:
                if connection.syncs:
                    connection.parked.append((block, [(at, end), *requests]))
                    connection.transport.set_reading(False)
                    break
                waiting = Pending(xid, opcode, end - at)
                self._wait(connection, waiting)
                if opcode == op.OP_CLOSE_SESSION:
                    waiting.closes = connection.is_ending = True
                self._propose(
                    connection, waiting, connection.session_id, connection.owner, xid, opcode, block[at + 8 : end]
                )
            else:
                self._receive_other(connection, xid, opcode, block, at + 8, end)
        connection.output_bytes = self.limits.output_bytes_max - room
        connection.last_xid, connection.last_opcode = xid, opcode
        if output:
            connection.transport.wake()

    def _postpone(self, connection: Connection, block: bytes, frames: list[tuple[int, int]]) -> None:
        """Handle the rest of a connection's requests in the next turn: other clients must not wait for them."""
        self.postponed += 1
        connection.parked.insert(0, (block, frames))
        connection.transport.set_reading(False)
        connection.transport.resume_later()

    def turn_end(self) -> bool:
        """Let connections use their time anew, and restore and remove some watches. Return True if some are left."""
        self.postponed = 0
        self._restorable = RESTORED_PER_TURN
        if self._restoring:
            self._restore_waiting()
        is_sweeping = len(self.watches.leaving) > 0 and self.watches.sweep(REMOVED_PER_TURN)
        return is_sweeping or len(self._restoring) > 0

    def _restore_waiting(self) -> None:
        """Go on with the setWatches of earlier turns, as many as this turn has room for."""
        while self._restoring and self._restorable > 0:
            connection = self._restoring.popleft()
            connection.is_restoring = False
            if not connection.is_closed:
                self._advance(connection)

    def resume(self, connection: Connection) -> None:
        """Go on with the requests of a connection that were postponed to this turn."""
        if connection.parked and not connection.is_closed and not connection.is_choked and not connection.syncs:
            self._resume(connection)

    def _receive_proofs(self, connection: Connection, block: bytes, frames: list[tuple[int, int]]) -> None:
        """Handle the requests of a connection that must authenticate first. After a proof the remaining requests are
        served."""
        for number, (at, end) in enumerate(frames):
            if connection.is_admitted:
                self.receive(connection, block, frames[number:])
                return
            if connection.is_ending:
                return
            connection.received += 1
            self.clients.received += 1
            xid, opcode = _header_at(block, at)
            connection.last_xid, connection.last_opcode = xid, opcode
            if opcode == op.OP_AUTH:
                self._receive_auth(connection, xid, block, at + 8, end)
            elif opcode == op.OP_SASL:
                self._receive_sasl(connection, xid, block, at + 8, end)
            else:
                self.handshake.authenticator.refused(connection)
                self._answer_now(connection, xid, opcode, SESSION_CLOSED_REQUIRE_SASL_AUTH, closes=True)

    def _receive_other(self, connection: Connection, xid: int, opcode: int, block: bytes, at: int, end: int) -> None:
        """Handle a request that is neither read nor write: ping, setWatches, sync, credentials, membership, unknown."""
        if opcode == op.OP_PING:
            # Ahead of pending requests: the reply means that this server is alive, even if the log is slow.
            connection.send_reply(op.XID_PING, self.machine.last_zxid, OK, b"")
        elif opcode == op.OP_SET_WATCHES or opcode == op.OP_SET_WATCHES2:
            self._wait(connection, Pending(xid, opcode, end - at, block[at:end], is_read=True))
            self._advance(connection)
        elif connection.is_read_only and opcode in (op.OP_SYNC, op.OP_RECONFIG, op.OP_MEMBERSHIP):
            self._answer_now(connection, xid, opcode, NOT_READ_ONLY, closes=False)
        elif opcode == op.OP_SYNC:
            waiting = Pending(xid, opcode, end - at, block[at:end])
            self._wait(connection, waiting)
            connection.syncs += 1
            self._ask_read_index(connection, waiting)
        elif opcode == op.OP_AUTH:
            self._receive_auth(connection, xid, block, at, end)
        elif opcode == op.OP_SASL:
            self._receive_sasl(connection, xid, block, at, end)
        elif opcode == op.OP_RECONFIG or opcode == op.OP_MEMBERSHIP:
            waiting = Pending(xid, opcode, end - at, block[at:end])
            self._wait(connection, waiting)
            # As after a sync: no later write of this connection goes to the log before the reply.
            connection.syncs += 1
            self.on_membership_request(connection, waiting)
        else:
            self._answer_now(connection, xid, opcode, UNIMPLEMENTED, closes=True)

    def _add_barrier(self, connection: Connection) -> None:
        """Add a sync without a reply: the reads after it are linearizable."""
        barrier = Pending(0, BARRIER, 0)
        connection.pending.append(barrier)
        connection.syncs += 1
        self._ask_read_index(connection, barrier)

    def _receive_auth(self, connection: Connection, xid: int, block: bytes, at: int, end: int) -> None:
        """Check a credential and propose its identity. The identity goes into the log, the secret never does."""
        try:
            _, scheme, credential = decode_auth(block, at, end)
        except RemoteProtocolError:
            self._answer_now(connection, xid, op.OP_AUTH, MARSHALLING_ERROR, closes=True)
            return
        proved = self.handshake.authenticator.auth(connection, scheme, credential)
        if proved is None:
            self._answer_now(connection, xid, op.OP_AUTH, AUTH_FAILED, closes=True)
        elif proved:
            self._propose_identities(connection, Pending(xid, op.OP_AUTH, end - at), proved)
        else:
            self._answer_now(connection, xid, op.OP_AUTH, OK, closes=False)

    def _receive_sasl(self, connection: Connection, xid: int, block: bytes, at: int, end: int) -> None:
        """Perform a step of a SASL exchange. The reply to the last step waits until the log has the identity."""
        try:
            token = decode_sasl(block, at, end) or b""
        except RemoteProtocolError:
            # As ZooKeeper does.
            self.clients.close(connection)
            return
        try:
            answer, proved = self.handshake.authenticator.sasl(connection, token)
        except SaslError:
            # The reply has an empty token: the Java client reads a token even after an error code, and otherwise waits
            # forever.
            self._answer_now(connection, xid, op.OP_SASL, AUTH_FAILED, closes=True, body=encode_sasl(None))
            return
        body = encode_sasl(answer)
        if proved:
            self._propose_identities(connection, Pending(xid, op.OP_SASL, end - at, body), proved)
        else:
            self._answer_now(connection, xid, op.OP_SASL, OK, closes=False, body=body)

    def _propose_identities(self, connection: Connection, waiting: Pending, proved: list[Identity]) -> None:
        """Propose the identities that a connection's client has proved."""
        self._wait(connection, waiting)
        session_id, owner = connection.session_id, connection.owner
        self._propose(connection, waiting, session_id, owner, waiting.xid, op.OP_AUTH, encode_identities(proved))

    def _answer_now(
        self, connection: Connection, xid: int, opcode: int, err: int, *, closes: bool, body: bytes = b""
    ) -> None:
        """Reply without tree and log, after the pending requests."""
        waiting = Pending(xid, opcode, 0)
        waiting.reply = encode_reply_frame(xid, self.machine.last_zxid, err, body)
        waiting.closes = closes
        connection.is_ending = connection.is_ending or closes
        self._wait(connection, waiting)
        self._advance(connection)

    def _wait(self, connection: Connection, waiting: Pending) -> None:
        connection.pending.append(waiting)
        connection.pending_bytes += waiting.size
        if waiting.is_read:
            self.clients.waiting_reads += 1
        self._maybe_pause(connection, len(connection.pending))

    def _maybe_pause(self, connection: Connection, waiting: int) -> None:
        limits = self.limits
        if not connection.is_paused and (
            waiting >= limits.outstanding_max or connection.pending_bytes >= limits.outstanding_bytes_max
        ):
            connection.is_paused = True
            connection.transport.set_reading(False)

    def _choke(self, connection: Connection) -> None:
        connection.is_choked = True
        connection.transport.set_reading(False)

    def drained(self, connection: Connection) -> None:
        """Resume a choked connection: its client has received the unsent output."""
        if connection.is_closed or not connection.is_choked:
            return
        connection.is_choked = False
        self._advance(connection)
        self._resume(connection)

    def _resume(self, connection: Connection) -> None:
        """Handle the parked requests; some may be parked again."""
        parked, connection.parked = connection.parked, []
        for block, frames in parked:
            if connection.is_closed:
                return
            self.receive(connection, block, frames)
        self._maybe_read(connection)

    def _maybe_read(self, connection: Connection) -> None:
        """Read from the connection again, unless it is paused, choked or has parked requests."""
        if not connection.is_closed and not connection.is_paused:
            connection.transport.set_reading(not connection.is_choked and not connection.parked)

    def _propose(
        self, connection: Connection, waiting: Pending, session_id: int, owner: int, cxid: int, opcode: int, body: bytes
    ) -> None:
        if connection.is_read_only:
            err = self.handshake.read_only.perform(connection, opcode, body)
            reply = waiting.body if waiting.opcode == op.OP_SASL and err == OK else b""
            waiting.reply = encode_reply_frame(waiting.xid, self.machine.last_zxid, err, reply)
            self._advance(connection)
            return
        command = encode_command(session_id, owner, cxid, opcode, body)
        self._proposals.waiting.append(Sent(session_id, owner, cxid, command, connection, waiting, self.clients.now_ms))

    # --- replies ----------------------------------------------------------------------------------------------------

    def applied(self, outcomes: list[CommandOutcome]) -> None:
        """Send the events of applied commands to watching clients; reply to the commands of this node's clients."""
        proposals = self._proposals
        watches = self.watches
        for outcome in outcomes:
            if outcome.events and not watches.is_empty():
                self._send_events(outcome)
            if outcome.opcode < 0 and outcome.err == OK:
                self._session_changed(outcome)
            sent = proposals.match(outcome.session_id, outcome.owner, outcome.cxid)
            if sent is not None and not sent.connection.is_closed:
                self._answer(sent, outcome)
        if self._opened:
            self._serve_early()

    def _serve_early(self) -> None:
        """Handle the requests that arrived before their session was open.

        They wait until the whole batch is applied, because they read the state after its last command. All events of
        the batch must be sent before.
        """
        opened, self._opened = self._opened, []
        for connection in opened:
            early, connection.early = connection.early, []
            for block, frames in early:
                self.receive(connection, block, frames)

    def _session_changed(self, outcome: CommandOutcome) -> None:
        """Follow a session that was opened, moved or expired: close its connection here, which has an older owner."""
        if outcome.opcode == op.OP_CREATE_SESSION or outcome.opcode == op.OP_ATTACH:
            self.on_session_opened(outcome.session_id, outcome.owner >> 48)
        elif outcome.opcode == op.OP_CLOSE_SESSION:
            return  # The connection closes after its own reply; a connection at another node would have an older owner.
        connection = self.clients.by_session.get(outcome.session_id)
        if connection is not None:
            self.clients.close(connection, flush=True)

    def _answer(self, sent: Sent, outcome: CommandOutcome) -> None:
        connection = sent.connection
        if outcome.opcode < 0 and outcome.opcode in OPENING:
            if self.handshake.session_opened(connection, outcome) and connection.early:
                self._opened.append(connection)
            return
        body = b"" if outcome.err else outcome.body
        waiting = sent.pending
        if outcome.opcode == op.OP_SET_ACL:
            self.handshake.authenticator.acl_changed(connection, sent.command, outcome.err)
        elif outcome.opcode == op.OP_AUTH:
            if outcome.err:
                waiting.closes = True
            elif waiting.opcode == op.OP_SASL:
                body = waiting.body
        span_ms = self.clients.now_ms - sent.since_ms
        self.clients.latency.add(span_ms)
        self.clients.times.add(outcome.opcode, span_ms)
        waiting.reply = encode_reply_frame(waiting.xid, outcome.zxid, outcome.err, body)
        if outcome.err == SESSION_EXPIRED or outcome.err == SESSION_MOVED:
            waiting.closes = True
        self._advance(connection)

    def release_sync(self, connection: Connection, waiting: Pending) -> None:
        """Reply to a sync: this node has applied its read index.

        From now on the sync is handled as a read. The reply carries the zxid at the moment of sending, which covers the
        writes before the sync. With an older zxid the client could move to a server that has not applied these writes.
        """
        if connection.is_closed:
            return
        waiting.is_read = True
        self.clients.waiting_reads += 1
        connection.syncs -= 1
        self._advance(connection)
        if connection.parked and not connection.syncs:
            self._resume(connection)

    def answer_membership_request(self, connection: Connection, waiting: Pending, err: int, body: bytes) -> None:
        """Reply to a membership request."""
        if connection.is_closed:
            return
        body = b"" if err else body
        waiting.reply = encode_reply_frame(waiting.xid, self.machine.last_zxid, err, body)
        connection.syncs -= 1
        self._advance(connection)
        if connection.parked and not connection.syncs:
            self._resume(connection)

    def _advance(self, connection: Connection) -> None:
        """Send the replies from the front of the queue up to the first request that is not finished.

        A choked connection gets these replies, too: otherwise events would overtake them, and reads would see later
        writes. `Limits.backlog_bytes_max` limits their size.
        """
        pending = connection.pending
        output = connection.output
        while pending:
            first = pending[0]
            if first.is_read:
                if not self._read(connection, first):
                    break
                self.clients.waiting_reads -= 1
                if connection.output_bytes > self.limits.backlog_bytes_max:
                    first.is_read = False  # no longer counted in waiting_reads
                    self.clients.close(connection)
                    return
            elif first.reply is not None:
                output.append(first.reply)
            else:
                break
            pending.popleft()
            connection.pending_bytes -= first.size
            connection.sent += first.opcode != BARRIER
            if first.closes:
                self.clients.close(connection, flush=True)
                return
        limits = self.limits
        if (
            connection.is_paused
            and len(pending) * 2 < limits.outstanding_max
            and connection.pending_bytes * 2 < limits.outstanding_bytes_max
        ):
            connection.is_paused = False
            self._maybe_read(connection)
        connection.transport.wake()

    def _read(self, connection: Connection, waiting: Pending) -> bool:
        """Answer a pending read or setWatches. Return False if a setWatches goes on in a later turn."""
        session = connection.session
        assert session is not None, "a read is pending on a connection without a session"
        if waiting.opcode == BARRIER:
            return True
        machine = self.machine
        if waiting.opcode == op.OP_SET_WATCHES or waiting.opcode == op.OP_SET_WATCHES2:
            restored = self._restore_watches(connection, waiting, session)
            if restored is None:
                return False
            err, body = restored, b""
            # Without its watches the client would miss events: disconnect it.
            waiting.closes = err == QUOTA_EXCEEDED
        else:
            err, body = machine.read(waiting.opcode, waiting.body, session, self.watches)
        connection.send_reply(waiting.xid, machine.last_zxid, err, body)
        connection.output_bytes += len(body)
        if connection.output_bytes > self.limits.output_bytes_max:
            self._choke(connection)
        return True

    def _restore_watches(self, connection: Connection, waiting: Pending, session: Session) -> int | None:
        """Restore as many watches of a setWatches as this turn has room for, and send the events that the client has
        missed. Return an error code, or None if watches are left for a later turn."""
        if self._restorable > 0:
            machine = self.machine
            if waiting.restore is None:
                err, waiting.restore = machine.begin_watches(waiting.opcode, waiting.body, session, self.watches)
                if waiting.restore is None:
                    return err
            restore = waiting.restore
            before = restore.left
            missed = machine.restore_watches(restore, session, self.watches, self._restorable)
            self._restorable -= before - restore.left
            if missed:
                types, paths = [event_type for event_type, _ in missed], [path for _, path in missed]
                connection.output.append(encode_event_frames(types, paths, op.ZXID_UNKNOWN))
                self.clients.events_sent += len(missed)
            if not restore.left:
                return OK
        if not connection.is_restoring:
            connection.is_restoring = True
            self._restoring.append(connection)
        return None

    def _send_events(self, outcome: CommandOutcome) -> None:
        for fired in self.machine.notify(outcome, self.watches):
            frames = encode_event_frames(fired.types, fired.paths, outcome.zxid)
            for session_id in fired.sessions:
                connection = self.clients.by_session.get(session_id)
                if connection is not None:
                    connection.output.append(frames)
                    connection.transport.wake()
                    self.clients.events_sent += len(fired.paths)


def _no_clock() -> int:
    """Return -1: the default of `Pipeline.monotonic_ms`, at which no time passes."""
    return -1


def _ignore_session(session_id: int, node: int) -> None:
    """Do nothing: the default of `Pipeline.on_session_opened`."""


def _ignore_membership_request(connection: Connection, waiting: Pending) -> None:
    """Do nothing: the default of `Pipeline.on_membership_request`."""
