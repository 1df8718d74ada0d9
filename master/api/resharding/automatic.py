"""Splits and merges by tables' settings: a timer that requests proposals from the pure decision, and carries them out.

A proposal is carried out like an operator's request (`master/api/resharding/requests.py`). Its cause is a timer whose
text contains the sizes, so history and log show why a region was split.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twisted.internet.defer import ensureDeferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.errors import CoordError
from master.active import ActiveMaster
from master.api.resharding import requests
from master.causes import acting_for, log_begun
from regions import messages as ms
from regions.assign.resharding.automatic import Automatic, SizeProposal
from regions.cluster.entities import Region

log = Logger()

TICK_S: Final = 1.0
#: Time after which a split or merge that was accepted is done or canceled.
WAIT_MS: Final = 1_800_000
#: Why a split or merge happens, if a setting of the table wants it.
BY_SETTING: Final = "a setting of the table"


class AutomaticResharding:
    """See the module docstring. One per tenure; it ends with the tenure."""

    def __init__(self, reactor: Any, active_master: ActiveMaster, now_ms: Callable[[], int]) -> None:
        self._reactor = reactor
        self._active_master = active_master
        self._now_ms = now_ms
        self._decision = Automatic(now_ms())

    def start(self) -> None:
        """Begin to look at the tables."""
        self._reactor.callLater(TICK_S, self._tick)

    def _tick(self) -> None:
        active_master = self._active_master
        if active_master.is_over:
            return
        self._reactor.callLater(TICK_S, self._tick)
        if active_master.may_act:
            active_master.guarded(self._propose)

    def _propose(self) -> None:
        active_master = self._active_master
        plan = active_master.applying.running()
        reshardings = active_master.assigner.reshardings
        proposals = self._decision.step(
            active_master.assigner.world,
            self._size_of,
            lambda region: reshardings.parents_of(region.table).objection_now(region),
            reshardings.begun,
            f"plan {plan} is applied" if plan else "",
            self._now_ms(),
        )
        for one in proposals:
            ensureDeferred(self._carry_out(one)).addErrback(self._failed)

    def _size_of(self, region: Region) -> int | None:
        if region.table.record.is_tablet:
            found = self._active_master.keeper.measure(region.record.region_id)
        else:
            found = self._active_master.reports.sizes.get(region.replicas[0].key)
        return None if found is None else found.size_bytes

    async def _carry_out(self, proposal: SizeProposal) -> None:
        active_master = self._active_master
        causes = active_master.assigner.causes
        origin = causes.begin(f"timer: {BY_SETTING}: {proposal.why}")
        log_begun(causes)
        with acting_for(origin):
            try:
                if len(proposal.regions) == 1:
                    one = ms.SplitRegion(proposal.regions[0], wait_ms=WAIT_MS)
                    await requests.split(active_master, one, self._now_ms(), BY_SETTING)
                else:
                    both = ms.MergeRegions(proposal.regions[0], proposal.regions[1], WAIT_MS)
                    await requests.merge(active_master, both, self._now_ms(), BY_SETTING)
            except CoordError as error:
                self._decision.refused(proposal, self._now_ms())
                log.info("{regions} stays as before, although {why}: {error}",
                         regions=" and ".join(proposal.regions), why=proposal.why, error=error)  # fmt: skip

    def _failed(self, failure: Failure) -> None:
        if not self._active_master.is_over:
            log.failure("internal error in splits and merges by settings", failure=failure)
