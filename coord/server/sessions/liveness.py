"""Liveness of sessions at one node: reports to the leader; at the leader, the expiry of silent sessions.

This module connects the pipeline, which receives requests, with the rules: `contact` decides when a node may reply to
its clients, `endings` when the leader may expire a session. Together they guarantee that no session expires before its
timeout has passed since its last request that got a reply.
"""

from __future__ import annotations

from typing import Final

from twisted.logger import Logger

from coord.env import Clock
from coord.server.context import NodeContext
from coord.server.interfaces import PeerTransport
from coord.server.peers import codec
from coord.server.sessions.contact import IDLE_REPORT_TICKS, REPORT_MARK, REPORT_TICKS, ContactLease
from coord.server.sessions.endings import Endings
from coord.tree.command import encode_command
from coord.tree.sessions import ExpiryQueue
from coord.wire.opcodes import OP_EXPIRE

log = Logger(__name__)

#: Read index contexts with this bit belong to reports, the others to syncs.
_REPORT_CONTEXTS: Final = 1 << 60


class Liveness:
    """The sessions of one node's clients; at the leader, all sessions."""

    def __init__(self, context: NodeContext, peers: PeerTransport, clock: Clock, first_context: int) -> None:
        """`first_context`: see `ContactLease`; below 2**60."""
        self.contact = ContactLease(_REPORT_CONTEXTS | first_context, context.settings.contact_lease_ms)
        self._context = context
        self._peers = peers
        self._clock = clock
        self._ticks = 0
        self._started_ms = clock.monotonic_ms()
        #: Both are set while this node leads and has applied an entry of its term.
        self.expiry: ExpiryQueue | None = None
        self.endings: Endings | None = None

    def may_answer(self) -> bool:
        """Return True while contact with the leader is recent enough for replies to leave.

        The time is the end of the turn, when all requests of the turn have arrived.
        """
        return self.contact.holds(self._context.clients.now_ms)

    # --- every node

    def tick(self, now_ms: int) -> None:
        """Report to the leader; as the leader, expire the sessions that no node has reported."""
        self._ticks += 1
        clients = self._context.clients
        if self._ticks % IDLE_REPORT_TICKS == 0 or (self._ticks % REPORT_TICKS == 0 and clients.has_active()):
            self.report(is_patient=True)
        if self.expiry is None or self.endings is None:
            return
        self._touch(clients.take_active(), now_ms)
        for session_id, owner in self.expiry.expired(now_ms):
            self.endings.due(session_id, owner, is_served_here=clients.end_silent(session_id))
        self._end(now_ms)
        if self._ticks % REPORT_TICKS == 0:
            term = self._context.core.term
            for peer, (number, session_ids) in self.endings.questions().items():
                self._peers.send(peer, codec.encode_silent(codec.DUE, term, number, session_ids))

    def report(self, *, is_patient: bool) -> None:
        """Report the active sessions to the leader, and have it confirm its leadership.

        `is_patient`: the next regular heartbeats are soon enough.
        """
        core = self._context.core
        now_ms = self._clock.monotonic_ms()
        if core.leadership is not None:
            # The leader needs only the lease.
            core.read_index(self.contact.report([], now_ms)[0], is_patient)
            return
        active = self._context.clients.take_active()
        if not core.leader:
            self.contact.keep(active)
            return
        context, report = self.contact.report(active, now_ms)
        self._peers.send(core.leader, codec.encode_touch(report))
        core.read_index(context, is_patient)

    def answer_due(self, leader: int, term: int, number: int, session_ids: list[int]) -> None:
        """Handle DUE: report the sessions that were active, and close the connections of the others."""
        core = self._context.core
        if leader != core.leader or term != core.term:
            return
        clients = self._context.clients
        active = {*clients.peek_active()}
        silent = [one for one in session_ids if one not in active and self._confirms_silence(one)]
        for session_id in silent:
            clients.end_silent(session_id)
        if silent:
            self._peers.send(leader, codec.encode_silent(codec.AGREED, term, number, silent))
        if len(silent) < len(session_ids):
            self.report(is_patient=False)

    def _confirms_silence(self, session_id: int) -> bool:
        """Return True if this node certainly sent the session no reply within the session's timeout.

        An earlier process of this node may have replied and died before its report, so a process cannot confirm a
        silence that began before its start. Clocks of nodes run at different rates, so this node waits longer by the
        same factor.
        """
        settings = self._context.settings
        session = self._context.machine.sessions.sessions.get(session_id)
        up_ms = (self._clock.monotonic_ms() - self._started_ms) * settings.contact_lease_ms // settings.contact_grace_ms
        return not self.contact.is_unconfirmed(session_id) and (session is None or up_ms >= session.timeout_ms)

    # --- the leader

    def lead(self) -> None:
        """Give every session its full timeout from now on. All entries of earlier terms are applied."""
        context = self._context
        settings = context.settings
        table = context.machine.sessions
        now_ms = self._clock.monotonic_ms()
        self.expiry = ExpiryQueue(table, max(1, settings.tick_ms // 2), now_ms)
        members = context.core.configs.current.members()
        self.endings = Endings(table, settings.node_id, members, settings.contact_grace_ms, now_ms)

    def stop_leading(self) -> None:
        """Discard the leader's state: this node does not lead any more."""
        self.expiry = self.endings = None

    def take_report(self, peer: int, report: list[int]) -> None:
        """Handle a TOUCH: these sessions were active at `peer`."""
        if self.endings is None:
            return
        now_ms = self._clock.monotonic_ms()
        if report and report[0] == REPORT_MARK:
            self.endings.reported(peer, now_ms)
            del report[0]
        self._touch(report, now_ms)

    def agreed(self, peer: int, term: int, number: int, session_ids: list[int]) -> None:
        """Handle AGREED, a node's reply to DUE."""
        if self.endings is not None and term == self._context.core.term:
            self.endings.agreed(peer, number, session_ids)
            self._end(self._clock.monotonic_ms())

    def opened(self, session_id: int, node: int) -> None:
        """Record that a session was opened at `node` or moved there."""
        if self.expiry is not None and self.endings is not None:
            self.expiry.touch(session_id, self._clock.monotonic_ms())
            self.endings.opened(session_id, node)

    def _touch(self, session_ids: list[int], now_ms: int) -> None:
        if self.expiry is not None and self.endings is not None:
            for session_id in session_ids:
                self.expiry.touch(session_id, now_ms)
                self.endings.touched(session_id)

    def _end(self, now_ms: int) -> None:
        """Propose the expiry of silent sessions whose nodes have agreed."""
        assert self.endings is not None
        due = self.endings.take(now_ms)
        if due:
            log.info("{count} sessions expired", count=len(due))
            commands = [encode_command(session_id, owner, 0, OP_EXPIRE, b"") for session_id, owner in due]
            self._context.propose(commands)
