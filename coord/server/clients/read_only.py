"""Read-only mode: what a node without a leader still does, if its settings allow it.

Without a majority nothing can be written, and after `leader_absence_ms` clients are sent away. In this mode those that
said they can do with reads alone may come back: they get what this node's tree holds, however old, and NotReadOnly for
every write. As soon as there is a leader they are cut off, so that they look for the whole service again.

A session that such a client brings with it is kept, if it lives and the password is right; it is not in the log that it
came here, so it can be lost while the client reads. A new one exists on this node only, until there is a leader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from twisted.logger import Logger

from coord.errors import AUTH_FAILED, NOT_READ_ONLY, OK
from coord.tree.acl import IP
from coord.tree.command import decode_identities
from coord.tree.sessions import IDENTITIES_MAX, Session, passwords_match
from coord.wire.opcodes import OP_AUTH, OP_CLOSE_SESSION
from coord.wire.values import PASSWD_BYTES, ConnectRequest

if TYPE_CHECKING:
    from coord.server.clients.connection import Connection
    from coord.server.clients.pipeline import Pipeline

log = Logger()


class ReadOnly:
    """The mode of one node's pipeline."""

    def __init__(self, pipeline: Pipeline, token: Callable[[int], bytes]) -> None:
        self.is_on = False
        self._pipeline = pipeline
        self._token = token
        #: Sessions that exist nowhere else.
        self._sessions: dict[int, Session] = {}

    def begin(self) -> None:
        """There has been no leader for long: whoever wants more than reads is sent elsewhere. May be called again."""
        if not self.is_on:
            self.is_on = True
            log.warn("no leader: read-only until there is one")
        for connection in list(self._pipeline.connections.values()):
            has_begun = connection.session is not None or connection.pending
            if has_begun and not connection.is_read_only:
                self._pipeline.close(connection)

    def end(self) -> None:
        """There is a leader: its clients are to find the whole service."""
        if self.is_on:
            self.is_on = False
            self._sessions.clear()
            for connection in list(self._pipeline.connections.values()):
                if connection.is_read_only:
                    self._pipeline.close(connection)

    def open_session(self, connection: Connection, request: ConnectRequest, new_id: int) -> None:
        """A client has sent its connect request; `new_id` is for a new session."""
        pipeline = self._pipeline
        if not request.read_only:
            # As ZooKeeper does: it tries the next server.
            pipeline.close(connection)
            return
        connection.is_read_only = True
        if request.session_id == 0:
            if len(self._sessions) >= pipeline.limits.sessions_max:
                pipeline.close(connection)
                return
            known = Session(new_id, self._token(PASSWD_BYTES), connection.timeout_ms, 0, [])
            self._sessions[new_id] = known
        else:
            found = self._sessions.get(request.session_id) or pipeline.machine.sessions.find(request.session_id)
            if found is None:
                # Ended, or begun behind what this node has applied: only the log can say that it is gone.
                pipeline.close(connection)
                return
            if not passwords_match(found.passwd, request.passwd):
                pipeline.refuse_session(connection)
                return
            known = found
        # A session of its own: what this connection proves is nothing that the log knows.
        identities = [(IP, connection.address.encode()), *pipeline.authenticator.certificate(connection)]
        session = Session(known.session_id, known.passwd, known.timeout_ms, known.owner, identities)
        pipeline.start_session(connection, session, known.owner)

    def perform(self, connection: Connection, opcode: int, body: bytes) -> int:
        """The code with which a command is answered that would go into the log, were there one."""
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
