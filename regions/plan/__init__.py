"""Bulk assignment plans: one model, several engines, one verifier.

`plan(snapshot, params, deadline) -> Plan(rows, digest, stats)` is pure: no clock, no files, no randomness. Its steps:

1. Check the snapshot and number it (problem/).
2. Derive quotas from weights (`quota`).
3. An engine (engines/) chooses the placements of highest benefit (`greedy`, for the whole problem or by `shards`).
4. Spread the remaining replicas as classes (`leftover`).
5. Repair violations by chains of moves (`repair`).

artifact/: `verify` checks any plan against the rules; `files` reads and writes snapshots and plans. `spark_job`, the
only module that imports Spark, plans over partitioned data with the parts in spark/.

Hard rules, the strongest first: every replica exactly once; distinct servers; a live server of the region's group that
is not draining; distinct racks; each server between floor and ceiling; each (table, server) below its ceiling plus
slack. Benefit comes after all of them.
"""

from regions.plan.artifact.digest import plan_digest
from regions.plan.artifact.verify import PlanVerdict, verify
from regions.plan.engines.run import plan
from regions.plan.problem.model import (
    BadInput,
    BadPlan,
    BlockRow,
    ConflictingRegion,
    LastRow,
    NoServers,
    Params,
    Plan,
    PlanError,
    PlanRows,
    RegionRow,
    ServerRow,
    Snapshot,
    Stats,
    UnusableOutput,
)

__all__ = [
    "BadInput",
    "BadPlan",
    "BlockRow",
    "ConflictingRegion",
    "LastRow",
    "NoServers",
    "Params",
    "Plan",
    "PlanError",
    "PlanRows",
    "PlanVerdict",
    "RegionRow",
    "ServerRow",
    "Snapshot",
    "Stats",
    "UnusableOutput",
    "plan",
    "plan_digest",
    "verify",
]
