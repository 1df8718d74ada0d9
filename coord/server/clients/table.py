"""All client connections of one node, by number and by session, with their activity and counters."""

from __future__ import annotations

from coord.server.clients.connection import ClientTransport, Connection, Latency, RequestTimes
from coord.tree.watches import WatchTable


class ClientTable:
    """The connections of one node's clients.

    Invariant: every connection in `by_session` is open, has a session and is in `connections`.
    """

    def __init__(self, watches: WatchTable) -> None:
        self.watches = watches
        #: Connection number -> open connection.
        self.connections: dict[int, Connection] = {}
        #: Session id -> the only connection of the session.
        self.by_session: dict[int, Connection] = {}
        #: Connections that sent bytes since the last `take_active`, closed ones included.
        self.active: set[Connection] = set()
        #: Reads that wait for an earlier request of their session. While there are any, the node applies commands one
        #: by one, so that a read between two writes of its session sees the first and not the second.
        self.waiting_reads = 0
        #: Requests received and events sent since the start or the last reset.
        self.received = 0
        self.events_sent = 0
        #: Size of the latest reply or event that was sent, -1 before the first.
        self.last_response_bytes = -1
        self.latency = Latency()
        #: The same requests in full, since the start.
        self.times = RequestTimes()
        #: Monotonic time of the current turn.
        self.now_ms = 0
        self._connection_count = 0

    def connect(self, transport: ClientTransport, address: str, port: int, now_ms: int) -> Connection:
        """Return a new connection without a session."""
        self._connection_count += 1
        connection = Connection(self._connection_count, transport, address, port, now_ms)
        self.connections[connection.number] = connection
        return connection

    def connection_lost(self, connection: Connection) -> None:
        """Remove a connection. Its session lives until it expires; commands in flight may still be applied."""
        if connection.is_closed:
            return
        connection.is_closed = connection.is_ending = True
        self.waiting_reads -= sum(1 for waiting in connection.pending if waiting.is_read)
        del self.connections[connection.number]
        if self.by_session.get(connection.session_id) is connection:
            self.watches.drop(connection.session_id)
            del self.by_session[connection.session_id]

    def close(self, connection: Connection, *, flush: bool = False) -> None:
        """Close a connection from this side, after sending its output if `flush`."""
        if not connection.is_closed:
            self.connection_lost(connection)
            connection.transport.close(flush=flush)

    def close_all(self) -> None:
        """Close every connection; the sessions can move to other nodes."""
        for connection in list(self.connections.values()):
            self.close(connection)

    def bind(self, connection: Connection) -> None:
        """Make `connection` the connection of its session; close the previous one."""
        older = self.by_session.get(connection.session_id)
        if older is not None:
            self.close(older)
        self.by_session[connection.session_id] = connection
        self.active.add(connection)

    def end_silent(self, session_id: int) -> bool:
        """Close the connection of a session that is about to expire; return False if it has no connection here.

        The node sends no more replies over that connection. A client that is alive reconnects, and the log decides
        whether its session still exists.
        """
        connection = self.by_session.get(session_id)
        if connection is None or connection.is_read_only:
            return False
        self.close(connection)
        return True

    # --- which clients were active ----------------------------------------------------------------------------------

    def has_active(self) -> bool:
        """Return True if any client has sent bytes since the last `take_active`."""
        return len(self.active) > 0

    def peek_active(self) -> list[int]:
        """Return what `take_active` would return."""
        return sorted({c.session_id for c in self.active if c.session is not None and not c.is_read_only})

    def take_active(self) -> list[int]:
        """Return the ids of the sessions active since the last call, ascending, and clear the set.

        The list includes sessions whose connections have been closed since.
        """
        active = self.peek_active()
        self.active.clear()
        return active

    # --- counters ---------------------------------------------------------------------------------------------------

    def sent(self) -> int:
        """Return the number of replies and events sent to the clients that are connected now."""
        return self.events_sent + sum(connection.sent for connection in self.connections.values())

    def reset_figures(self) -> None:
        """Set the counters to zero."""
        self.received = self.events_sent = 0
        self.latency = Latency()
