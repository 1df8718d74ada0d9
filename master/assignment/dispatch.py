"""Sends orders to region servers, over one pipelined connection per server, and turns their replies into events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.rpc.client import RpcClient
from coord.rpc.server import RpcError
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.messages import (
    STALE_EPOCH,
    AlterRegions,
    AlterResults,
    ChangeConfig,
    CloseRegions,
    ConfigChange,
    ConfigChanged,
    FindSplitKey,
    OpenRegions,
    OrderResults,
    PrepareRows,
    Purged,
    PurgeTable,
    RemoveRegions,
    ReviewReplicas,
    RowsPrepared,
    SealTablet,
    SplitKey,
    TabletSealed,
    TransferLeadership,
)
from regions.records.members import MemberRole
from regions.records.model import ServerRecord
from regions.replication.effects import ChangeMembers, HandOver, Unseal

log = Logger()

#: A server replies to a batch within this time, with the results so far.
ANSWER_WITHIN_MS: Final = 5_000
#: The master waits this much longer for the reply.
GRACE_S: Final = 5.0
#: Timeout of an order to remove a table's files. The order is then repeated, and the server continues.
PURGE_S: Final = 300.0


class Dispatcher:
    """Carries out SendOpen, SendClose and SendAlter during one tenure."""

    def __init__(
        self,
        reactor: Any,
        epoch: int,
        received: Callable[[ev.Event], None],
        epoch_rejected: Callable[[str], None],
        failed: Callable[[Failure], None],
        cluster_id: str = "",
    ) -> None:
        """`received` is called with OrdersAnswered or OrdersLost for each batch.

        `epoch_rejected` is called when a server rejects an order because it knows a higher epoch. `failed` is called
        after an exception in one of the others.
        """
        self._reactor = reactor
        self._epoch = epoch
        self._cluster_id = cluster_id
        self._received = received
        self._epoch_rejected = epoch_rejected
        self._failed = failed
        self._clients: dict[tuple[str, int], RpcClient] = {}
        self._closed = False

    def send(self, effect: fx.SendOpen | fx.SendClose) -> None:
        """Send one batch of OPEN or CLOSE orders."""
        server = effect.server
        kind = OpenRegions if isinstance(effect, fx.SendOpen) else CloseRegions
        orders: Any = effect.orders
        message = kind(self._epoch, server.uuid, server.start_code, orders, ANSWER_WITHIN_MS, self._cluster_id)
        sent = self._client(server).call(message, ANSWER_WITHIN_MS / 1000 + GRACE_S, expect=OrderResults)
        sent.addCallbacks(self._answered, self._not_answered, (effect.batch,), {}, (effect.batch, server.uuid))
        sent.addErrback(self._failed)

    def review(self, server: ServerRecord, replicas: list[tuple[str, int]], cause_id: str) -> None:
        """Order a server to check these replicas. The reply is ignored: later reports show the result."""
        message = ReviewReplicas(self._epoch, server.uuid, server.start_code, replicas, self._cluster_id, cause_id)
        sent = self._client(server).call(message, ANSWER_WITHIN_MS / 1000, expect=OrderResults)
        sent.addErrback(self._not_reviewed, server.uuid)

    def purge(self, server: ServerRecord, table_id: str, cause_id: str) -> Deferred[Purged]:
        """Order a server to remove the rows of a deleted table; the result fails with RpcError."""
        message = PurgeTable(self._epoch, server.uuid, server.start_code, table_id, self._cluster_id, cause_id)
        return self._client(server).call(message, PURGE_S, expect=Purged)

    def find_split_key(self, server: ServerRecord, region_id: str, cause_id: str) -> Deferred[SplitKey]:
        """Ask a server for the row in the middle of a region's bytes; the result fails with RpcError."""
        message = FindSplitKey(self._epoch, server.uuid, server.start_code, region_id, self._cluster_id, cause_id)
        return self._client(server).call(message, PURGE_S, expect=SplitKey)

    def prepare_rows(self, effect: fx.PrepareDaughters | fx.GiveUpDaughters) -> Deferred[RowsPrepared]:
        """Order a server to copy the parents' rows into the daughters' files, or to remove these; the result fails with
        RpcError."""
        server, record = effect.server, effect.record
        daughters = list(record.daughters) if isinstance(effect, fx.PrepareDaughters) else []
        message = PrepareRows(
            self._epoch, server.uuid, server.start_code, list(record.parents), daughters, self._cluster_id,
            effect.cause_id, record.seal,
        )  # fmt: skip
        return self._client(server).call(message, PURGE_S, expect=RowsPrepared)

    def seal_tablet(self, effect: fx.SealParent) -> Deferred[TabletSealed]:
        """Order a tablet's leader to seal it; the result fails with RpcError."""
        return self._seal(effect.server, effect.parent, effect.record.seal, effect.cause_id, wanted=True)

    def _seal(
        self, server: ServerRecord, region_id: str, seal: str, cause_id: str, *, wanted: bool
    ) -> Deferred[TabletSealed]:
        message = SealTablet(
            self._epoch, server.uuid, server.start_code, region_id, seal, wanted, ANSWER_WITHIN_MS, self._cluster_id,
            cause_id,
        )  # fmt: skip
        return self._client(server).call(message, ANSWER_WITHIN_MS / 1000 + GRACE_S, expect=TabletSealed)

    def remove_regions(self, effect: fx.RemoveParents) -> Deferred[Purged]:
        """Order a server to remove the files of replaced regions; the result fails with RpcError."""
        server, record = effect.server, effect.record
        daughters = [one.region_id for one in record.daughters]
        message = RemoveRegions(
            self._epoch, server.uuid, server.start_code, record.table_id, list(record.parents), daughters,
            self._cluster_id, effect.cause_id,
        )  # fmt: skip
        return self._client(server).call(message, PURGE_S, expect=Purged)

    def _client(self, server: ServerRecord) -> RpcClient:
        address = (server.host, server.port)
        client = self._clients.get(address)
        if client is None:
            client = self._clients[address] = RpcClient(self._reactor, *address)
        return client

    def _not_reviewed(self, failure: Failure, uuid: str) -> None:
        failure.trap(RpcError)  # type: ignore[no-untyped-call]
        error: Any = failure.value
        if self._closed:
            return
        log.info("could not order server {uuid} to check its replicas: {error}", uuid=uuid, error=error)
        if error.code == STALE_EPOCH:
            self._epoch_rejected(error.message)

    def send_alter(self, effect: fx.SendAlter) -> None:
        """Send one batch of schema versions. The server replies at once."""
        server = effect.server
        message = AlterRegions(self._epoch, server.uuid, server.start_code, effect.orders, self._cluster_id)
        sent = self._client(server).call(message, GRACE_S, expect=AlterResults)
        sent.addCallbacks(self._alter_answered, self._alter_failed, (effect.batch,), {}, (effect.batch, server.uuid))
        sent.addErrback(self._failed)

    def change(self, effect: ChangeMembers | HandOver | Unseal, answered: Callable[[int, str], None]) -> None:
        """Send a change of members, or the end of a seal, to a tablet's leader. `answered` is called with the effect's
        `ask` and the result.

        No decision depends on the answer, because the leader's next report shows the configuration.
        """
        server = effect.server
        sent: Deferred[Any]
        if isinstance(effect, Unseal):
            sent = self._seal(server, effect.region_id, effect.seal, effect.cause_id, wanted=False)
        else:
            message = self._change_of_members(effect)
            sent = self._client(server).call(message, ANSWER_WITHIN_MS / 1000 + GRACE_S, expect=ConfigChanged)
        sent.addCallbacks(
            self._changed, self._not_changed, (effect.ask, answered), {}, (effect.ask, server.uuid, answered)
        )
        sent.addErrback(self._failed)

    def _change_of_members(self, effect: ChangeMembers | HandOver) -> ChangeConfig | TransferLeadership:
        server = effect.server
        if isinstance(effect, HandOver):
            return TransferLeadership(effect.region_id, server.uuid, effect.to)
        change = ConfigChange.ADD if effect.adds else ConfigChange.REMOVE
        # A new voter always begins as PRE_VOTER.
        role = MemberRole.LEARNER if effect.member.role is MemberRole.LEARNER else MemberRole.VOTER
        return ChangeConfig(
            self._epoch, server.uuid, server.start_code, effect.region_id, effect.expect, change,
            effect.member.number, effect.member.uuid, effect.host, effect.peer_port, role, ANSWER_WITHIN_MS,
            self._cluster_id, effect.cause_id,
        )  # fmt: skip

    def _changed(self, reply: ConfigChanged | TabletSealed, ask: int, answered: Callable[[int, str], None]) -> None:
        if not self._closed:
            answered(ask, f"{reply.answer.value}{': ' if reply.why else ''}{reply.why}")

    def _not_changed(self, failure: Failure, ask: int, uuid: str, answered: Callable[[int, str], None]) -> None:
        if not self._closed:
            self._note_failure(failure, ask, uuid)
            answered(ask, str(failure.value))

    def close(self) -> None:
        """Close all connections and ignore later replies."""
        self._closed = True
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def _answered(self, reply: OrderResults, batch: int) -> None:
        if not self._closed:
            self._received(ev.OrdersAnswered(batch, reply.results))

    def _alter_answered(self, reply: AlterResults, batch: int) -> None:
        if not self._closed:
            self._received(ev.AltersAnswered(batch, reply.results))

    def _not_answered(self, failure: Failure, batch: int, uuid: str) -> None:
        if not self._closed:
            self._note_failure(failure, batch, uuid)
            self._received(ev.OrdersLost(batch, str(failure.value)))

    def _alter_failed(self, failure: Failure, batch: int, uuid: str) -> None:
        if not self._closed:
            self._note_failure(failure, batch, uuid)
            self._received(ev.AltersLost(batch, str(failure.value)))

    def _note_failure(self, failure: Failure, batch: int, uuid: str) -> None:
        error = failure.value
        if not isinstance(error, RpcError):
            log.failure("internal error in the reply to batch {batch} of server {uuid}", failure=failure, batch=batch,
                        uuid=uuid)  # fmt: skip
        elif error.code == STALE_EPOCH:
            self._epoch_rejected(error.message)
