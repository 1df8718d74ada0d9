"""The epoch that a region server accepts, and the verification of a higher one with the store.

An order or a heartbeat's reply only claims an epoch. Anyone who can open a connection could claim the highest epoch,
and the server would then reject every real master. So an order with a higher epoch waits until the server has read
`/epoch`, whose version is the fencing epoch:

    order of epoch e > known  ->  sync and read /epoch, one read at a time for all waiting orders
    store has >= e            ->  known = the store's epoch; the orders up to it proceed in the order of their arrival
    store has < e             ->  orders that arrived before the read are rejected with UNKNOWN_EPOCH; nothing changes

Until the store has confirmed the higher epoch, the former epoch is current and its orders are executed. An order that
proceeds is checked against the known epoch once more, because the store may have a higher epoch than the order's.

A real master writes its epoch before it sends its first order, and the read follows a sync, so the first read confirms
the epoch.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from twisted.internet.defer import Deferred, ensureDeferred, maybeDeferred
from twisted.internet.task import deferLater
from twisted.logger import Logger

from coord.errors import OperationError
from coord.rpc.server import RpcError
from regions.messages import BUSY, UNKNOWN_EPOCH

log = Logger()

#: The epoch is the version of a znode, a signed 32-bit number.
EPOCH_MAX: Final = (1 << 31) - 1
#: Orders that may wait for a read. A master sends a server a handful at a time.
WAITING_MAX: Final = 1000
#: Pause after a read that confirmed no claim: forged orders cost the store at most 20 reads a second.
PAUSE_S: Final = 0.05


class _Claim(NamedTuple):
    """An order that waits for the store, or (`go_on` is None) an epoch from a heartbeat's reply."""

    epoch: int
    go_on: Callable[[], Any] | None
    answer: Deferred[Any]


class Epochs:
    """The epoch that this server accepts, and claims of higher epochs."""

    def __init__(self, reactor: Any, read: Callable[[], Awaitable[int]], confirmed: Callable[[int], None]) -> None:
        """`read` returns the store's epoch as of its call, or raises OperationError.

        `confirmed` is called with each higher epoch that the store has confirmed, before the waiting orders proceed.
        """
        self._reactor = reactor
        self._read = read
        self._confirmed = confirmed
        #: Claims that arrived since the read in progress began, and whether a read is in progress.
        self._waiting: list[_Claim] = []
        self._is_reading = False

    def claim(self, epoch: int, go_on: Callable[[], Any]) -> Deferred[Any]:
        """Return the result of `go_on`, which is called once the store has confirmed `epoch`.

        Fails with RpcError: UNKNOWN_EPOCH if the store has a lower epoch, BUSY if the store cannot be read.
        """
        if epoch > EPOCH_MAX:
            raise RpcError(UNKNOWN_EPOCH, f"epoch {epoch} is impossible: the highest is {EPOCH_MAX}")
        if len(self._waiting) >= WAITING_MAX:
            raise RpcError(BUSY, f"{WAITING_MAX} orders already wait for the verification of their epoch")
        claim = _Claim(epoch, go_on, Deferred())
        self._waiting.append(claim)
        self._begin()
        return claim.answer

    def verify(self, epoch: int) -> None:
        """Read the store because a master's reply claims `epoch`."""
        if epoch <= EPOCH_MAX and len(self._waiting) < WAITING_MAX:
            self._waiting.append(_Claim(epoch, None, Deferred()))
            self._begin()

    def _begin(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            ensureDeferred(self._verify()).addErrback(
                lambda failure: log.failure("internal error while verifying epochs", failure=failure)
            )

    async def _verify(self) -> None:
        """Read until no claim waits."""
        try:
            while self._waiting:
                asked, self._waiting = self._waiting, []
                try:
                    epoch = await self._read()
                except OperationError as error:
                    _refuse(asked, BUSY, f"the store's epoch cannot be read: {error}")
                    await deferLater(self._reactor, PAUSE_S)
                    continue
                # Claims that arrived during the read wait for the next read, unless this read confirms them as well.
                came, self._waiting = self._waiting, []
                is_confirmed = self._go_on(epoch, [*asked, *came])
                self._waiting = [claim for claim in came if claim.epoch > epoch] + self._waiting
                wrong = [claim for claim in asked if claim.epoch > epoch]
                _refuse(wrong, UNKNOWN_EPOCH, f"the store's epoch is {epoch}")
                if not is_confirmed:
                    await deferLater(self._reactor, PAUSE_S)
        finally:
            self._is_reading = False

    def _go_on(self, epoch: int, claims: list[_Claim]) -> bool:
        """Let the claims up to `epoch` proceed, in order; return True if there were any."""
        found = [claim for claim in claims if claim.epoch <= epoch]
        if found:
            self._confirmed(epoch)
        for claim in found:
            if claim.go_on is not None:
                maybeDeferred(claim.go_on).chainDeferred(claim.answer)
        return bool(found)


def _refuse(claims: list[_Claim], code: str, why: str) -> None:
    for claim in claims:
        if claim.go_on is not None:
            claim.answer.errback(RpcError(code, f"cannot accept this order of epoch {claim.epoch}: {why}"))
        else:
            log.info("ignoring epoch {epoch} of a master's reply: {why}", epoch=claim.epoch, why=why)
