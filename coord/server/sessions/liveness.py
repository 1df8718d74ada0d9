"""The life of sessions as one node sees it: reports to the leader, and as the leader the end of silent sessions.

This module carries messages between the pipeline, which hears of clients, and the rules: `contact` says when a node may
answer its clients, `endings` when the leader may end a session. The bound that both give together: no session ends
before its timeout has passed since the last request of it that was answered.
"""

from __future__ import annotations

from typing import Final

from twisted.logger import Logger

from coord.env import Clock
from coord.server.context import NodeContext
from coord.server.net.interfaces import PeerDoor
from coord.server.peers import codec
from coord.server.sessions.contact import IDLE_REPORT_TICKS, REPORT_MARK, REPORT_TICKS, ContactLease
from coord.server.sessions.endings import Endings
from coord.tree.command import encode_command
from coord.tree.sessions import ExpiryQueue
from coord.wire.opcodes import OP_EXPIRE

log = Logger(__name__)

#: Contexts of read indexes with this bit are reports', the others are syncs'.
_REPORT_CONTEXTS: Final = 1 << 60


class Liveness:
    """Sessions of one node's clients; as the leader, all sessions."""

    def __init__(self, context: NodeContext, peers: PeerDoor, clock: Clock, first_context: int) -> None:
        """`first_context`: see `ContactLease`; below 2**60."""
        self.contact = ContactLease(_REPORT_CONTEXTS | first_context, context.settings.contact_lease_ms)
        self._context = context
        self._peers = peers
        self._clock = clock
        self._ticks = 0
        self._started_ms = clock.monotonic_ms()
        #: Both are there while this node leads and has applied an entry of its term.
        self.expiry: ExpiryQueue | None = None
        self.endings: Endings | None = None

    def may_answer(self) -> bool:
        """Return True while contact with the leader is recent enough for answers to leave.

        The time is that of the turn's end: all requests of the turn came before it.
        """
        return self.contact.holds(self._context.clients.now_ms)

    # --- every node

    def tick(self, now_ms: int) -> None:
        """Report to the leader; as the leader, end the sessions that no node has heard of."""
        self._ticks += 1
        clients = self._context.clients
        if self._ticks % IDLE_REPORT_TICKS == 0 or (self._ticks % REPORT_TICKS == 0 and clients.has_heard()):
            self.report(is_patient=True)
        if self.expiry is None or self.endings is None:
            return
        self._hear(clients.take_heard(), now_ms)
        for session_id, owner in self.expiry.expired(now_ms):
            self.endings.due(session_id, owner, is_served_here=clients.end_silent(session_id))
        self._end(now_ms)
        if self._ticks % REPORT_TICKS == 0:
            term = self._context.core.term
            for peer, (number, session_ids) in self.endings.questions().items():
                self._peers.send(peer, codec.encode_silent(codec.DUE, term, number, session_ids))

    def report(self, *, is_patient: bool) -> None:
        """Tell the leader of the sessions that this node has heard of, and have it confirm that it leads.

        `is_patient`: the next regular heartbeats are soon enough.
        """
        core = self._context.core
        now_ms = self._clock.monotonic_ms()
        if core.leadership is not None:
            # The leader itself needs the lease alone.
            core.read_index(self.contact.report([], now_ms)[0], is_patient)
            return
        heard = self._context.clients.take_heard()
        if not core.leader:
            self.contact.keep(heard)
            return
        context, report = self.contact.report(heard, now_ms)
        self._peers.send(core.leader, codec.encode_touch(report))
        core.read_index(context, is_patient)

    def answer_due(self, leader: int, term: int, number: int, session_ids: list[int]) -> None:
        """Handle the leader's question: report what was heard of, answer no more requests of the other sessions."""
        core = self._context.core
        if leader != core.leader or term != core.term:
            return
        clients = self._context.clients
        heard = {*clients.peek_heard()}
        silent = [one for one in session_ids if one not in heard and self._knows_silent(one)]
        for session_id in silent:
            clients.end_silent(session_id)
        if silent:
            self._peers.send(leader, codec.encode_silent(codec.AGREED, term, number, silent))
        if len(silent) < len(session_ids):
            self.report(is_patient=False)

    def _knows_silent(self, session_id: int) -> bool:
        """Return True unless this node may have answered the session within its timeout.

        An earlier process of this node may have answered and died before its report: a process vouches for no silence
        that began before its start. Clocks of nodes run at different rates, so it waits longer by the same factor.
        """
        settings = self._context.settings
        session = self._context.machine.sessions.sessions.get(session_id)
        up_ms = (self._clock.monotonic_ms() - self._started_ms) * settings.contact_lease_ms // settings.contact_grace_ms
        return not self.contact.is_unconfirmed(session_id) and (session is None or up_ms >= session.timeout_ms)

    # --- the leader

    def lead(self) -> None:
        """Give every session its whole timeout from now on. Everything of earlier terms is applied."""
        context = self._context
        settings = context.settings
        table = context.machine.sessions
        now_ms = self._clock.monotonic_ms()
        self.expiry = ExpiryQueue(table, max(1, settings.tick_ms // 2), now_ms)
        members = context.core.configs.current.members()
        self.endings = Endings(table, settings.node_id, members, settings.contact_grace_ms, now_ms)

    def stop_leading(self) -> None:
        """Somebody else leads, or nobody."""
        self.expiry = self.endings = None

    def take_report(self, peer: int, report: list[int]) -> None:
        """Handle a TOUCH: `peer` has heard of these sessions."""
        if self.endings is None:
            return
        now_ms = self._clock.monotonic_ms()
        if report and report[0] == REPORT_MARK:
            self.endings.reported(peer, now_ms)
            del report[0]
        self._hear(report, now_ms)

    def agreed(self, peer: int, term: int, number: int, session_ids: list[int]) -> None:
        """Handle a node's answer to our question."""
        if self.endings is not None and term == self._context.core.term:
            self.endings.agreed(peer, number, session_ids)
            self._end(self._clock.monotonic_ms())

    def opened(self, session_id: int, node: int) -> None:
        """A session was opened at `node`, or moved there."""
        if self.expiry is not None and self.endings is not None:
            self.expiry.touch(session_id, self._clock.monotonic_ms())
            self.endings.opened(session_id, node)

    def _hear(self, session_ids: list[int], now_ms: int) -> None:
        if self.expiry is not None and self.endings is not None:
            for session_id in session_ids:
                self.expiry.touch(session_id, now_ms)
                self.endings.heard(session_id)

    def _end(self, now_ms: int) -> None:
        """Propose the end of silent sessions that no node answers any more."""
        assert self.endings is not None
        due = self.endings.take(now_ms)
        if due:
            log.info("{count} sessions expired", count=len(due))
            commands = [encode_command(session_id, owner, 0, OP_EXPIRE, b"") for session_id, owner in due]
            self._context.propose(commands)
