"""The wait of a new active master for the first heartbeat of a server that holds shared regions.

After a crash of the whole cluster the store has the registrations of dead servers until their sessions end. A master
that becomes active earlier would regard the dead servers as alive, and the startup as a failover. As the sessions end
one by one, it would open all regions on the few servers that have registered again so far.

A live server sends a heartbeat to every registered master within a second. So a master without a heartbeat of any
holder waits for the first one, or for the end of the holders' registrations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from regions.liveness.roster import SILENT_MS
from regions.records.model import Incarnation, ServerRecord
from regions.replication.recovery import NamedStarts

log = Logger()

#: Pause between two looks.
LOOK_S: Final = 0.05


def holders_of(named: NamedStarts, servers: Iterable[ServerRecord]) -> set[Incarnation]:
    """Return the registered server starts that shared regions or their transitions name."""
    starts: set[Incarnation | None] = {*named.holders}
    for one in named.transitions():
        starts.update((one.source, one.destination))
    return {one.incarnation for one in servers if one.incarnation in starts}


def wait_ms(session_timeout_ms: int) -> int:
    """Return how long a master waits. By then the sessions of dead servers have ended, if their timeout equals the
    master's."""
    return max(SILENT_MS, 2 * session_timeout_ms)


async def first_heartbeat(
    reactor: Any,
    holders: set[Incarnation],
    has_heard: Callable[[Incarnation], bool],
    alive: Callable[[], Iterable[Incarnation]],
    patience_ms: int,
) -> bool:
    """Wait until a holder has sent a heartbeat, none is registered any more, or the time is over.

    Return True if a holder's registration has ended meanwhile: the store must be read again.
    """
    left = holders.intersection(alive())
    if not left or any(map(has_heard, left)):
        return False
    log.info(
        "no heartbeat has come from the {count} registered servers that have regions: waiting for one, at most {s:g} s",
        count=len(left),
        s=patience_ms / 1000,
    )
    for _ in range(max(1, round(patience_ms / 1000 / LOOK_S))):
        pause: Deferred[None] = Deferred()
        reactor.callLater(LOOK_S, pause.callback, None)
        await pause
        left = holders.intersection(alive())
        if not left or any(map(has_heard, left)):
            break
    return left != holders
