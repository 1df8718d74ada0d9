"""Sending orders to region servers: one pipelined connection each, answers turned into events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.rpc import RpcClient, RpcError
from regions import effects as fx
from regions.messages import STALE_EPOCH, CloseRegions, OpenRegions, OrderResults

log = Logger()

#: How long a server may take to answer a batch with what it knows by then, and how long we wait beyond that.
ANSWER_WITHIN_MS: Final = 5_000
GRACE_S: Final = 5.0


class Dispatcher:
    """Carries out SendOpen and SendClose for one reign."""

    def __init__(
        self, reactor: Any, epoch: int, heard: Callable[[fx.Event], None], stale: Callable[[str], None]
    ) -> None:
        """`heard` gets OrdersAnswered or OrdersLost for each batch; `stale` is called when a server knows a higher
        epoch than ours."""
        self._reactor = reactor
        self._epoch = epoch
        self._heard = heard
        self._stale = stale
        self._clients: dict[tuple[str, int], RpcClient] = {}
        self._closed = False

    def send(self, effect: fx.SendOpen | fx.SendClose) -> None:
        """Send one batch."""
        server = effect.server
        address = (server.host, server.port)
        client = self._clients.get(address)
        if client is None:
            client = self._clients[address] = RpcClient(self._reactor, *address)
        kind = OpenRegions if isinstance(effect, fx.SendOpen) else CloseRegions
        message = kind(self._epoch, server.uuid, server.start_code, effect.orders, ANSWER_WITHIN_MS)  # type: ignore[arg-type]
        sent = client.call(message, ANSWER_WITHIN_MS / 1000 + GRACE_S, expect=OrderResults)
        sent.addCallbacks(self._answered, self._not_answered, (effect.batch,), {}, (effect.batch, server.uuid))

    def close(self) -> None:
        """Close all connections; answers still to come are dropped."""
        self._closed = True
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def _answered(self, reply: OrderResults, batch: int) -> None:
        if not self._closed:
            self._heard(fx.OrdersAnswered(batch, reply.results))

    def _not_answered(self, failure: Failure, batch: int, uuid: str) -> None:
        if self._closed:
            return
        error = failure.value
        if not isinstance(error, RpcError):
            log.failure("batch {batch} to {uuid}", failure=failure, batch=batch, uuid=uuid)
        elif error.code == STALE_EPOCH:
            self._stale(error.message)
        self._heard(fx.OrdersLost(batch, str(error)))
