"""The keeper's rounds that spread leaders over servers: the tablets that take part, and the number of handovers at a
time. Pure.

`regions/replication/policy/leaders.py` decides from the counts. This module says which handovers are safe
now:

- A tablet takes part while all its voters are healthy and no change of its members is wanted or under way.
- An heir has caught up. Its server is registered, has room, is not being emptied, and has run for `leader_rest_ms`.
- Nothing is handed over during an outage, nor before all live servers have reported to this master.
- At most `leader_transfers_max` handovers of all tablets are under way, and a tablet is asked at most once in AGAIN_MS.
  A leader that cannot hand over does not delay the others, and no leadership goes back and forth.

Rounds are ROUND_MS apart, so that the reports show the result of the last round. The only state is the time of each
request, so another master can continue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from regions.cluster.limits import AssignerConfig
from regions.messages.heartbeat import MemberHealth
from regions.records.members import Member, MemberRole
from regions.records.model import ServerRecord
from regions.replication.keeper import Keeper
from regions.replication.policy.leaders import LeaderTransfer, LedTablet, transfers
from regions.replication.policy.situation import CAUGHT_UP_ENTRIES
from regions.replication.siting import has_room
from regions.replication.tablet import Tablet

#: Time between two rounds.
ROUND_MS: Final = 5_000
#: Time in which the leadership of one tablet is handed over at most once for the sake of the spread.
AGAIN_MS: Final = 60_000


class LeaderSpreading:
    """See the module docstring."""

    def __init__(self, keeper: Keeper, config: AssignerConfig) -> None:
        self._keeper = keeper
        self._config = config
        self._next_ms = 0
        #: When a tablet's leader was last asked.
        self._asked_ms: dict[str, int] = {}

    def tick(self, now_ms: int) -> list[LeaderTransfer]:
        """Begin a round if one is due. Return its handovers; the keeper sends them to the leaders."""
        if now_ms < self._next_ms:
            return []
        self._next_ms = now_ms + ROUND_MS
        return self.round(now_ms)

    def round(self, now_ms: int) -> list[LeaderTransfer]:
        """Ask leaders to hand over, now."""
        found = self.proposed(now_ms)
        for one in found:
            self._asked_ms[one.region_id] = now_ms
            self._keeper.policy.hand_over(self._keeper.tablets[one.region_id], one.heir, one.why, now_ms)
        return found

    def proposed(self, now_ms: int) -> list[LeaderTransfer]:
        """Return the handovers of a round that would begin now."""
        policy = self._keeper.policy
        if not policy.is_on or policy.outage or not self._have_all_reported():
            return []
        self._asked_ms = {one: at_ms for one, at_ms in self._asked_ms.items() if now_ms < at_ms + AGAIN_MS}
        room = self._config.leader_transfers_max - policy.transfers_under_way(now_ms)
        return transfers(self._led(now_ms), self.leaders(), self._keeper.servers, room)

    def leaders(self) -> Counter[str]:
        """Return how many tablets each server leads, as the servers report."""
        return leaders_of(self._keeper)

    def _have_all_reported(self) -> bool:
        """Return True if every live server has reported to this master which tablets it leads."""
        has_reported = self._keeper.policy.has_reported
        return all(has_reported(one.incarnation) for one in self._keeper.servers.values() if one.tablets)

    def _led(self, now_ms: int) -> Iterator[LedTablet]:
        able = {uuid for uuid, one in self._keeper.servers.items() if self._may_lead(one, now_ms)}
        for tablet in self._keeper.tablets.values():
            found = None if tablet.region_id in self._asked_ms else self._led_tablet(tablet, able)
            if found is not None:
                yield found

    def _may_lead(self, server: ServerRecord, now_ms: int) -> bool:
        """Return True for a server that is to lead more tablets. A restarted server first takes part for a while."""
        if not server.tablets or server.leaving or server.uuid in self._keeper.policy.closed or not has_room(server):
            return False
        return not 0 <= now_ms - server.start_code < self._config.leader_rest_ms

    def _led_tablet(self, tablet: Tablet, able: set[str]) -> LedTablet | None:
        """Return a tablet that takes part, with its possible heirs; None if it does not."""
        leader = tablet.view.leader_now()
        if leader is None or not self._keeper.policy.is_at_rest(tablet):
            return None
        judged = {one.number: one for one in leader.report.health}
        heirs: list[Member] = []
        for one in leader.report.members:
            found = judged.get(one.number)
            if one.role is not MemberRole.VOTER or one.number == leader.number or found is None:
                continue
            is_ready = found.health is MemberHealth.HEALTHY and found.may_lead and found.behind <= CAUGHT_UP_ENTRIES
            if is_ready and one.uuid in able:
                heirs.append(one)
        return LedTablet(tablet.region_id, tablet.record.table_id, leader.server.uuid, tuple(heirs)) if heirs else None


def leaders_of(keeper: Keeper) -> Counter[str]:
    """Return how many tablets each server leads, as the servers report."""
    found: Counter[str] = Counter()
    for tablet in keeper.tablets.values():
        leader = tablet.view.leader_now()
        if leader is not None:
            found[leader.server.uuid] += 1
    return found
