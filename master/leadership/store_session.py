"""The store out of sight: a reign's patience (see `master.active` for what it means).

What may be repeated waits here until the store is in sight again. For as long as the session lives by its own clock the
master still answers as the active one; after that it is dark, until the store has said that the session lives.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.client.session import SessionState, ZkClient
from coord.errors import RetryableError
from master.leadership.fence import Deposed

log = Logger()

#: So long at least before it is asked again whether the session may be over.
LEASE_AGAIN_S: Final = 0.5


class StoreSession:
    """Whether a reign sees the store.

    `resume()` finds out what was missed and calls `resumed`; `end(reason)` ends the reign, which then calls `close`
    and `fail`; `failed` judges whatever else went wrong.
    """

    def __init__(
        self,
        reactor: Any,
        client: ZkClient,
        resume: Callable[[], Awaitable[None]],
        end: Callable[[str], None],
        failed: Callable[[Failure], None],
    ) -> None:
        self._reactor = reactor
        self._client = client
        self._resume = resume
        self._end = end
        self._failed = failed
        #: Nothing is written, ordered or acknowledged.
        self.is_paused = False
        #: And for so long that another master may be active.
        self.may_be_over = False
        self._resuming = False
        self._is_over = False
        self._lease_over: IDelayedCall | None = None
        self._waiting: list[Deferred[None]] = []

    def suspend(self) -> None:
        """Do nothing any more until the store is in sight; answer nothing either once our session may be over."""
        if self.is_paused:
            return
        self.is_paused = True
        left_s = self._client.left_s
        log.info("out of sight of the store; our session lives for {left:.1f} s more", left=left_s)
        self._lease_over = self._reactor.callLater(left_s, self._session_may_be_over)

    def _session_may_be_over(self) -> None:
        """From here on another master may be active: we are not, unless the store says that the session lives."""
        self._lease_over = None
        if self._client.state is not SessionState.CONNECTED:
            self.may_be_over = True
            log.info("our session may be over: not active before the store has said that it is not")
        elif self._resuming:  # it takes long to read what may have been missed
            left_s = max(self._client.left_s, LEASE_AGAIN_S)
            self._lease_over = self._reactor.callLater(left_s, self._session_may_be_over)
        else:
            self._end("the store refused a write, and was in sight")

    def begin_resume(self) -> None:
        """The watches are in force again, and events may have been missed."""
        self.suspend()
        if not self._is_over:
            self._resuming = True
            ensureDeferred(self._resume()).addErrback(self._not_resumed)  # type: ignore[arg-type]

    def _not_resumed(self, failure: Failure) -> None:
        """The connection broke again: the next gap tries again, as long as the session lives."""
        if isinstance(failure.value, RetryableError) and not self._is_over:
            self._resuming = False
            log.info("still out of sight of the store: {error}", error=failure.value)
        else:
            self._failed(failure)

    def resumed(self) -> None:
        """The reign goes on, and whoever waited for that with it."""
        self.is_paused = self.may_be_over = self._resuming = False
        self._stop_timer()
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.callback(None)

    async def retry_write(self, write: Callable[[], Any]) -> Any:
        """Do a write that may be repeated, again after each lost connection. Raises Deposed when the reign ends."""
        while True:
            if self._is_over:
                raise Deposed("the reign is over")
            if self.is_paused:
                resumed: Deferred[None] = Deferred()
                self._waiting.append(resumed)
                await resumed
            try:
                return await write()
            except RetryableError as error:
                if not self._is_over:
                    self._failed(Failure(error))  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """The reign is over."""
        self._is_over = True
        self._stop_timer()

    def fail(self, reason: Exception) -> None:
        """Who waits, waits in vain."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.errback(reason)

    def _stop_timer(self) -> None:
        if self._lease_over is not None and self._lease_over.active():
            self._lease_over.cancel()
        self._lease_over = None
