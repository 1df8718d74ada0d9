"""The request about balance (RT-14): the switch, a round now, and a report of the moves that a round would make."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from coord.rpc.server import RpcError
from master.active import ActiveMaster
from regions import messages as ms
from regions.balance.balancer import Proposal
from regions.balance.tablets import NO_MOVES, moves_under_way, objection_to_round
from regions.replication.policy.leaders import LeaderTransfer


async def balance(active_master: ActiveMaster, request: ms.Balance) -> ms.BalanceReport:
    """Set the balancer's switch, run a round now, or report the moves that a round would make. Raise RpcError."""
    balancing, tablets = active_master.balancing, active_master.keeper.balancing
    if request.switch is not None:
        await balancing.switch(enabled=request.switch)
    if not request.run:
        return _with_tablets(active_master, balancing.report(), NO_MOVES, ())
    if balancing.applied_plan() and not request.dry_run:
        raise RpcError(ms.BAD_REQUEST, f"the balancer waits until plan {balancing.applied_plan()} has been applied")
    proposal, moves = balancing.round(dry_run=request.dry_run)
    for move in moves:
        active_master.observe(move)
    if request.dry_run:
        found, handovers = tablets.proposed(), tablets.transfers()
    else:
        found, handovers = await tablets.run()
    report = balancing.report(proposal, dry_run=request.dry_run)
    return _with_tablets(active_master, report, found.proposal, handovers)


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
