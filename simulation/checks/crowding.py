"""Whether new regions crowd onto a few servers (HB-11, DD-10): what KUDU-1358 was about.

A region that was never open goes to a server that has hardly more than the emptiest one, or to one that has no more of
its table than its share: single regions are placed by the first rule, tables that are planned as a whole by the second.
What breaks both is a table that crowds onto a few servers while others stand idle, because a master that has just
become active knows only those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from regions.records.model import Incarnation, RegionRecord, RegionState
from regions.records.replica_key import replica_key
from simulation.checks.observer import Shadow
from simulation.engine.timeline import SECOND

#: Replicas that the chosen server may have beyond the emptiest one, and beyond its share of a table: what is on its way
#: is seen late.
BEYOND_MAX: Final = 4
SHARE_MORE: Final = 1
#: Whoever decides may not have heard of a server that registered so short a time ago: an active master can be frozen
#: for nearly as long as its session lasts, and decides by what it knew before as soon as it goes on.
NEWS: Final = 3 * SECOND


class Crowding:
    """Looks at every first place of a region. Draining servers, weights and groups are not for runs with this."""

    def __init__(self, shadow: Shadow, violated: Callable[[str], None], now: Callable[[], int]) -> None:
        """`now`: simulated time; servers that are registered already count as long known."""
        self._shadow = shadow
        self._violated = violated
        self._now = now
        #: When starts of servers registered that came later.
        self._since: dict[Incarnation, int] = {}
        #: The most that any chosen server had beyond the emptiest one.
        self.worst = 0

    def changed(self, path: str) -> None:
        """A znode below the root has changed (`Observer.changed`)."""
        if path.startswith("servers/"):
            came = self._shadow.servers.get(path.rpartition("/")[2])
            if came is not None:
                self._since.setdefault(came.incarnation, self._now())
        if not path.startswith("unassigned/"):
            return
        record = self._shadow.transitions.get(path.rpartition("/")[2])
        if record is None or record.state is not RegionState.OFFLINE or record.attempt or record.destination is None:
            return
        region = self._shadow.regions.get(record.region_id)
        if region is None or region.location(record.replica).uuid is not None or not self._shadow.servers:
            return
        loads = self._loads()
        chosen = record.destination.uuid
        if not self._shadow.is_alive(record.destination):
            return  # it has gone meanwhile, or started anew
        known = [uuid for uuid in loads if uuid == chosen or self._is_known(uuid)]
        emptiest = min(known, key=lambda uuid: (loads[uuid], uuid))
        beyond = loads[chosen] - 1 - loads[emptiest]
        table = [one for one in self._shadow.regions.values() if one.table_id == record.table_id]
        mine = sum(self._is_on(chosen, one, record.replica) for one in table)
        share = -(-len(table) // len(known))
        self.worst = max(self.worst, min(beyond, mine - share))
        if beyond > BEYOND_MAX and mine > share + SHARE_MORE:
            self._violated(
                f"DD-10: {record.key} goes to {chosen}, which has {mine} of the table's {len(table)} regions then and"
                f" {loads[chosen] - 1} replicas already; {emptiest} has {loads[emptiest]}"
            )

    def _is_known(self, uuid: str) -> bool:
        """Whether every master that can write has heard of that server."""
        since = self._since.get(self._shadow.servers[uuid].incarnation)
        return since is None or self._now() - since >= NEWS

    def _is_on(self, uuid: str, region: RegionRecord, replica: int) -> bool:
        """Whether a replica is there, or is to be."""
        transition = self._shadow.transitions.get(replica_key(region.region_id, replica))
        if transition is not None:
            return transition.destination is not None and transition.destination.uuid == uuid
        return region.location(replica).uuid == uuid

    def _loads(self) -> Counter[str]:
        """Replicas that each live server has or is to have."""
        shadow = self._shadow
        found: Counter[str] = Counter(dict.fromkeys(shadow.servers, 0))
        for region in shadow.regions.values():
            for location in region.replicas:
                if replica_key(region.region_id, location.replica) in shadow.transitions:
                    continue
                home = location.incarnation
                if home is not None and shadow.is_alive(home):
                    found[home.uuid] += 1
        for record in shadow.transitions.values():
            is_coming = record.state in (RegionState.OFFLINE, RegionState.OPENING, RegionState.OPENED)
            where = record.destination if is_coming else record.source
            if where is not None and shadow.is_alive(where):
                found[where.uuid] += 1
        return found
