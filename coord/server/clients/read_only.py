"""Read-only mode: the service of a node without a leader, if its settings allow this mode.

Without a majority no write can be committed, and after `leader_absence_ms` the node closes its client connections. In
read-only mode, clients that offered read-only sessions may reconnect. They read this node's tree, however old, and get
NotReadOnly for every write. When there is a leader again, the node closes their connections, so that they reconnect for
reads and writes.

A client may bring an existing session, if this node has the session and the password is right. The log does not record
that the session moved here, so the session may expire while its client reads. A new session exists on this node only,
until there is a leader.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.logger import Logger

from coord.errors import AUTH_FAILED, NOT_READ_ONLY, OK
from coord.server.clients.connection import Connection, Limits
from coord.server.clients.table import ClientTable
from coord.tree.command import decode_identities
from coord.tree.sessions import IDENTITIES_MAX, Session
from coord.wire.opcodes import OP_AUTH, OP_CLOSE_SESSION
from coord.wire.values import PASSWD_BYTES

log = Logger()


class ReadOnly:
    """Read-only mode of one node: whether it is on, and the sessions that exist only here."""

    def __init__(self, clients: ClientTable, token: Callable[[int], bytes], limits: Limits) -> None:
        """`token(n)` returns n unpredictable bytes."""
        self.is_on = False
        self._clients = clients
        self._token = token
        self._limits = limits
        self._sessions: dict[int, Session] = {}

    def begin(self) -> None:
        """Close the connections of clients that may write. Called repeatedly while there is no leader."""
        if not self.is_on:
            self.is_on = True
            log.warn("no leader: serving reads only until a leader is elected")
        for connection in list(self._clients.connections.values()):
            has_begun = connection.session is not None or connection.pending
            if has_begun and not connection.is_read_only:
                self._clients.close(connection)

    def end(self) -> None:
        """Close read-only connections, because there is a leader: their clients reconnect for reads and writes."""
        if self.is_on:
            self.is_on = False
            self._sessions.clear()
            for connection in list(self._clients.connections.values()):
                if connection.is_read_only:
                    self._clients.close(connection)

    def create_session(self, session_id: int, timeout_ms: int) -> Session | None:
        """Return a new session of this node, or None at the limit."""
        if len(self._sessions) >= self._limits.sessions_max:
            return None
        session = Session(session_id, self._token(PASSWD_BYTES), timeout_ms, 0, [])
        self._sessions[session_id] = session
        return session

    def find(self, session_id: int) -> Session | None:
        """Return this node's own session with this id, or None."""
        return self._sessions.get(session_id)

    def perform(self, connection: Connection, opcode: int, body: bytes) -> int:
        """Perform a command without the log, and return its error code."""
        session = connection.session
        if opcode == OP_CLOSE_SESSION:
            self._sessions.pop(connection.session_id, None)
            return OK
        if opcode != OP_AUTH or session is None:
            return NOT_READ_ONLY
        proved = decode_identities(body, 0, len(body))
        if len(session.identities) + len(proved) > IDENTITIES_MAX:
            return AUTH_FAILED
        session.identities = session.identities + [one for one in proved if one not in session.identities]
        return OK
