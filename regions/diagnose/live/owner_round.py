"""Compares all replicas that servers report with the store, a few servers in each step (N5). Pure.

A round examines each server twice, REST_MS apart: the replicas that the store has at rest there, and the second time
also the replicas that the server reports. Only a replica that was at rest both times must be reported. A step costs the
same in a cluster of any size, and a round of a million replicas takes some minutes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from regions.diagnose.invariants import Rule, contradictions
from regions.records.model import Incarnation

#: A server must have reported a replica that has been at rest for this long: several heartbeats.
REST_MS: Final = 6_000
#: Replicas that a step looks at for the first time, and for the second time. Each server is looked at whole.
SLICE: Final = 5_000
#: Looks into servers' lists in one step, for replicas that are not where the store says. The others wait for the next
#: round.
LOOKS_MAX: Final = 20_000

Lists = Mapping[Incarnation, Collection[str]]
#: Returns the keys of the replicas that the store has at rest on a server; None if this master may not decide.
AtRest = Callable[[Incarnation], "Collection[str] | None"]
#: Returns the server that the store names for a replica at rest; None for any other.
HomeOf = Callable[[str], "Incarnation | None"]


class OwnerRound:
    """One comparison of all servers that have reported their replicas when it begins."""

    def __init__(self, servers: Iterable[Incarnation]) -> None:
        self._waiting = deque(servers)
        #: Number of servers.
        self.servers = len(self._waiting)
        #: Servers that were examined once: the time, and the replicas that were at rest there.
        self._looked: deque[tuple[int, Incarnation, frozenset[str]]] = deque()
        #: Contradictions so far, by replica key.
        self.found: dict[str, tuple[Rule, str]] = {}

    @property
    def is_over(self) -> bool:
        """Return True if every server was looked at twice."""
        return not self._waiting and not self._looked

    def step(self, at_rest: AtRest, lists: Lists, home_of: HomeOf, now_ms: int) -> bool:
        """Examine the next servers. `lists` has the present reports of the servers. Return False if the round must be
        given up."""
        left, looks = SLICE, LOOKS_MAX
        while left > 0 and self._looked and now_ms - self._looked[0][0] >= REST_MS:
            _, server, before = self._looked.popleft()
            now = at_rest(server)
            if now is None:
                return False
            held = lists.get(server)
            if held is not None:  # the masters handle dead and silent servers
                looks = self._compare(server, before.intersection(now), held, lists, home_of, looks)
            left -= 1 + len(before)
        left = SLICE
        while left > 0 and self._waiting:
            server = self._waiting.popleft()
            now = at_rest(server)
            if now is None:
                return False
            self._looked.append((now_ms, server, frozenset(now)))
            left -= 1 + len(now)
        return True

    def _compare(
        self,
        server: Incarnation,
        stored: Collection[str],
        held: Collection[str],
        lists: Lists,
        home_of: HomeOf,
        looks: int,
    ) -> int:
        """Compare the replicas that the store has at rest on a server with those that the server reports. Return the
        remaining number of looks.

        A replica that the store has on another server counts here only if that server reports it as well.
        """
        lacking = [key for key in stored if key not in held]
        others = [key for key in held if key not in stored and self._is_strange(key, server, lists, home_of)]
        for key in (*lacking, *others):
            if looks <= 0:
                break
            looks -= len(lists)
            owners = {one: [key] if key in keys else [] for one, keys in lists.items()}
            self.found.update(contradictions({key: server} if key in stored else {}, owners))
        return looks

    @staticmethod
    def _is_strange(key: str, server: Incarnation, lists: Lists, home_of: HomeOf) -> bool:
        """Return True if another server may report the replica as well, and no server's own replicas show it."""
        home = home_of(key)
        if home is None or home not in lists:
            return True
        return home != server and key in lists[home]
