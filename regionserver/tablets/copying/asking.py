"""A leader's questions for copies: StartTabletCopy, sent to the server of a member that needs one (TC-02).

`host/wanted_copies.py` decides for whom and when. Whatever the answer, the leader asks again only if the member's
server still refuses its messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.peers.stream import Address
from coord.rpc.server import RpcClient
from coord.rpc.wire import RpcError
from regions.messages.heartbeat import ReplicaState
from regionserver.tablets.copying.messages import (
    CopyOutcome,
    CopySource,
    SeenReplica,
    StartTabletCopy,
    TabletCopyAnswer,
)
from regionserver.tablets.host.wanted_copies import CopyWanted
from regionserver.tablets.host.words import Word
from regionserver.tablets.process.replica import TabletReplica

log = Logger()

#: Time limit of a question. The server answers before it begins the copy.
ANSWER_S: Final = 5.0
#: State of the replica behind each refusal; None: the refusal does not say.
_STATES: Final = {Word.DELETED: ReplicaState.TOMBSTONE, Word.FAILED: ReplicaState.FAILED, Word.OLDER: None}
#: Answers that need no line in the log: the copy runs.
_EXPECTED: Final = (CopyOutcome.STARTED, CopyOutcome.ALREADY_INPROGRESS)


class CopyQuestions:
    """Asks the servers of members. Every method is called on the reactor's thread."""

    def __init__(self, reactor: Any, server: str, address: Address, replicas: dict[str, TabletReplica]) -> None:
        """`server` and `address`: this server's uuid, and where it listens for other members."""
        self._reactor = reactor
        self._server = server
        self._address = address
        self._replicas = replicas
        #: Returns where a server takes requests, by its uuid; None if that is not known.
        self.address_of: Callable[[str], Address | None] = lambda _server: None

    def ask(self, wanted: CopyWanted) -> Deferred[Any]:
        """Ask for a copy. Fires when the server has answered, or does not answer in time."""
        replica, address = self._replicas.get(wanted.tablet), self.address_of(wanted.server)
        if replica is None or address is None:
            return succeed(None)
        client = RpcClient(self._reactor, *address)
        asked: Deferred[Any] = client.call(self._order(wanted, replica), ANSWER_S, expect=TabletCopyAnswer)

        def answered(answer: TabletCopyAnswer) -> None:
            if answer.outcome not in _EXPECTED:
                log.warn(
                    "server {server} does not copy member {number} of tablet {tablet}: {outcome} ({why})",
                    server=wanted.server, number=wanted.number, tablet=wanted.tablet, outcome=answer.outcome,
                    why=answer.reason,
                )  # fmt: skip

        def failed(failure: Failure) -> None:
            failure.trap(RpcError)  # type: ignore[no-untyped-call]
            log.info("server {server} cannot be asked for a copy: {why}", server=wanted.server, why=str(failure.value))

        def close(result: object) -> object:
            client.close()
            return result

        return asked.addCallbacks(answered, failed).addBoth(close)

    def _order(self, wanted: CopyWanted, replica: TabletReplica) -> StartTabletCopy:
        block = replica.block
        return StartTabletCopy(
            wanted.server, wanted.tablet, wanted.number, wanted.role, wanted.term,
            CopySource(block.number, self._server, *self._address), seen_in(wanted), block.table, block.start_key,
            block.end_key, block.hash_buckets,
        )  # fmt: skip


def seen_in(wanted: CopyWanted) -> SeenReplica | None:
    """Return the replica that a refusal has shown; None for a server that has nothing of the tablet."""
    if wanted.word is Word.DOES_NOT_EXIST:
        return None
    return SeenReplica(wanted.seen_number, _STATES[wanted.word], wanted.seen_term, wanted.seen_index)
