"""Check that new regions do not crowd onto a few servers (HB-11, DD-10; the bug of KUDU-1358).

A region that was never open may go to a server that satisfies one of two rules:

- the server has hardly more replicas than the emptiest server (rule for single regions);
- the server has at most its share of the table's regions (rule for tables that are planned as a whole).

A placement that breaks both rules crowds a table onto a few servers while other servers are idle. A new active master
that knows only a few of the servers makes such placements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from regions.records.model import Incarnation, RegionRecord, RegionState
from regions.records.replica_key import replica_key
from simulation.checks.observer import Shadow
from simulation.engine.timeline import SECOND

#: Replicas that the chosen server may have beyond the emptiest server, and regions beyond its share of the table.
#: The master sees replicas in transition late.
BEYOND_MAX: Final = 4
SHARE_MORE: Final = 1
#: Time after its registration from which on a server counts as known to the master. An active master may be frozen for
#: nearly as long as its session timeout, and then decides with its former cluster state.
KNOWN_AFTER_US: Final = 3 * SECOND


class Crowding:
    """Checks the first placement of every region. Only for runs without draining servers, weights and groups."""

    def __init__(self, shadow: Shadow, violated: Callable[[str], None], now: Callable[[], int]) -> None:
        """Watch `shadow`. `now` returns the simulated time; servers that are registered already count as known."""
        self._shadow = shadow
        self._violated = violated
        self._now = now
        #: When each later start of a server registered.
        self._since: dict[Incarnation, int] = {}
        #: The most replicas that any chosen server had beyond the emptiest one.
        self.worst = 0

    def changed(self, path: str) -> None:
        """Check the change of a znode below the root (see `Observer.changed`)."""
        if path.startswith("servers/"):
            registered = self._shadow.servers.get(path.rpartition("/")[2])
            if registered is not None:
                self._since.setdefault(registered.incarnation, self._now())
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
            return  # the server has died or restarted since
        known = [uuid for uuid in loads if uuid == chosen or self._is_known(uuid)]
        emptiest = min(known, key=lambda uuid: (loads[uuid], uuid))
        beyond = loads[chosen] - 1 - loads[emptiest]
        table = [one for one in self._shadow.regions.values() if one.table_id == record.table_id]
        mine = sum(self._is_on(chosen, one, record.replica) for one in table)
        share = -(-len(table) // len(known))
        self.worst = max(self.worst, min(beyond, mine - share))
        if beyond > BEYOND_MAX and mine > share + SHARE_MORE:
            self._violated(
                f"DD-10: {record.key} was placed on {chosen}, which had {mine - 1} of the table's {len(table)} regions"
                f" and {loads[chosen] - 1} replicas; {emptiest} has {loads[emptiest]} replicas"
            )

    def _is_known(self, uuid: str) -> bool:
        """Return True if every master that can write has seen the server's registration."""
        since = self._since.get(self._shadow.servers[uuid].incarnation)
        return since is None or self._now() - since >= KNOWN_AFTER_US

    def _is_on(self, uuid: str, region: RegionRecord, replica: int) -> bool:
        """Return True if the replica is on the server or on its way to the server."""
        transition = self._shadow.transitions.get(replica_key(region.region_id, replica))
        if transition is not None:
            return transition.destination is not None and transition.destination.uuid == uuid
        return region.location(replica).uuid == uuid

    def _loads(self) -> Counter[str]:
        """Return the replicas that each live server has or will have."""
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
