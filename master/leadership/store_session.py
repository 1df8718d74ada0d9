"""The active master's store session: suspended, resumed, or possibly expired (`master.active` describes the effects).

While the connection is lost, idempotent writes wait here until the session has been resumed. Until the session may have
expired by this process's clock, the master still answers reads as the active master. After that it answers nothing
(`may_be_over`) until the store has confirmed the session.
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

#: Shortest pause before the next check whether the session may have expired.
LEASE_AGAIN_S: Final = 0.5


class StoreSession:
    """State of the store session during one tenure of the active master.

    `resume()` reads the znodes that may have changed and calls `resumed`. `end(reason)` ends the tenure, which then
    calls `close` and `fail`. `failed` handles any other error.
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
        #: True while nothing is written, ordered or acknowledged.
        self.is_paused = False
        #: True if the session may have expired, so that another master may be active.
        self.may_be_over = False
        self._resuming = False
        self._is_over = False
        self._paused_at = 0.0
        self._lease_over: IDelayedCall | None = None
        self._waiting: list[Deferred[None]] = []

    @property
    def paused_s(self) -> float:
        """Seconds since the master paused."""
        return float(self._reactor.seconds()) - self._paused_at

    def suspend(self) -> None:
        """Pause the active master until the session is resumed."""
        if self.is_paused:
            return
        self.is_paused = True
        self._paused_at = self._reactor.seconds()
        left_s = self._client.left_s
        log.info("lost the connection to the store; the session expires in {left:.1f} s", left=left_s)
        self._lease_over = self._reactor.callLater(left_s, self._session_may_be_over)

    def _session_may_be_over(self) -> None:
        """Stop acting as the active master: another one may be active, until the store confirms the session."""
        self._lease_over = None
        if self._client.state is not SessionState.CONNECTED:
            self.may_be_over = True
            log.info("the store session may have expired; answering no requests until the store has confirmed it")
        elif self._resuming:  # reading the znodes that may have changed takes long
            left_s = max(self._client.left_s, LEASE_AGAIN_S)
            self._lease_over = self._reactor.callLater(left_s, self._session_may_be_over)
        else:
            self._end("a write failed while the store was connected")

    def begin_resume(self) -> None:
        """Begin to resume after missed events: the watches are set again."""
        self.suspend()
        if not self._is_over:
            self._resuming = True
            ensureDeferred(self._resume()).addErrback(self._not_resumed)  # type: ignore[arg-type]

    def _not_resumed(self, failure: Failure) -> None:
        """Wait for the next gap if the connection was lost again; it comes for as long as the session lives."""
        if isinstance(failure.value, RetryableError) and not self._is_over:
            self._resuming = False
            log.info("could not resume, the connection to the store was lost again: {error}", error=failure.value)
        else:
            self._failed(failure)

    def resumed(self) -> None:
        """End the pause and release the waiting writes."""
        self.is_paused = self.may_be_over = self._resuming = False
        self._stop_timer()
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.callback(None)

    async def retry_write(self, write: Callable[[], Any]) -> Any:
        """Perform an idempotent write, repeated after each lost connection. Raise Deposed at the end of the tenure."""
        while True:
            if self._is_over:
                raise Deposed("this master is not active any more")
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
        """Stop at the end of the tenure."""
        self._is_over = True
        self._stop_timer()

    def fail(self, reason: Exception) -> None:
        """Fail all waiting writes with `reason`."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.errback(reason)

    def _stop_timer(self) -> None:
        if self._lease_over is not None and self._lease_over.active():
            self._lease_over.cancel()
        self._lease_over = None
