"""Replicas whose owner is in doubt, between two comparisons of all owners (N5). Pure.

The comparison of all owners is too expensive to be made every second. But if a region is not served any more, there is
an event that shows this: its server reports that the replica is gone, a full report lacks the replica, or a transition
ended. Each such event puts the replica here. Twice a second the auditor compares only the doubtful ones with the store.
So an alarm is raised within three seconds, while the comparison of all owners finds faults without an event.

A contradiction counts if two looks in a row find it PATIENCE_MS after the event, and if the server's reports are
*settled*: the server sends heartbeats, the last heartbeat with changes is QUIET_MS old, and the last heartbeat of any
kind came at least HEARD_MS after the event. During a bulk assignment reports are late, and a frozen server sends none;
such a doubt waits, and after DOUBT_MAX_MS it is left to the comparison of all owners.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from typing import Final, NamedTuple

from mypy_extensions import mypyc_attr

from regions.diagnose.invariants import Rule, contradictions
from regions.messages.heartbeat import OPEN, Report
from regions.records.model import Incarnation

#: A doubt must have lasted for this long before it becomes an alarm: two heartbeats.
PATIENCE_MS: Final = 1_500
#: A server's reports are settled this long after the last one with changes.
QUIET_MS: Final = 700
#: A heartbeat that came sooner after the event may have been sent before it.
HEARD_MS: Final = 500
#: A doubt about a server whose reports do not settle ends after this time.
DOUBT_MAX_MS: Final = 10_000
#: Doubts that are looked at in one turn, and comparisons with servers: a look takes a microsecond per server.
LOOKS_MAX: Final = 1_000
COMPARISONS_MAX: Final = 10_000

Finding = tuple[Rule, str]


class SettledList(NamedTuple):
    """The replicas that a server serves by its settled reports, and when its last heartbeat came."""

    keys: Collection[str]
    heard_ms: int


@mypyc_attr(acyclic=True)
class _Doubt:
    """A replica in doubt: since when, and the result of the last look."""

    __slots__ = ("found", "home", "since_ms")

    def __init__(self, since_ms: int) -> None:
        self.since_ms = since_ms
        #: The server that the store named at the last look.
        self.home: Incarnation | None = None
        self.found: Finding | None = None


class OwnerDoubts:
    """The replicas in doubt, oldest first."""

    def __init__(self) -> None:
        self._doubts: dict[str, _Doubt] = {}
        #: Comparisons of a replica with the lists of the servers.
        self.compared = 0

    def __len__(self) -> int:
        return len(self._doubts)

    def put(self, keys: Iterable[str], now_ms: int) -> None:
        """Add replicas after an event that concerns their owners.

        A replica in doubt stays so since the last event before the first look, or since a look that has found it on
        another server.
        """
        doubts = self._doubts
        for key in keys:
            known = doubts.get(key)
            if known is None:
                doubts[key] = _Doubt(now_ms)
            elif known.home is None:
                known.since_ms = now_ms

    def look(
        self,
        home_of: Callable[[str], Incarnation | None],
        settled: Mapping[Incarnation, SettledList] | None,
        now_ms: int,
    ) -> list[tuple[str, Finding]]:
        """Return the doubtful replicas that are certainly not on the server that the store names, each once.

        `home_of` returns the server that the store names for a replica at rest, None for any other replica. `settled`
        has the list of each server whose reports are settled; None if this process receives no reports; then it has no
        doubts.
        """
        if settled is None:
            self._doubts.clear()
            return []
        if not settled:
            self._give_up(now_ms)
            return []
        alarms: list[tuple[str, Finding]] = []
        most = min(LOOKS_MAX, COMPARISONS_MAX // max(1, len(settled)))
        for key in list(islice(self._doubts, most)):
            doubt = self._doubts.pop(key)
            home = home_of(key)
            if home is None:
                continue  # in transition or gone: the end of the transition is the next event
            if doubt.home not in (None, home):
                # The replica has moved meanwhile, and its new server may report late.
                doubt.since_ms, doubt.found = now_ms, None
            doubt.home = home
            if home not in settled or settled[home].heard_ms < doubt.since_ms + HEARD_MS:
                if now_ms - doubt.since_ms < DOUBT_MAX_MS:
                    self._doubts[key] = doubt
                continue
            self.compared += 1
            owners = [server for server, one in settled.items() if key in one.keys]
            if owners == [home]:
                continue  # served where the store says: most replicas
            held = {server: [key] if server in owners else [] for server in settled}
            found = dict(contradictions({key: home}, held))
            before, doubt.found = doubt.found, found.get(key)
            if doubt.found is None:
                continue
            if before == doubt.found and now_ms - doubt.since_ms >= PATIENCE_MS:
                alarms.append((key, doubt.found))
            else:
                self._doubts[key] = doubt
        return alarms

    def _give_up(self, now_ms: int) -> None:
        """Drop the doubts that have waited for too long, of those in front: no server's reports are settled."""
        for key in list(islice(self._doubts, LOOKS_MAX)):
            if now_ms - self._doubts[key].since_ms < DOUBT_MAX_MS:
                return
            del self._doubts[key]


def doubtful(report: Report, stored: Iterable[str], held: Collection[str]) -> list[str]:
    """Return the replicas that a server's report puts in doubt.

    `stored`: the replicas that the store places on the server. After a full report they are compared with `held`, all
    replicas that the server serves.
    """
    found = [*report.gone, *(one.key for one in report.replicas if one.state != OPEN)]
    return found + [key for key in stored if key not in held] if report.ends else found
