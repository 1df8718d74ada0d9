"""Adapts a plan to a cluster that has changed since.

The plan's placements are kept where the server still takes regions. The greedy engine places the other replicas by the
current rules. The plan's placements count as the former places, and there is no other benefit, so the engine changes
these placements only where a rule requires a change.
"""

from __future__ import annotations

from regions.plan.engines.run import plan
from regions.plan.problem.model import Last, Params, Plan, PlanRows, Snapshot, ints, texts
from regions.plan.problem.numbered import EligibleServers


def rebased(snapshot: Snapshot, params: Params, rows: PlanRows) -> tuple[Plan, int]:
    """Return a plan for `snapshot` that is as near to `rows` as the rules allow, and how many placements it keeps.

    Raise NoServers, ConflictingRegion, BadInput.
    """
    regions = set(snapshot.regions.region_id.tolist())
    fleet = EligibleServers(snapshot.servers, {}).number
    kept = [(rid, replica, sid) for rid, replica, sid in rows if rid in regions and sid in fleet]
    known = {(rid, replica) for rid, replica, _ in kept}
    last = snapshot.last
    now = zip(last.region_id.tolist(), last.replica.tolist(), last.server_id.tolist(), strict=True)
    places = kept + [row for row in now if (row[0], row[1]) not in known]
    former = Last(texts(row[0] for row in places), ints(row[1] for row in places), texts(row[2] for row in places))
    empty = Snapshot.of((), ()).blocks
    params = Params(lambda_move=1.0, slop=params.slop, table_slack=params.table_slack)
    made = plan(Snapshot(snapshot.regions, snapshot.servers, empty, former), params, engine="greedy")
    wanted = {(rid, sid) for rid, _, sid in kept}
    return made, sum(1 for rid, _, sid in made.rows if (rid, sid) in wanted)
