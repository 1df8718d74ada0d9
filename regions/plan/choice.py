"""Which engine `auto` means, and the process that it runs in.

What is compared are the seconds that docs/planning.md has measured, doubled for a machine with other work, against the
deadline. On two cores the exact flow in one process beats Spark at every size that was measured, since Spark's start
alone takes as long as half a million replicas; what Spark adds is cores and memory of other machines.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from regions.plan.spark.target import SparkTarget, job_words, missing

#: Replicas up to which greedy has its plan before a process of its own has started.
AT_ONCE_MAX: Final = 20_000
#: Replicas up to which one process has the memory for an exact flow: 1.7 GB at two million.
FLOW_MAX: Final = 2_000_000
#: Replicas from which on executors elsewhere are worth waiting for.
CLUSTER_MIN: Final = 200_000
#: Seconds of each engine: before the first replica, and per million of them.
SECONDS: Final = {"flow": (2.0, 55.0), "spark": (35.0, 80.0)}


def expected_s(engine: str, replicas: int) -> float:
    """How long a plan takes on two cores that also do other work, processes' starts included."""
    start, per_million = SECONDS[engine]
    return start + per_million * replicas / 1_000_000


def choose_engine(replicas: int, target: SparkTarget, deadline_s: float) -> str:
    """What `auto` means for so many replicas on this machine: the best plan that is expected in time."""
    can_flow = importlib.util.find_spec("ortools") is not None and replicas <= FLOW_MAX
    can_spark = expected_s("spark", replicas) <= deadline_s and not missing(target)
    if can_spark and target.has_executors and replicas > CLUSTER_MIN:
        return "spark"
    if can_flow and expected_s("flow", replicas) <= deadline_s:
        return "flow"
    return "spark" if can_spark and replicas > FLOW_MAX else "greedy"


def job_command(
    engine: str, input_dir: Path, output_dir: Path, master: str, conf: Iterable[str] = (), *, plan_id: str = ""
) -> list[str]:
    """A process that plans one directory into another by `flow` or `spark`, and ends with its parent."""
    if engine == "spark":
        words = job_words(input_dir, output_dir, master, conf, plan_id=plan_id)
        return [sys.executable, "-m", "regions.plan.spark_job", *words]
    words = ["--engine", engine, "--input", str(input_dir), "--output", str(output_dir), "--die-with-parent"]
    return [sys.executable, "-m", "regions.plan", *words, *(["--plan-id", plan_id] if plan_id else [])]
