"""Answers about all regions in transition, for callers that may poll.

A status of 100,000 regions in transition takes the master a tenth of a second, during which it assigns no region. An
operator or a dashboard that polls must not slow the assignment down, so a slow answer is reused for some time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Final, Generic, TypeVar

from twisted.internet.defer import DeferredLock

T = TypeVar("T")

#: An answer is given again for this many times as long as it took: walks take at most a fortieth of the master's time.
REPEATED_FOR: Final = 39
#: A walk that took less is never spared: answers about small clusters are always new.
SPARED_MS: Final = 10


async def in_turns(steps: Generator[None, None, T], pause: Callable[[], Awaitable[object]]) -> T:
    """Run through `steps` with a `pause` after each, and return their result in the turn of the last step.

    Events are handled during a pause: the steps must expect that. An error of `pause` ends the work.
    """
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await pause()


class Paced(Generic[T]):
    """The last answer of a walk, and how long the walk took."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """`now_ms` is the master's clock; in a simulation no walk takes any time."""
        self._now_ms = now_ms
        self._subject: object = None
        self._answer: T | None = None
        self._ended_ms = 0
        self._took_ms = 0
        #: Held during a walk in steps.
        self._walking = DeferredLock()

    def get(self, subject: object, walk: Callable[[], T], repeated_for: int = REPEATED_FOR) -> T:
        """Return the answer about `subject`; call `walk` if the last one is about another, or too old.

        An answer is too old after `repeated_for` times as long as its walk took.
        """
        began_ms = self._now_ms()
        if self._answer is None or not self._is_spared(subject, repeated_for, began_ms):
            self._answer, self._subject = walk(), subject
            self._ended_ms = self._now_ms()
            self._took_ms = self._ended_ms - began_ms
        return self._answer

    def _is_spared(self, subject: object, repeated_for: int, now_ms: int) -> bool:
        until_ms = self._ended_ms + (repeated_for * self._took_ms if self._took_ms >= SPARED_MS else 0)
        # A clock that was set back ends the pause.
        return self._ended_ms <= now_ms < until_ms and subject == self._subject

    async def get_in_steps(
        self,
        subject: object,
        walk: Callable[[], Generator[None, None, T]],
        pause: Callable[[], Awaitable[object]],
        repeated_for: int = REPEATED_FOR,
    ) -> T:
        """Return what `get` returns, by a walk in steps with a `pause` after each. Only the steps count as its time.

        Callers that come during a walk wait for it, and get its answer if it is about the same.
        """
        await self._walking.acquire()
        try:
            if self._answer is not None and self._is_spared(subject, repeated_for, self._now_ms()):
                return self._answer
            began_ms, paused_ms = self._now_ms(), 0

            async def timed_pause() -> None:
                nonlocal paused_ms
                since_ms = self._now_ms()
                await pause()
                paused_ms += self._now_ms() - since_ms

            answer = await in_turns(walk(), timed_pause)
            self._answer, self._subject = answer, subject
            self._ended_ms = self._now_ms()
            self._took_ms = self._ended_ms - began_ms - paused_ms
            return answer
        finally:
            self._walking.release()
