"""A leader's requests for copies: StartTabletCopy, sent to the server of a member that needs a copy (TC-02).

`host/wanted_copies.py` chooses the members and the times. After any answer the leader asks again only if the member's
server still refuses its messages. After an answer that accepts the copy, it asks again only if the copy has ended
without success.
"""

from __future__ import annotations

from typing import Any, Final

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.peers.stream import Address
from coord.rpc.wire import RpcError
from regions.messages import OwnReplica, ReplicaList, ShowReplicas
from regions.messages.heartbeat import ReplicaState
from regionserver.tablets.copying.messages import (
    CopyOutcome,
    CopySource,
    SeenReplica,
    StartTabletCopy,
    TabletCopyAnswer,
)
from regionserver.tablets.host.envelope import Word
from regionserver.tablets.host.wanted_copies import CopyWanted
from regionserver.tablets.links.questions import Ask
from regionserver.tablets.process.replica import TabletReplica

log = Logger()

#: State of the replica for each refusal; None if the refusal does not show it.
_STATES: Final = {Word.DELETED: ReplicaState.TOMBSTONE, Word.FAILED: ReplicaState.FAILED, Word.OLDER: None}
#: Answers that accept the question: the copy runs, or is queued.
_ACCEPTED: Final = (CopyOutcome.STARTED, CopyOutcome.ALREADY_INPROGRESS)


class CopyQuestions:
    """Asks the servers of members. Every method is called on the reactor's thread."""

    def __init__(self, ask: Ask, server: str, address: Address, replicas: dict[str, TabletReplica]) -> None:
        """`server` and `address`: this server's uuid, and where it listens for other members."""
        self._ask_server = ask
        self._server = server
        self._address = address
        self._replicas = replicas

    def ask(self, wanted: CopyWanted) -> Deferred[Any]:
        """Ask for a copy. Fires when the server has answered, or does not answer in time: with True if it copies the
        tablet, or has queued the copy."""
        replica = self._replicas.get(wanted.tablet)
        if replica is None:
            return succeed(None)
        asked: Deferred[Any]
        if wanted.word is None:
            asked = self._ask_server(wanted.server, ShowReplicas(tablets=[wanted.tablet]), ReplicaList)
            asked.addCallback(lambda found: self._ask_running(wanted, replica, found))
        else:
            asked = self._ask(self._order(wanted, replica, seen_in(wanted)))
        return asked.addErrback(_failed, wanted)

    def _ask_running(self, wanted: CopyWanted, replica: TabletReplica, found: ReplicaList) -> Deferred[Any] | None:
        """Ask for a copy of a replica that runs, unless it has no need of one by now."""
        own = next(iter(found.replicas), None)
        if own is None or not needs_copy(own, wanted, replica.number):
            return None
        seen = SeenReplica(own.report.number, own.report.state, own.last_term, own.last_index)
        return self._ask(self._order(wanted, replica, seen))

    def _ask(self, order: StartTabletCopy) -> Deferred[Any]:
        asked = self._ask_server(order.recipient, order, TabletCopyAnswer)

        def answered(answer: TabletCopyAnswer) -> bool:
            is_accepted = answer.outcome in _ACCEPTED
            if not is_accepted:
                log.warn(
                    "server {server} does not copy member {number} of tablet {tablet}: {outcome} ({why})",
                    server=order.recipient, number=order.number, tablet=order.tablet, outcome=answer.outcome,
                    why=answer.reason,
                )  # fmt: skip
            return is_accepted

        return asked.addCallback(answered)

    def _order(self, wanted: CopyWanted, replica: TabletReplica, seen: SeenReplica | None) -> StartTabletCopy:
        block = replica.block
        return StartTabletCopy(
            wanted.server, wanted.tablet, wanted.number, wanted.role, wanted.term,
            CopySource(block.number, self._server, *self._address), seen, block.table, block.start_key,
            block.end_key, block.hash_buckets,
        )  # fmt: skip


def _failed(failure: Failure, wanted: CopyWanted) -> None:
    failure.trap(RpcError)  # type: ignore[no-untyped-call]
    log.info("server {server} cannot be asked for a copy: {why}", server=wanted.server, why=str(failure.value))


def needs_copy(own: OwnReplica, wanted: CopyWanted, leader: int) -> bool:
    """Return True if a running replica follows this leader, and lacks an entry that the leader's log has dropped."""
    report = own.report
    if (report.number, report.state, report.term) != (wanted.number, ReplicaState.RUNNING, wanted.term):
        return False
    return own.leader == leader and own.commit_index < wanted.lacks


def seen_in(wanted: CopyWanted) -> SeenReplica | None:
    """Return the replica that a refusal has shown; None for a server without files of the tablet."""
    assert wanted.word is not None, f"member {wanted.number} of {wanted.tablet} has refused nothing"
    if wanted.word is Word.DOES_NOT_EXIST:
        return None
    return SeenReplica(wanted.seen_number, _STATES[wanted.word], wanted.seen_term, wanted.seen_index)
