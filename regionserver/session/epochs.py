"""Which epoch a region server knows, and how it learns of a higher one: from the store alone.

An order or a heartbeat's answer only claims an epoch. Whoever can open a connection could claim the highest one, and
the server would refuse every real master from then on. So an order of a higher epoch waits until the server has read
`/epoch`, whose version is the fencing epoch:

    order of epoch e > known  ->  sync and read /epoch, one read at a time however many orders wait
    store says >= e           ->  known = what the store says; the orders up to it go on, in the order of their arrival
    store says < e            ->  those that came before the read are refused with UNKNOWN_EPOCH; nothing has changed

Until the store has said so, the former epoch stands and its orders are carried out. An order that goes on is checked
against the known epoch once more, because the store may have said a higher one than the order's.

A real master has written its epoch before it sends its first order, and the read comes behind a sync, so the first
read confirms it.
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

#: The epoch is the version of a znode, a signed 32-bit number: nobody has a higher one.
EPOCH_MAX: Final = (1 << 31) - 1
#: Orders that wait for a read. A master sends a server a handful at a time.
WAITING_MAX: Final = 1000
#: Pause after a read that has confirmed no claim, so that forged orders cost the store 20 reads a second at most.
PAUSE_S: Final = 0.05


class _Claim(NamedTuple):
    """An order that waits for the store, or (`go_on` is None) an epoch seen in a heartbeat's answer."""

    epoch: int
    go_on: Callable[[], Any] | None
    answer: Deferred[Any]


class Epochs:
    """The epoch that this server knows, and the claims of higher ones."""

    def __init__(self, reactor: Any, read: Callable[[], Awaitable[int]], confirmed: Callable[[int], None]) -> None:
        """`read` returns the epoch in the store as of its call; raises OperationError.

        `confirmed` is called with each higher epoch that the store has confirmed, before the orders go on.
        """
        self._reactor = reactor
        self._read = read
        self._confirmed = confirmed
        #: Claims that came since the read under way began, and whether there is one.
        self._waiting: list[_Claim] = []
        self._is_reading = False

    def claim(self, epoch: int, go_on: Callable[[], Any]) -> Deferred[Any]:
        """Return what `go_on` returns once the store has confirmed `epoch`.

        Fails with RpcError: UNKNOWN_EPOCH when the store says otherwise, BUSY when it cannot be read now.
        """
        if epoch > EPOCH_MAX:
            raise RpcError(UNKNOWN_EPOCH, f"epoch {epoch} cannot be: the highest is {EPOCH_MAX}")
        if len(self._waiting) >= WAITING_MAX:
            raise RpcError(BUSY, f"{WAITING_MAX} orders wait until the store has confirmed their epoch")
        claim = _Claim(epoch, go_on, Deferred())
        self._waiting.append(claim)
        self._begin()
        return claim.answer

    def hear(self, epoch: int) -> None:
        """Look into the store because a master's answer claims `epoch`."""
        if epoch <= EPOCH_MAX and len(self._waiting) < WAITING_MAX:
            self._waiting.append(_Claim(epoch, None, Deferred()))
            self._begin()

    def _begin(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            ensureDeferred(self._settle()).addErrback(lambda failure: log.failure("claims of epochs", failure=failure))

    async def _settle(self) -> None:
        """Read until no claim waits."""
        try:
            while self._waiting:
                asked, self._waiting = self._waiting, []
                try:
                    epoch = await self._read()
                except OperationError as error:
                    _refuse(asked, BUSY, f"the store cannot be asked which epoch it is: {error}")
                    await deferLater(self._reactor, PAUSE_S)
                    continue
                # Those that came during the read wait for the next one, unless this one confirms them as well.
                came, self._waiting = self._waiting, []
                is_confirmed = self._go_on(epoch, [*asked, *came])
                self._waiting = [claim for claim in came if claim.epoch > epoch] + self._waiting
                wrong = [claim for claim in asked if claim.epoch > epoch]
                _refuse(wrong, UNKNOWN_EPOCH, f"the store says that epoch {epoch} stands")
                if not is_confirmed:
                    await deferLater(self._reactor, PAUSE_S)
        finally:
            self._is_reading = False

    def _go_on(self, epoch: int, claims: list[_Claim]) -> bool:
        """Let the claims up to `epoch` go on, in order. Return whether there were any."""
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
            claim.answer.errback(RpcError(code, f"this order claims epoch {claim.epoch}: {why}"))
        else:
            log.info("a master claims epoch {epoch}: {why}", epoch=claim.epoch, why=why)
