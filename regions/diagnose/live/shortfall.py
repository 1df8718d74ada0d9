"""Servers that serve fewer regions than the store places on them, found by a standby master (N5). Pure.

A standby gets no reports of regions (X14). But every heartbeat has the number of regions that the server serves. If it
is below the number in the standby's mirror, and both numbers have not changed for PATIENCE_MS, the standby asks the
server for the list, and names the regions that are missing. So standbys, too, find a region that is not served within
three seconds, even without an active master. A heartbeat costs a comparison of two numbers.

A dead server serves none of its regions. The active master begins to move them as soon as the store has noticed the
death. If the number of its regions in the mirror has not changed for DEAD_PATIENCE_MS, no master acts: the active
master may be frozen while its session lives on. This is checked only while TAKEOVER_MS have passed since the last
change of the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from regions.diagnose.invariants import Rule
from regions.messages import HostedReplica
from regions.records.model import Incarnation
from regions.records.replica_key import replica_key

#: The numbers must have been the same for this long.
PATIENCE_MS: Final = 900
#: The number of regions that are still placed on a dead server must have been the same for this long.
DEAD_PATIENCE_MS: Final = 2_000
#: A new active master reads the store and waits for heartbeats first, at most for this long.
TAKEOVER_MS: Final = 10_000
#: A server whose list explained the numbers is not asked again before this time, unless the numbers change.
AGAIN_MS: Final = 10_000


class _Shortage(NamedTuple):
    """The numbers of one server, the time at which they were first found, and the time of the latest request."""

    stored: int
    served: int
    since_ms: int
    asked_ms: int | None = None


class Shortfalls:
    """The servers that fall short, since when."""

    def __init__(self) -> None:
        self._seen: dict[Incarnation, _Shortage] = {}

    def look(
        self,
        stored: Mapping[Incarnation, int],
        served: Mapping[Incarnation, int],
        dead: Mapping[Incarnation, int],
        now_ms: int,
    ) -> list[Incarnation]:
        """Return the servers whose lists must be read now, or whose regions no master moves.

        `stored`: regions that the store places on each live server. `served`: regions that each server serves by its
        latest heartbeat; a silent server is not in it. `dead`: regions that the store still places on each dead server.
        """
        before, self._seen, due = self._seen, {}, []
        numbers = [(server, stored.get(server, 0), count, PATIENCE_MS) for server, count in served.items()]
        numbers += [(server, count, 0, DEAD_PATIENCE_MS) for server, count in dead.items()]
        for server, wanted, count, patience_ms in numbers:
            if count >= wanted:
                continue
            seen = before.get(server)
            if seen is None or (seen.stored, seen.served) != (wanted, count):
                seen = _Shortage(wanted, count, now_ms)
            elif now_ms - seen.since_ms >= patience_ms and (
                seen.asked_ms is None or now_ms - seen.asked_ms >= AGAIN_MS
            ):
                seen = seen._replace(asked_ms=now_ms)
                due.append(server)
            self._seen[server] = seen
        return due


def abandoned(keys: Sequence[str], server: Incarnation) -> tuple[str, tuple[Rule, str]]:
    """Return the finding about regions of a dead server that no master moves: one for all of them."""
    first, *others = sorted(keys)
    text = f"not open: server {server}, which the store names, is dead, and no master opens it on another server"
    if others:
        text += f"; nor the {len(others)} other regions of this server"
    return first, (Rule.NO_OWNER, text)


def missing(placed: Iterable[str], hosted: Iterable[HostedReplica]) -> list[str]:
    """Return the keys that the store places on a server and that its list lacks; a failed open does not count."""
    held = {replica_key(one.region_id, one.replica) for one in hosted if one.state != "FAILED"}
    return sorted(set(placed) - held)
