"""When to balance, the operator's switch, and the report of the last round (RT-14, RT-15).

`regions.balance.balancer` chooses the moves. Tablets have rounds of their own (`master/tablets/balancing.py`), under
the same switch. The moves of a round go to the assigner like an operator's moves, but they are not persisted: after a
failover, moves that have begun continue as transitions, and the new active master decides again about the others. The
switch is a znode, so it survives a failover.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping

from twisted.internet.defer import DeferredLock
from twisted.logger import Logger

from coord.client.ops import Create, SetData, WriteOp
from coord.errors import MultiFailed
from master.assignment.history_writer import HistoryWriter
from master.leadership.fence import Fence
from regions import messages as ms
from regions.assign.assigner import Assigner
from regions.balance.balancer import Gate, Proposal, gate, proposing
from regions.balance.round_log import RoundLog
from regions.balance.sizes import NOT_MEASURED, RegionSizes
from regions.cluster import events as ev
from regions.cluster.history import BALANCED
from regions.cluster.limits import BalancerConfig
from regions.records.model import BalancerRecord, Incarnation
from regions.records.znodes import CorruptZnode, decode_balancer, encode

log = Logger()


class Balancing:
    """The balancer during one tenure. `act` is called twice a second, and more often while a round is decided."""

    def __init__(
        self,
        fence: Fence,
        assigner: Assigner,
        config: BalancerConfig,
        period_ms: int,
        now_ms: Callable[[], int],
        applied_plan: Callable[[], str] = str,
    ) -> None:
        """`period_ms` 0: balance only on request. `applied_plan` returns the plan being applied, "" for none."""
        self._fence = fence
        self._assigner = assigner
        self.config = config
        self.period_ms = period_ms
        self._now_ms = now_ms
        #: Returns the load of replicas by key, as far as servers have reported it.
        self.loads: Callable[[], Mapping[str, float]] = dict
        #: Returns the sizes of regions, measured as far as servers have reported them.
        self.sizes: Callable[[], RegionSizes] = lambda: NOT_MEASURED
        self.applied_plan = applied_plan
        self.record = BalancerRecord()
        self._version = -1
        #: Why the switch cannot be read, "" if it can. An unreadable switch counts as off.
        self._unreadable = ""
        self._next_ms = now_ms() + period_ms
        self.last: ms.BalanceRound | None = None
        #: The last rounds, those about tablets included.
        self.rounds = RoundLog()
        #: The round that is being decided, and the servers at its beginning.
        self._steps: Generator[None, None, Proposal] | None = None
        self._began_with: list[tuple[Incarnation, float, bool]] = []
        #: Held while operators' rounds are decided, in several turns. No other round is decided meanwhile: both would
        #: move the same surplus.
        self.asked = DeferredLock()
        #: Regions or transitions that block a due round.
        self._blocking: list[str] = []

    @property
    def is_automatic(self) -> bool:
        """Return True if rounds begin by themselves now."""
        return self.period_ms > 0 and self.record.enabled and not self.applied_plan()

    @property
    def is_asked(self) -> bool:
        """Return True while a round is decided for an operator: no other round is decided meanwhile."""
        return bool(self.asked.locked)

    async def load(self) -> None:
        """Read the switch. A damaged switch counts as off, because an operator may have turned balancing off."""
        client, path = self._fence.client, self._fence.layout.balancer
        if await client.exists(path) is not None:
            data, stat = await client.get(path)
            self._version, self._unreadable = stat.version, ""
            try:
                self.record = decode_balancer(data, path)
            except CorruptZnode as error:
                log.error("the balancer is off, its switch is damaged (rk balance on or off): {error}", error=error)
                self.record, self._unreadable = BalancerRecord(enabled=False), str(error)

    async def switch(self, *, enabled: bool) -> None:
        """Turn balancing on or off, durably. Raise MultiFailed if the switch was changed at the same time."""
        if enabled == self.record.enabled and not self._unreadable:
            return
        record = BalancerRecord(enabled, self._now_ms(), self._fence.epoch)
        path, data = self._fence.layout.balancer, encode(record)
        op: WriteOp = Create(path, data) if self._version < 0 else SetData(path, data, self._version)
        try:
            await self._fence.write([op])
        except MultiFailed:
            await self.load()
            raise
        self._version += 1
        self.record, self._unreadable = record, ""
        self._next_ms = self._now_ms()

    def tick(self) -> list[ev.MoveRequested]:
        """Return the moves of a round that is due and not blocked; usually none.

        A round of many regions is decided in several calls: `is_counting` is True until the last.
        """
        if not self.is_automatic or self.is_asked:
            self._steps = None  # its counts would be outdated after the pause
            return []
        now = self._now_ms()
        if now < self._next_ms:
            return []
        if self._steps is None or self._servers() != self._began_with:
            found = gate(self._assigner.world, now, self.config)
            self._blocking = found.blocking
            if found.blocking:
                self._steps = None
                self.rounds.none("regions", now, "it waits for regions in transition")
                return []
            self._steps, self._began_with = self._proposing(found), self._servers()
        try:
            next(self._steps)
        except StopIteration as end:
            return self.decided(end.value)
        return []

    @property
    def is_counting(self) -> bool:
        """Return True if a due round is not decided yet: call `act` again in one of the next turns."""
        return self._steps is not None

    def act(self, history_writer: HistoryWriter) -> None:
        """Continue a round that is due. When its moves are chosen, pass them to the assigner."""
        moves = self.tick()
        if not moves:
            return
        origin = self._assigner.causes.begin("timer: a round of the balancer")
        history_writer.event(BALANCED, f"{len(moves)} replicas move", origin=origin)
        for move in moves:
            self._assigner.handle(move, self._now_ms(), origin)

    def _servers(self) -> list[tuple[Incarnation, float, bool]]:
        """Return the facts that a round depends on. If they change, the round begins again."""
        return [(one.incarnation, one.weight, one.draining) for one in self._assigner.world.servers.values()]

    def _proposing(self, found: Gate) -> Generator[None, None, Proposal]:
        """Begin to decide a round. Servers with stuck transitions are excluded (X9)."""
        return proposing(
            self._assigner.world, self.config, exclude=found.excluded, loads=self.loads(), sizes=self.sizes()
        )

    def deciding(self) -> Generator[None, None, Proposal]:
        """Decide a round for an operator who waits for it, in steps. The caller holds `asked`.

        The cluster may change between two steps: replicas that have changed do not move, and after a change of the
        servers the round begins again. The caller passes the result to `decided` in the turn of the last step.
        """
        while True:
            began_with = self._servers()
            proposal = yield from self._proposing(gate(self._assigner.world, self._now_ms(), self.config))
            if self._servers() == began_with:
                return proposal

    def decided(self, proposal: Proposal) -> list[ev.MoveRequested]:
        """Note a round, and return its moves."""
        self._steps = None
        now = self._now_ms()
        self._next_ms = now if proposal.more else now + self.period_ms
        self.rounds.moved("regions", now, proposal.moves, more=proposal.more)
        if proposal.moves or self.last is None:
            self.last = ms.BalanceRound(now, len(proposal.moves), proposal.more, proposal.before, proposal.after)
        if proposal.moves:
            log.info("balancing: {count} moves, {more}", count=len(proposal.moves), more=_more(proposal))
        return [ev.MoveRequested(move.key, move.destination, reason="balance") for move in proposal.moves]

    def report(self, proposal: Proposal | None = None, *, dry_run: bool = False) -> ms.BalanceReport:
        """Return the report for an operator: switch, blockers, last round, and `proposal`, the round just decided."""
        found = gate(self._assigner.world, self._now_ms(), self.config)
        return ms.BalanceReport(
            enabled=self.record.enabled,
            period_ms=self.period_ms,
            next_in_ms=max(0, self._next_ms - self._now_ms()) if self.period_ms and self.record.enabled else -1,
            blocking=found.blocking,
            stuck=found.stuck,
            excluded=sorted(found.excluded),
            last=self.last,
            dry_run=dry_run,
            moves=[] if proposal is None else proposal.moves,
            more=proposal is not None and proposal.more,
            before=[] if proposal is None else proposal.before,
            after=[] if proposal is None else proposal.after,
            plan=self.applied_plan(),
        )

    def state_words(self) -> str:
        """Return in a sentence when the next round begins, or why none does."""
        if self._unreadable:
            return "The balancer is off: its switch is damaged (rk balance on|off)."
        if not self.record.enabled:
            return "The balancer is off (rk balance on)."
        if not self.period_ms:
            return "This master balances on request alone (rk balance run)."
        if plan := self.applied_plan():
            return f"The balancer waits until plan {plan} has been applied."
        return f"The balancer is on, with a round every {self.period_ms / 1000:g} s."

    def problems(self) -> list[str]:
        """Return why a due round has not begun."""
        if self._unreadable:
            return [f"the balancer is off because its switch is damaged: {self._unreadable} (rk balance on|off)"]
        late_ms = self._now_ms() - self._next_ms
        if not self._blocking or not self.record.enabled or late_ms < self.config.stuck_ms:
            return []
        return [f"the balancer has been blocked for {late_ms / 1000:.0f} s by {', '.join(self._blocking[:3])}"]


def _more(proposal: Proposal) -> str:
    return "another round follows" if proposal.more else "then the cluster is balanced"
