"""`python -m regions.plan`: compute a plan from files to files, without a cluster.

The engines `greedy`, `flow` and `sharded` run in this process. For `spark`, `regions.plan.spark_job` gets the same
arguments.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from regions.plan.artifact.files import (
    ProgressWriter,
    die_with_parent,
    prepare_output,
    progress_on_stdout,
    read_params,
    read_snapshot,
    usual_id,
    write_plan,
)
from regions.plan.artifact.verify import judge
from regions.plan.engines.run import plan_encoded
from regions.plan.problem.model import BadInput, NoServers, PlanError
from regions.plan.spark.locate import read_paths


def main(arguments: list[str]) -> int:
    """Parse, plan, verify and write. Return the exit status (docs/planning.md)."""
    parser = argparse.ArgumentParser(prog="python -m regions.plan", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--input", required=True, type=Path, help="directory of regions, servers, blocks, last, params")
    parser.add_argument("--output", required=True, type=Path, help="directory for the plan; it must not hold one yet")
    parser.add_argument("--engine", choices=("greedy", "flow", "sharded", "spark"), default="greedy")
    parser.add_argument(
        "--plan-id", default="", help="name of the plan in its manifest; by default from its engine and digest"
    )
    parser.add_argument("--shards", type=int, default=None, help="for the engine sharded; by default from the size")
    parser.add_argument("--die-with-parent", action="store_true", help="end when its parent process does")
    options, rest = parser.parse_known_args(arguments)
    if options.engine == "spark":
        from .spark_job import main as spark_main

        place = arguments.index("spark")
        return spark_main(arguments[: place - 1] + arguments[place + 1 :])
    if rest:
        parser.error(f"unknown arguments: {' '.join(rest)}")
    if options.die_with_parent:
        die_with_parent()
    progress = progress_on_stdout(4, time.monotonic)
    try:
        return _run(options, progress)
    except PlanError as error:
        progress.failed(type(error).__name__, str(error))
        return 4 if isinstance(error, NoServers) else 3


def _run(options: argparse.Namespace, progress: ProgressWriter) -> int:
    """Run the four stages."""
    prepare_output(options.output)
    params = read_params(options.input)
    if read_paths(options.input):
        raise BadInput("reading the table 'paths' needs Java: plan this input with `rk plan create --input`")
    snapshot = read_snapshot(options.input)
    progress.stage("read")
    made, problem = plan_encoded(snapshot, params, engine=options.engine, shards=options.shards)
    progress.stage("plan")
    verdict = judge(problem, made.rows)
    made.stats.violations, made.stats.racks_shared = verdict.violations, verdict.racks_shared
    progress.stage("verify")
    plan_id = options.plan_id or usual_id(made)
    manifest = write_plan(options.output, made, plan_id=plan_id, params=params, seconds=progress.seconds)
    progress.stage("write")
    progress.finished(manifest)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
