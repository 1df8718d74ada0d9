"""Servers that serve fewer regions than the store places on them, found by a standby master (N5). Pure.

A standby gets no reports of regions (X14). But every heartbeat has the number of regions that the server serves. If it
is below the number in the standby's mirror, and both numbers have not changed for PATIENCE_MS, the standby asks the
server for the list, and names the regions that are missing. So a region that nobody serves is found within three
seconds by standbys as well, also without an active master. A heartbeat costs a comparison of two numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from regions.messages import HostedReplica
from regions.records.model import Incarnation
from regions.records.replica_key import replica_key

#: The numbers must have been the same for this long.
PATIENCE_MS: Final = 900
#: A server whose list explained the numbers is not asked again before this time, unless the numbers change.
AGAIN_MS: Final = 10_000


class _Shortage(NamedTuple):
    """The numbers of one server, the time of the first look that found them, and that of the latest question."""

    stored: int
    served: int
    since_ms: int
    asked_ms: int | None = None


class Shortfalls:
    """The servers that fall short, since when."""

    def __init__(self) -> None:
        self._seen: dict[Incarnation, _Shortage] = {}

    def look(
        self, stored: Mapping[Incarnation, int], served: Mapping[Incarnation, int], now_ms: int
    ) -> list[Incarnation]:
        """Return the servers whose lists must be read now.

        `stored`: regions that the store places on each live server. `served`: regions that each server serves by its
        latest heartbeat; a silent server is not in it.
        """
        before, self._seen, due = self._seen, {}, []
        for server, count in served.items():
            wanted = stored.get(server, 0)
            if count >= wanted:
                continue
            seen = before.get(server)
            if seen is None or (seen.stored, seen.served) != (wanted, count):
                seen = _Shortage(wanted, count, now_ms)
            elif now_ms - seen.since_ms >= PATIENCE_MS and (
                seen.asked_ms is None or now_ms - seen.asked_ms >= AGAIN_MS
            ):
                seen = seen._replace(asked_ms=now_ms)
                due.append(server)
            self._seen[server] = seen
        return due


def missing(placed: Iterable[str], hosted: Iterable[HostedReplica]) -> list[str]:
    """Return the keys that the store places on a server and that its list lacks; a failed open is none."""
    held = {replica_key(one.region_id, one.replica) for one in hosted if one.state != "FAILED"}
    return sorted(set(placed) - held)
