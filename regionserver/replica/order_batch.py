"""The orders of one command, and when the command is answered.

The reply has a result for each order, in their order. An order that has not ended within the command's time is STARTED:
the master sends it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from msgspec.structs import replace
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from regions.messages import OrderOutcome, OrderResult, OrderResults
from regions.records.model import WorkOrigin

log = Logger(__name__)

#: Upper limit of the time until a command is answered, whatever the command requests.
ANSWER_WITHIN_MS_MAX: Final = 60_000


class AnswerTimers(Protocol):
    """The part of a reactor that OrderBatch uses."""

    def callLater(self, delay: float, f: Callable[..., object], *args: object) -> IDelayedCall:
        """Call `f` after `delay` seconds."""
        ...


class OrderBatch:
    """The orders of one command. The reply is sent when the last order is finished, or when its time is up."""

    def __init__(self, keys: list[tuple[str, int]], causes: list[str], results: list[OrderResult | None]) -> None:
        self.keys = keys
        #: Cause id of each order.
        self.causes = causes
        self.results = results
        self.missing = sum(result is None for result in results)
        self.answer: Deferred[OrderResults] = Deferred()
        #: The timer of `reply`, or None. Compiled code cannot call a method that only an interface declares.
        self.timer: Any = None

    def begin(self, reactor: AnswerTimers, answer_within_ms: int) -> None:
        """Reply now if every order has ended or the command does not wait; else by the command's time."""
        if self.missing == 0 or answer_within_ms <= 0:
            self.reply()
        else:
            self.timer = reactor.callLater(min(answer_within_ms, ANSWER_WITHIN_MS_MAX) / 1000, self.reply)

    def finished(self, at: int, result: OrderResult) -> None:
        """Set the result of one order."""
        assert result.outcome is not OrderOutcome.STARTED, f"{result} is not a final result"
        if self.results[at] is None:
            self.results[at] = result
            self.missing -= 1
            if self.missing == 0:
                self.reply()

    def reply(self) -> None:
        """Reply with the results so far; unfinished orders are STARTED."""
        if self.timer is not None and self.timer.active():
            self.timer.cancel()
        if not self.answer.called:
            found = [
                one or OrderResult(*key, OrderOutcome.STARTED) for key, one in zip(self.keys, self.results, strict=True)
            ]
            pairs = zip(found, self.causes, strict=True)
            self.answer.callback(
                OrderResults([replace(one, cause_id=cause_id) if cause_id else one for one, cause_id in pairs])
            )


def causes_of(what: str, origins: Iterable[WorkOrigin | None]) -> list[str]:
    """Return the cause id of each order; log the number of orders of each cause."""
    causes = ["" if one is None else one.cause_id for one in origins]
    for cause_id, number in Counter(causes).items():
        log.info("ordered to {what} {number} regions, cause {cause}", what=what, number=number, cause=cause_id or "-")
    return causes
