"""The request about balance (RT-14): the switch, a round now, and a report of the moves that a round would make."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable

from msgspec.structs import replace

from coord.rpc.server import RpcError
from master.active import ActiveMaster
from master.api.pacing import in_turns
from master.leadership.fence import Deposed
from regions import messages as ms
from regions.balance.balancer import Proposal
from regions.balance.tablets import NO_MOVES, moves_under_way, objection_to_round
from regions.replication.policy.leaders import LeaderTransfer


async def balance(active_master: ActiveMaster, request: ms.Balance) -> ms.BalanceReport:
    """Set the balancer's switch, run a round now, or report the moves that a round would make.

    Raise RpcError, or Deposed if the tenure has ended meanwhile.
    """
    balancing = active_master.balancing
    if request.switch is not None:
        await balancing.switch(enabled=request.switch)
    if not request.run:
        return _with_tablets(active_master, balancing.report(), NO_MOVES, ())
    await balancing.asked.acquire()
    try:
        if active_master.is_over:
            raise Deposed("this master is not active any more")
        return await _round(active_master, dry_run=request.dry_run)
    finally:
        balancing.asked.release()


async def _round(active_master: ActiveMaster, *, dry_run: bool) -> ms.BalanceReport:
    """Decide a round in several turns, and begin its moves. A plan may be applied from any of these turns on."""
    balancing, tablets = active_master.balancing, active_master.keeper.balancing

    def next_turn() -> Awaitable[None]:
        """Wait for the next turn of the active master. Raise Deposed if the tenure ends before."""
        return active_master.when(lambda: True)

    if not dry_run:
        _refuse_beside_plan(active_master)
    proposal = await in_turns(balancing.deciding(), next_turn)
    if not dry_run:
        _refuse_beside_plan(active_master)
        for move in balancing.decided(proposal):
            active_master.observe(move)
    found = await in_turns(tablets.deciding(), next_turn)
    if dry_run:
        handovers = tablets.transfers()
    else:
        _refuse_beside_plan(active_master)
        handovers = await tablets.run(found)
    report = balancing.report(proposal, dry_run=dry_run)
    return _with_tablets(active_master, report, found.proposal, handovers)


def _refuse_beside_plan(active_master: ActiveMaster) -> None:
    """Raise RpcError while a plan is applied, which moves the same regions."""
    plan = active_master.balancing.applied_plan()
    if plan:
        raise RpcError(ms.BAD_REQUEST, f"the balancer waits until plan {plan} has been applied")


def _with_tablets(
    active_master: ActiveMaster, report: ms.BalanceReport, found: Proposal, handovers: Iterable[LeaderTransfer]
) -> ms.BalanceReport:
    keeper = active_master.keeper.keeper
    return replace(
        report,
        moves=[*report.moves, *found.moves],
        more=report.more or found.more,
        before=[*report.before, *found.before],
        after=[*report.after, *found.after],
        handovers=[
            ms.LeaderHandover(one.region_id, one.table_id, one.source, one.heir.uuid, one.why) for one in handovers
        ],
        spread=active_master.keeper.balancing.spread() if keeper.tablets else "",
        tablets_blocking=objection_to_round(keeper) if keeper.tablets else "",
        tablets_moving=moves_under_way(keeper),
    )
