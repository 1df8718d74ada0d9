"""The balance of tablets: leaders are spread over the servers, and members over the servers' disks.

Both happen automatically while the balancer is on and has a period (`rk balance on`, `--balance-period-s`), and at an
operator's request. The decisions are pure: `regions/balance/leader_rounds.py`, `regions/balance/tablets.py`. A handover
is sent to the leader by the keeper. A move of a member becomes an intent, so it survives a failover like an operator's.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Final

from msgspec.structs import replace
from twisted.logger import Logger

from master.causes import acting
from master.context import EffectContext
from master.tablets.plan_moves import PlanMoves
from regions.balance.leader_rounds import LeaderSpreading
from regions.balance.tablets import TabletRound, deciding_round, hopeless
from regions.cluster.history import BALANCED
from regions.cluster.limits import AssignerConfig
from regions.messages import BalanceMove
from regions.records.model import WorkOrigin
from regions.replication.keeper import Keeper
from regions.replication.policy.leaders import LeaderTransfer, spread_words

log = Logger()


#: Pause between two rounds about members while a limit has ended the last one.
SOON_MS: Final = 5_000


class TabletBalancing:
    """See the module docstring."""

    def __init__(
        self,
        active_master: EffectContext,
        keeper: Keeper,
        plan_moves: PlanMoves,
        limits: AssignerConfig,
        now_ms: Callable[[], int],
    ) -> None:
        self._active_master = active_master
        self._keeper = keeper
        self._plan_moves = plan_moves
        self._now_ms = now_ms
        self._spreading = LeaderSpreading(keeper, limits)
        #: Time of the next round about members; 0: a period after the first tick.
        self._next_ms = 0
        #: The round about members that is being decided.
        self._steps: Generator[None, None, TabletRound] | None = None
        self._is_writing = False

    def tick(self) -> None:
        """Begin the rounds that are due, if the balancer works by itself. Called twice a second."""
        switch, now_ms = self._active_master.balancing, self._now_ms()
        if not switch.is_automatic:
            return
        spread = self._spreading.tick(now_ms)
        if spread:
            what = f"the leadership of {len(spread)} tablets goes to other servers"
            self._active_master.history_writer.event(BALANCED, what)
            self._note(spread)
        self._next_ms = self._next_ms or now_ms + switch.period_ms
        if self._steps is None and now_ms >= self._next_ms and not self._is_writing:
            self._steps = self.deciding()
        self.go_on()

    @property
    def is_due(self) -> bool:
        """Return True if a round about members has begun and is not decided yet: call `go_on` in the next turns."""
        return self._steps is not None

    def go_on(self) -> None:
        """Take the next step of a round about members, and begin its moves after the last one."""
        switch = self._active_master.balancing
        if self._steps is None or not switch.is_automatic or switch.is_asked:
            self._steps = None  # it begins again when it may
            return
        try:
            next(self._steps)
        except StopIteration as end:
            self._steps = None
            self._begin_round(end.value)

    def _begin_round(self, found: TabletRound) -> None:
        switch, now_ms = self._active_master.balancing, self._now_ms()
        self._log_round(found)
        self._next_ms = now_ms + (min(SOON_MS, switch.period_ms) if found.proposal.more else switch.period_ms)
        if found.moves or hopeless(self._keeper):
            self._is_writing = True
            origin = self._active_master.assigner.causes.begin("timer: a round of the balancer about tablets")
            what = f"{len(found.moves)} members of tablets move"
            self._active_master.history_writer.event(BALANCED, what, origin=origin)
            self._active_master.persist(partial(self._begin_by_itself, found, origin))

    async def run(self, found: TabletRound) -> list[LeaderTransfer]:
        """Begin the moves of a round that was just decided, and a round of handovers, for an operator.

        Return the handovers; the moves are durable then. Raise as a fenced write.
        """
        self._log_round(found)
        await self.begin(found, acting())
        transfers = self._spreading.round(self._now_ms())
        self._note(transfers)
        self._active_master.schedule()
        return transfers

    # --- leaders ------------------------------------------------------------------------------------------------------

    def transfers(self) -> list[LeaderTransfer]:
        """Return the handovers of a round that would begin now."""
        return self._spreading.proposed(self._now_ms())

    def spread(self) -> str:
        """Return how many tablets servers lead, for operators."""
        servers = [uuid for uuid, one in self._keeper.servers.items() if one.tablets]
        return spread_words(self._spreading.leaders(), servers)

    def _log_round(self, found: TabletRound) -> None:
        """Keep the round for the live page. A cluster without tablets has none."""
        rounds, what = self._active_master.balancing.rounds, "members of tablets"
        if found.blocking:
            rounds.none(what, self._now_ms(), found.blocking)
        elif not found.moves and found.proposal.more:
            rounds.none(what, self._now_ms(), "as many members are on their way as the limit allows")
        elif self._keeper.tablets:
            rounds.moved(what, self._now_ms(), found.proposal.moves, more=found.proposal.more)

    def _note(self, found: list[LeaderTransfer]) -> None:
        if found:
            moves = [BalanceMove(one.region_id, one.table_id, one.source, one.heir.uuid, one.why) for one in found]
            self._active_master.balancing.rounds.moved("leaders of tablets", self._now_ms(), moves)
            log.info(
                "spreading the leaders of tablets: {count} handovers; now {spread}",
                count=len(found),
                spread=self.spread(),
            )

    # --- members ------------------------------------------------------------------------------------------------------

    def deciding(self) -> Generator[None, None, TabletRound]:
        """Decide a round, in steps. The caller begins its moves in the turn of the last step."""
        regions = self._active_master.world.regions

        def is_resharded(region_id: str) -> bool:
            return region_id in regions and bool(regions[region_id].resharding)

        return deciding_round(self._keeper, self._active_master.balancing.config, self._now_ms(), is_resharded)

    async def begin(self, found: TabletRound, origin: WorkOrigin | None) -> None:
        """Write the moves of a round as intents, and withdraw intents that cannot succeed any more. Raise as a fenced
        write."""
        lost = hopeless(self._keeper)
        await self._plan_moves.withdraw_moves(lost)
        await self._plan_moves.accept((one, replace(move, origin=origin)) for one, move in found.moves)
        if found.moves or lost:
            log.info(
                "balancing tablets: {count} members move, {lost} moves are withdrawn because their targets are gone",
                count=len(found.moves),
                lost=len(lost),
            )

    async def _begin_by_itself(self, found: TabletRound, origin: WorkOrigin) -> None:
        try:
            await self.begin(found, origin)
        finally:
            self._is_writing = False
