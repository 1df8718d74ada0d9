"""Requests that wait for the same thing are done together.

A lane does one piece of work at a time; what arrives meanwhile gathers and is the next piece. So a region that is
written by many clients makes one durable commit after the other, each with all that has come since the last: nobody
waits for a timer, and the disk is asked for no more syncs than it can give.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

import msgspec
from twisted.internet.defer import Deferred

from coord.rpc.wire import Code, RpcError

T = TypeVar("T")

#: Requests and bytes done together at most.
TOGETHER_MAX: Final = 512
TOGETHER_BYTES_MAX: Final = 8 * 1024 * 1024
#: Requests and bytes that may wait in one lane; beyond that a client is told to come back later.
WAITING_MAX: Final = 4096
WAITING_BYTES_MAX: Final = 32 * 1024 * 1024

Answer = msgspec.Struct | RpcError


class Lane(Generic[T]):
    """One lane of one region; the reactor's thread, but `work` runs on a worker."""

    def __init__(
        self,
        submit: Callable[[Callable[[], Sequence[Answer]], Callable[[Sequence[Answer] | Exception], None]], None],
        work: Callable[[list[T]], Sequence[Answer]],
    ) -> None:
        """`submit(job, done)` runs `job` on a worker; `work` answers each of its requests, in their order."""
        self._submit = submit
        self._work = work
        self._waiting: deque[tuple[T, int, Deferred[msgspec.Struct]]] = deque()
        self._waiting_bytes = 0
        self._is_busy = False

    def add(self, request: T, size: int) -> Deferred[msgspec.Struct]:
        """Do it when its turn comes; fires with the answer. Raises RpcError(BUSY) beyond the limits."""
        if len(self._waiting) >= WAITING_MAX or (self._waiting and self._waiting_bytes + size > WAITING_BYTES_MAX):
            raise RpcError(Code.BUSY, f"{len(self._waiting)} requests wait for this region already")
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
        together = 0
        while self._waiting and len(requests) < TOGETHER_MAX:
            request, size, answer = self._waiting[0]
            if requests and together + size > TOGETHER_BYTES_MAX:
                break
            self._waiting.popleft()
            together += size
            requests.append(request)
            answers.append(answer)
        self._waiting_bytes -= together

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
