"""A plan taken over to another input: for a cluster that has changed since.

What the plan says is kept wherever its server still takes regions; the greedy engine places the rest, under the rules
that hold now. The plan's places take the part of the former places, and nothing else counts, so it leaves them only
where a rule demands it.
"""

from __future__ import annotations

from regions.plan.engines.run import plan
from regions.plan.problem.model import Last, Params, Plan, PlanRows, Snapshot, ints, texts
from regions.plan.problem.numbered import EligibleServers


def rebased(snapshot: Snapshot, params: Params, rows: PlanRows) -> tuple[Plan, int]:
    """A plan for `snapshot` as near to `rows` as the rules allow, and how many of its places are those of `rows`.

    Raises: NoServers, ConflictingRegion, BadInput.
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
