"""Bulk assignment plans: one model, several engines, one verifier.

`plan(snapshot, params, deadline) -> Plan(rows, digest, stats)` is pure: no clock, no files, no chance. A snapshot is
checked and numbered (`problem`), quotas follow from weights (`quota`), an engine takes the places of highest benefit
(`greedy`, whole or by `shards`), the rest is spread as classes (`leftover`), what clashes is cured by chains of moves
(`repair`), and `verify` judges any plan by the rules alone. `files` reads and writes snapshots and plans; `spark_job`,
the only module that knows Spark, does the same over partitioned data.

Hard rules, the strongest first: every replica exactly once; distinct servers; the region's group, live, not draining;
distinct racks; server between floor and ceiling; (table, server) below its ceiling plus slack; then benefit.
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
    "plan",
    "plan_digest",
    "verify",
]
