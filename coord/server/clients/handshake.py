"""Connect requests: open a new session for a client's connection, or move an existing session to it.

Both go through the log (CREATE_SESSION, ATTACH). Only in read-only mode this node decides alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from twisted.logger import Logger

from coord.errors import OK
from coord.server.clients.authentication import Authenticator
from coord.server.clients.connection import Connection, Limits, Pending
from coord.server.clients.proposals import Proposals, Sent
from coord.server.clients.read_only import ReadOnly
from coord.server.clients.table import ClientTable
from coord.tree.acl import IP
from coord.tree.command import encode_attach, encode_command, encode_create_session, encode_identities
from coord.tree.machine import CommandOutcome, StateMachine
from coord.tree.sessions import Session, passwords_match
from coord.wire import opcodes as op
from coord.wire.codec import encode_connect_response
from coord.wire.values import NO_PASSWD, PASSWD_BYTES, ConnectRequest, ConnectResponse

log = Logger(__name__)

_pack_length = struct.Struct("!i").pack
#: Commands that open or move a connection's session.
OPENING: Final = (op.OP_CREATE_SESSION, op.OP_ATTACH)


class SessionHandshake:
    """The connect requests of one node's clients."""

    def __init__(
        self,
        node_id: int,
        machine: StateMachine,
        clients: ClientTable,
        proposals: Proposals,
        limits: Limits,
        token: Callable[[int], bytes],
    ) -> None:
        """`token(n)` returns n unpredictable bytes."""
        self.machine = machine
        #: Checks credentials. `Node` replaces it by one with the settings for authentication.
        self.authenticator = Authenticator(token)
        #: Service for clients while there is no leader.
        self.read_only = ReadOnly(clients, token, limits)
        #: Sessions that were rejected because their address had too many, since the start.
        self.refused = 0
        self._node_id = node_id
        self._clients = clients
        self._proposals = proposals
        self._limits = limits
        self._token = token
        #: Owner token of the last connection that asked for a session: unique, with the node's id in the top bits.
        self._origin = (node_id << 48) | int.from_bytes(token(4), "big")

    def open_session(self, connection: Connection, request: ConnectRequest) -> None:
        """Propose a new session, or the move of an existing one to this connection."""
        limits = self._limits
        wanted = max(limits.session_timeout_min_ms, min(request.timeout_ms, limits.session_timeout_max_ms))
        connection.has_read_only = request.has_read_only
        connection.timeout_ms = wanted
        if request.last_zxid_seen > self.machine.last_zxid:
            # The client has seen newer data than this node has: it must not read older data (ZooKeeper: single system
            # image).
            self._clients.close(connection)
            return
        new_id = ((self._node_id & 0x7F) << 56) | (int.from_bytes(self._token(7), "big") or 1)
        if self.read_only.is_on:
            self._open_read_only(connection, request, new_id)
            return
        self._origin += 1
        if request.session_id == 0:
            if not self._has_room(connection.address.encode()):
                self._clients.close(connection)
                return
            connection.passwd = self._token(PASSWD_BYTES)
            session_id = new_id
            opcode = op.OP_CREATE_SESSION
        else:
            connection.passwd = request.passwd
            session_id = request.session_id
            opcode = op.OP_ATTACH
        connection.session_id = session_id
        proved = encode_identities(self.authenticator.certificate(connection))
        encode = encode_create_session if opcode == op.OP_CREATE_SESSION else encode_attach
        body = encode(wanted, connection.passwd, connection.address.encode(), proved)
        pending = Pending(0, opcode, 0)
        connection.pending.append(pending)
        command = encode_command(session_id, self._origin, 0, opcode, body)
        now_ms = self._clients.now_ms
        self._proposals.waiting.append(Sent(session_id, self._origin, 0, command, connection, pending, now_ms))

    def _has_room(self, address: bytes) -> bool:
        """Return True if a client at this address may open one more session.

        One address may have half of the sessions that other addresses do not use. So no address can take all sessions,
        and a new address always gets some.
        """
        limits, sessions = self._limits, self.machine.sessions
        own, total = sessions.count_at(address), len(sessions)
        if total >= limits.sessions_max:
            return False
        share = limits.sessions_per_address_max or max(1, (limits.sessions_max - (total - own) + 1) // 2)
        if own < share:
            return True
        if self.refused % 1000 == 0:
            name = address.decode(errors="replace")
            log.warn("{address} has {own} of {total} sessions, rejecting more", address=name, own=own, total=total)
        self.refused += 1
        return False

    def _open_read_only(self, connection: Connection, request: ConnectRequest, new_id: int) -> None:
        """Start a read-only session; `new_id` is the id if the client has no session."""
        if not request.read_only:
            # As in ZooKeeper: the client tries the next server.
            self._clients.close(connection)
            return
        connection.is_read_only = True
        if request.session_id == 0:
            known = self.read_only.create_session(new_id, connection.timeout_ms)
        else:
            known = self.read_only.find(request.session_id) or self.machine.sessions.find(request.session_id)
            if known is not None and not passwords_match(known.passwd, request.passwd):
                self.refuse_session(connection)
                return
        if known is None:
            # Too many sessions, or this node has not applied the session, or it has ended: only the log decides
            # whether a session exists.
            self._clients.close(connection)
            return
        # A copy of the session: the log has no record of this connection's identities.
        identities = [(IP, connection.address.encode()), *self.authenticator.certificate(connection)]
        session = Session(known.session_id, known.passwd, known.timeout_ms, known.owner, identities)
        self._start_session(connection, session, known.owner)

    def session_opened(self, connection: Connection, outcome: CommandOutcome) -> bool:
        """Send the connect response after the log's decision; return False if the session has expired."""
        connection.pending.clear()
        session = self.machine.sessions.find(outcome.session_id)
        if outcome.err != OK or session is None:
            self.refuse_session(connection)
            return False
        self._start_session(connection, session, outcome.zxid)
        return True

    def refuse_session(self, connection: Connection) -> None:
        """Send the connect response for an expired session, and close the connection."""
        self._send_response(connection, ConnectResponse(0, 0, NO_PASSWD))
        self._clients.close(connection, flush=True)

    def _start_session(self, connection: Connection, session: Session, owner: int) -> None:
        connection.session = session
        connection.session_id = session.session_id
        connection.owner = owner
        connection.timeout_ms = session.timeout_ms
        self.authenticator.begin(connection)
        self._clients.bind(connection)
        response = ConnectResponse(session.timeout_ms, session.session_id, session.passwd, connection.is_read_only)
        self._send_response(connection, response)
        connection.pending_bytes = 0
        if connection.is_paused:
            connection.is_paused = False
            connection.transport.set_reading(not connection.is_choked)

    def _send_response(self, connection: Connection, response: ConnectResponse) -> None:
        response.has_read_only = connection.has_read_only
        body = encode_connect_response(response)
        connection.output.append(_pack_length(len(body)) + body)
        connection.sent += 1
        connection.transport.wake()
