"""Sessions that the leader is about to expire, and the nodes that must agree first.

A session is due when no node has reported it for its timeout. The node that serves the client may have replied to a
request since its last report, so the leader asks the node: DUE. If the session was active, the node reports it at once,
and the session lives. Otherwise the node closes the client's connection, so that it sends no more replies, and agrees:
AGREED.

A node that is out of contact cannot agree. It replies to clients only during its lease
(`coord.server.sessions.contact`), which began before its last report arrived. So the session expires its timeout after
the last moment at which that node may have replied: `grace_ms` after its last report. The grace is longer than the
lease because clocks run at different rates.

The leader knows which node serves a session if the session was opened or moved in this term. Otherwise it asks every
node.
"""

from __future__ import annotations

from coord.tree.sessions import SessionTable


class _Due:
    """A session that is due."""

    def __init__(self, owner: int, number: int, nodes: set[int]) -> None:
        self.owner = owner
        #: Number of the first DUE request for this silence of the session. Replies to lower numbers concern an earlier
        #: one.
        self.number = number
        #: Nodes that have not agreed yet.
        self.nodes = nodes


class Endings:
    """The due sessions of one leader's term. All times are the leader's monotonic milliseconds."""

    def __init__(self, table: SessionTable, own: int, members: list[int], grace_ms: int, now_ms: int) -> None:
        """`members` may have served clients under an earlier leader."""
        self._table = table
        self._own = own
        self._grace_ms = grace_ms
        #: Node -> time of its last report, or the begin of this leadership.
        self._reports: dict[int, int] = {member: now_ms for member in members if member != own}
        #: Nodes that answer DUE requests: those that have sent a report with REPORT_MARK.
        self._reporting: set[int] = set()
        #: Session -> node that serves it.
        self._servers: dict[int, int] = {}
        self._due: dict[int, _Due] = {}
        self._number = 0

    def reported(self, node: int, now_ms: int) -> None:
        """Record a report of `node`."""
        self._reports[node] = now_ms
        self._reporting.add(node)

    def opened(self, session_id: int, node: int) -> None:
        """Record that a session was opened at `node` or moved there."""
        self._servers[session_id] = node
        self._due.pop(session_id, None)
        if len(self._servers) > 2 * len(self._table) + 1000:
            self._servers = {one: at for one, at in self._servers.items() if one in self._table.sessions}

    def touched(self, session_id: int) -> None:
        """Record a request of the session: the session is not due."""
        self._due.pop(session_id, None)

    def due(self, session_id: int, owner: int, *, is_served_here: bool) -> None:
        """Record a session that was silent for its timeout; `is_served_here`: this node has closed its connection."""
        known = self._due.get(session_id)
        if known is not None and known.owner == owner:
            return
        server = self._own if is_served_here else self._servers.get(session_id, 0)
        nodes = {server} if server else set(self._reports)
        nodes.discard(self._own)
        self._due[session_id] = _Due(owner, self._number + 1, nodes)

    def questions(self) -> dict[int, tuple[int, list[int]]]:
        """Return node -> (number of the request, sessions to ask the node about)."""
        self._number += 1
        asked: dict[int, tuple[int, list[int]]] = {}
        for session_id, due in sorted(self._due.items()):
            for node in sorted(due.nodes & self._reporting):
                asked.setdefault(node, (self._number, []))[1].append(session_id)
        return asked

    def agreed(self, node: int, number: int, session_ids: list[int]) -> None:
        """Record that `node` sends no more replies to these sessions."""
        for session_id in session_ids:
            due = self._due.get(session_id)
            if due is not None and number >= due.number:
                due.nodes.discard(node)

    def take(self, now_ms: int) -> list[tuple[int, int]]:
        """Return and remove the (session, owner) pairs that may expire now."""
        ended: list[tuple[int, int]] = []
        for session_id, due in list(self._due.items()):
            session = self._table.sessions.get(session_id)
            if session is None or session.owner != due.owner:
                del self._due[session_id]
                continue
            for node in list(due.nodes):
                reported_ms = self._reports.get(node)
                if reported_ms is None or now_ms >= reported_ms + self._grace_ms + session.timeout_ms:
                    due.nodes.discard(node)
            if not due.nodes:
                del self._due[session_id]
                ended.append((session_id, due.owner))
        return ended
