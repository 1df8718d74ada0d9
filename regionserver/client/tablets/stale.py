"""Stale reads: any member that can prove the age of its rows answers, so that a read needs no leader.

The members are asked one after the other, each as soon as the previous one has refused or is silent. For a while a
silent member is asked last (`TabletHints.suspect`). The caller asks the leader if no member has answered.
"""

from __future__ import annotations

import time
from typing import Final, Generic

from regions.records.model import RegionRecord
from regionserver.client.errors import Attempt
from regionserver.client.tablets.answers import BROKEN, NO_ADDRESS, NOT_LEADER
from regionserver.client.tablets.context import TabletContext
from regionserver.client.tablets.exchange import Received
from regionserver.client.tablets.region_call import REPLIES, CallPurpose, R
from regionserver.tablets.messages import STALE_MS_MAX, LeaderElsewhere

#: Time without an answer after which the next member is asked, too.
NEXT_S: Final = 0.1
#: Time limit for all members. A member that must ask the leader first refuses after 0.5 s.
ALL_S: Final = 1.0
#: Part of the call's time that they may take at most: the rest is for the leader.
ALL_PART: Final = 0.5


class Staleness:
    """Largest permitted and actual age of the data of reads. One object may serve many reads of one thread."""

    def __init__(self, bound_ms: int) -> None:
        """The reads have every write that was acknowledged `bound_ms` before they began."""
        if not 1 <= bound_ms <= STALE_MS_MAX:
            raise ValueError(f"data may be 1 to {STALE_MS_MAX} ms old, not {bound_ms} ms")
        self.bound_ms: Final = bound_ms
        #: The largest age of an answer: the answer has every write that was acknowledged that long before its arrival
        #: here.
        self.age_ms = 0

    def answered(self, asked_s: float, age_ms: int = 0) -> None:
        """Record that an answer has just arrived, for a call that began at `asked_s` by the monotonic clock.

        `age_ms` is the age of the data when the answer was sent. The answer may have been under way since the call
        began.
        """
        self.age_ms = max(self.age_ms, age_ms + int(1000 * (time.monotonic() - asked_s)) + 1)


class StaleCall(Generic[R]):
    """One stale read of one tablet."""

    def __init__(self, context: TabletContext, region: RegionRecord, purpose: CallPurpose[R]) -> None:
        """The request of `purpose` names the bound."""
        self._context = context
        self._region = region
        self._tablet = region.region_id
        self._purpose: CallPurpose[R] = purpose
        now_s = context.clock()
        #: Servers that are still to be asked, the last one first. Silent servers come last.
        order = sorted(
            (context.hints.is_suspect(one.uuid, now_s), context.chance(), one.uuid) for one in region.members
        )
        self._left = [server for *_, server in reversed(order)]

    def run(self) -> R | None:
        """Return the first answer; None if every member has refused."""
        clock, exchange = self._context.clock, self._context.exchange()
        next_s = clock()
        until_s = next_s + min(ALL_S, ALL_PART * (self._purpose.deadline_s - next_s))
        request = self._purpose.ask(self._region, None)
        #: Servers that have not answered yet, and when each was asked.
        out: dict[str, float] = {}
        try:
            while (self._left or out) and (now_s := clock()) < until_s:
                if self._left and (not out or now_s >= next_s):
                    server, next_s = self._left.pop(), now_s + NEXT_S
                    address = self._context.hints.address(server)
                    if address is None:
                        self._observe(NO_ADDRESS)
                        continue
                    out[server] = now_s
                    exchange.start(server, address, request, REPLIES[self._purpose.expect])
                wake_s = min(next_s, until_s) if self._left else until_s
                for arrival in exchange.wait(max(0.0, wake_s - clock())):
                    out.pop(arrival.key, None)
                    reply = self._arrived(arrival)
                    if reply is not None:
                        return reply
        finally:
            exchange.close()
            for server, asked_s in out.items():
                if (now_s := clock()) >= asked_s + NEXT_S:
                    self._context.hints.suspect(server, now_s)
        return None

    def _arrived(self, arrival: Received) -> R | None:
        hints, now_s = self._context.hints, self._context.clock()
        if arrival.error is not None:
            self._observe(arrival.error.code)
            if arrival.error.code in BROKEN:
                hints.suspect(arrival.key, now_s)
            return None
        hints.trust(arrival.key)
        hints.learn_time(self._tablet, arrival.reply.time_ms, now_s)
        if isinstance(arrival.reply, LeaderElsewhere):
            hints.learn_leaders([arrival.reply.view])
            self._observe(NOT_LEADER)
            return None
        self._observe("")
        reply: R = arrival.reply
        return reply

    def _observe(self, code: str) -> None:
        self._context.on_attempt(Attempt(self._tablet, code))
