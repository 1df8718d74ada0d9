"""Orders for members of tablets, and writes of their transitions. Pure.

An order is repeated until the store, or a report, shows the outcome. The reply to an order only shows which transition
to read. A write is emitted once, and is in flight until its reply arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from regions.cluster import effects as fx
from regions.cluster.limits import AssignerConfig
from regions.messages import CloseOrder, OpenOrder
from regions.messages.server import MemberEndpoint, TabletClosing, TabletOpening
from regions.records.kinds import KV
from regions.records.members import Member
from regions.records.model import Incarnation, Intent, ServerRecord
from regions.replication.effects import KeeperCauses, delete_transition, write_offline
from regions.replication.tablet import MemberOrder, MemberWork, Tablet
from regions.transitions.states import Cause

#: Orders in one batch.
BATCH_MAX: Final = 200


class MemberOrders:
    """The batches that await an answer. The orders themselves are the members' work."""

    def __init__(
        self,
        config: AssignerConfig,
        servers: dict[str, ServerRecord],
        emit: Callable[[fx.SendOpen | fx.SendClose], None],
        causes: KeeperCauses,
    ) -> None:
        self._config = config
        self._servers = servers
        self._emit = emit
        self._causes = causes
        self._batches: dict[int, list[MemberWork]] = {}
        self._next_batch = 1

    def open(self, work: MemberWork, server: Incarnation | None, next_ms: int) -> None:
        """Queue an OPEN order for the member's server."""
        assert server is not None, f"{work.key} names no server"
        order = work.order
        if order is None or order.server != server or order.closing is not None:
            work.order = MemberOrder(server, next_ms)

    def close(self, tablet: Tablet, number: int, server: Incarnation, wanted: TabletClosing, now_ms: int) -> None:
        """Queue a CLOSE order for a server that reports the replica."""
        work = tablet.member(number)
        order = work.order
        if work.transition is not None or work.is_writing:
            return
        if order is None or order.server != server or order.closing != wanted:
            work.order = MemberOrder(server, now_ms, wanted, self._causes.of_tablet(tablet))

    def dispatch(self, tablets: Iterable[Tablet], now_ms: int) -> None:
        """Send the orders that are due, in batches by server."""
        due: dict[tuple[Incarnation, bool], list[tuple[Tablet, MemberWork]]] = {}
        for tablet in tablets:
            for work in tablet.work.values():
                order = work.order
                if order is not None and not order.batch and order.next_ms <= now_ms and not work.is_writing:
                    due.setdefault((order.server, order.closing is None), []).append((tablet, work))
        for (server, opens), found in due.items():
            record = self._servers.get(server.uuid)
            if record is None or record.incarnation != server:
                for _, work in found:
                    work.order = None
                continue
            for at in range(0, len(found), BATCH_MAX):
                self._send(record, found[at : at + BATCH_MAX], opens=opens)

    def _send(self, server: ServerRecord, found: list[tuple[Tablet, MemberWork]], *, opens: bool) -> None:
        batch = self._next_batch
        self._next_batch += 1
        self._batches[batch] = [work for _, work in found]
        for _, work in found:
            assert work.order is not None, work.key
            work.order.batch = batch
            work.order.asks += 1
        if opens:
            self._emit(fx.SendOpen(batch, server, [self._open_order(*one) for one in found]))
        else:
            self._emit(fx.SendClose(batch, server, [_close_order(*one) for one in found]))

    def _open_order(self, tablet: Tablet, work: MemberWork) -> OpenOrder:
        transition = work.transition
        assert transition is not None, work.key
        table = tablet.table.record
        # A newcomer is always made by a copy.
        must_exist = transition.begun or transition.joins is not None
        endpoints = [self._endpoint(member) for member in tablet.record.members]
        return OpenOrder(
            transition, work.version, tablet.record, tablet.version,
            open_timeout_ms=self._config.open_timeout_ms, schema_version=table.schema_version, kind=table.kind or KV,
            tablet=TabletOpening(tuple(endpoints), must_exist=must_exist),
        )  # fmt: skip

    def _endpoint(self, member: Member) -> MemberEndpoint:
        """Return the address of a member. While its server is away the address is empty; the server announces it
        later."""
        server = self._servers.get(member.uuid)
        host, port = ("", 0) if server is None else (server.host, server.peer_port)
        return MemberEndpoint(member.number, member.uuid, host, port)

    def take(self, batch: int) -> list[MemberWork]:
        """Return the members whose orders were in a batch, and forget the batch, because its reply has arrived."""
        return self._batches.pop(batch, [])

    def send_again(self, works: Iterable[MemberWork], batch: int, now_ms: int) -> None:
        """Have the orders sent again whose outcome is not in the store, after a pause that grows."""
        for work in works:
            order = work.order
            if order is not None and order.batch == batch:
                order.batch = 0
                pause = self._config.resend_ms << min(order.asks - 1, 10)
                order.next_ms = now_ms + min(pause, self._config.resend_max_ms)


def _close_order(tablet: Tablet, work: MemberWork) -> CloseOrder:
    assert work.order is not None, work.key
    assert work.order.closing is not None, work.key
    purpose = work.order.closing.purpose
    record = tablet.record
    return CloseOrder(
        record.region_id, record.table_id, work.number, intent=Intent.CLOSE, reason=purpose.value,
        origin=work.order.origin, tablet=work.order.closing,
    )  # fmt: skip


MemberWrite = fx.WriteOffline | fx.DeleteTransition | fx.ReadTransition


class MemberWrites:
    """Emits the writes and reads of members' transitions, and notes them in the members' work."""

    def __init__(
        self, epoch: int, config: AssignerConfig, emit: Callable[[MemberWrite], None], causes: KeeperCauses
    ) -> None:
        self._epoch = epoch
        self._config = config
        self._emit = emit
        self._causes = causes

    def offline(
        self,
        tablet: Tablet,
        work: MemberWork,
        destination: Incarnation | None,
        cause: Cause,
        now_ms: int,
        *,
        intent: Intent = Intent.OPEN,
        begun: bool = False,
        attempt: int | None = None,
        error: str | None = None,
        parked: bool = False,
    ) -> None:
        """Create or force OFFLINE. The record keeps whether a server has ever begun to make the member."""
        if work.is_writing or work.is_unread:
            return
        wanted = write_offline(
            tablet, work, destination, cause, self._epoch, self._config, now_ms,
            intent=intent, begun=begun, attempt=attempt, error=error, parked=parked,
        )  # fmt: skip
        effect = self._causes.attached(wanted, tablet)
        work.write, work.cause, work.order = effect.record, cause, None
        self._emit(effect)

    def delete(self, tablet: Tablet, work: MemberWork, cause: Cause) -> None:
        """End the transition."""
        effect = self._causes.attached(delete_transition(tablet, work, cause), tablet)
        work.write, work.cause, work.order = None, cause, None
        self._emit(effect)

    def read(self, tablet: Tablet, work: MemberWork) -> None:
        """Request a read of the transition, unless a write of it is in flight."""
        if not work.is_writing:
            work.is_unread = True
            self._emit(fx.ReadTransition(tablet.region_id, work.number))
