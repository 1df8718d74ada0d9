"""Queues of requests that are executed in batches.

A queue executes one batch at a time. Requests that arrive meanwhile form the next batch. With many writing clients, a
region makes one durable commit after the other, each with all requests that arrived during the previous one. No timer
delays a request, and the disk never gets more syncs than it can perform.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

import msgspec
from twisted.internet.defer import Deferred

from coord.rpc.wire import Code, RpcError

T = TypeVar("T")

#: Limits of one batch.
BATCH_REQUESTS_MAX: Final = 512
BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
#: Limits of the waiting requests of one queue; beyond them requests are rejected with BUSY.
WAITING_MAX: Final = 4096
WAITING_BYTES_MAX: Final = 32 * 1024 * 1024

Answer = msgspec.Struct | RpcError


class RequestQueue(Generic[T]):
    """One queue of one region. Used on the reactor's thread; `work` runs on a worker."""

    def __init__(
        self,
        submit: Callable[[Callable[[], Sequence[Answer]], Callable[[Sequence[Answer] | Exception], None]], None],
        work: Callable[[list[T]], Sequence[Answer]],
    ) -> None:
        """Call `submit(job, done)` to run a batch on a worker; `work` returns a reply for each request, in order."""
        self._submit = submit
        self._work = work
        self._waiting: deque[tuple[T, int, Deferred[msgspec.Struct]]] = deque()
        self._waiting_bytes = 0
        self._is_busy = False

    def add(self, request: T, size: int) -> Deferred[msgspec.Struct]:
        """Queue a request; return a Deferred of the reply. Raise RpcError(BUSY) beyond the limits."""
        if len(self._waiting) >= WAITING_MAX or (self._waiting and self._waiting_bytes + size > WAITING_BYTES_MAX):
            raise RpcError(Code.BUSY, f"{len(self._waiting)} requests already wait for this region")
        answer: Deferred[msgspec.Struct] = Deferred()
        self._waiting.append((request, size, answer))
        self._waiting_bytes += size
        self._next()
        return answer

    def _next(self) -> None:
        if self._is_busy or not self._waiting:
            return
        self._is_busy = True
        requests: list[T] = []
        answers: list[Deferred[msgspec.Struct]] = []
        batch_bytes = 0
        while self._waiting and len(requests) < BATCH_REQUESTS_MAX:
            request, size, answer = self._waiting[0]
            if requests and batch_bytes + size > BATCH_BYTES_MAX:
                break
            self._waiting.popleft()
            batch_bytes += size
            requests.append(request)
            answers.append(answer)
        self._waiting_bytes -= batch_bytes

        def done(results: Sequence[Answer] | Exception) -> None:
            self._is_busy = False
            self._next()
            if isinstance(results, Exception):
                for answer in answers:
                    answer.errback(results)
                return
            for answer, result in zip(answers, results, strict=True):
                if isinstance(result, RpcError):
                    answer.errback(result)
                else:
                    answer.callback(result)

        self._submit(lambda: self._work(requests), done)
