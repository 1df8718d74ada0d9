"""Chooses the engine for `auto`, and builds the command of its process.

The choice compares the deadline with the times measured in docs/planning.md, doubled for a machine with other work. On
two cores the exact flow in one process is faster than Spark at every measured size, because starting Spark takes as
long as planning 500,000 replicas. Spark adds cores and memory of other machines.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from regions.plan.spark.target import SparkTarget, job_words, missing

#: Up to this number of replicas, greedy in this process is faster than starting another process.
AT_ONCE_MAX: Final = 20_000
#: Up to this number of replicas, one process has enough memory for an exact flow: 1.7 GB at two million.
FLOW_MAX: Final = 2_000_000
#: From this number of replicas on, executors on other machines are worth their start.
CLUSTER_MIN: Final = 200_000
#: Seconds of each engine: fixed, and per million replicas.
SECONDS: Final = {"flow": (2.0, 55.0), "spark": (35.0, 80.0)}


def expected_s(engine: str, replicas: int) -> float:
    """Return the expected seconds for a plan on two cores that others use as well, with the start of the process."""
    start, per_million = SECONDS[engine]
    return start + per_million * replicas / 1_000_000


def choose_engine(replicas: int, target: SparkTarget, deadline_s: float) -> str:
    """Return the engine for `auto`: the best one that is expected to meet the deadline on this machine."""
    can_flow = importlib.util.find_spec("ortools") is not None and replicas <= FLOW_MAX
    can_spark = expected_s("spark", replicas) <= deadline_s and not missing(target)
    if can_spark and target.has_executors and replicas > CLUSTER_MIN:
        return "spark"
    if can_flow and expected_s("flow", replicas) <= deadline_s:
        return "flow"
    return "spark" if can_spark and replicas > FLOW_MAX else "greedy"


def fallbacks(engine: str, replicas: int, deadline_s: float) -> tuple[str, ...]:
    """Return the engines that take over from a failed one, in their order (N9).

    `sharded` plans in one process to the same bytes as `spark`. It needs OR-tools and the time of an exact flow.
    `greedy` needs neither.
    """
    if engine != "spark" or importlib.util.find_spec("ortools") is None:
        return ("greedy",)
    is_in_time = replicas <= FLOW_MAX and expected_s("flow", replicas) <= deadline_s
    return ("sharded", "greedy") if is_in_time else ("greedy",)


def job_command(
    engine: str, input_dir: Path, output_dir: Path, master: str, conf: Iterable[str] = (), *, plan_id: str = ""
) -> list[str]:
    """Return the command of a process that plans one directory into another, and ends with its parent."""
    if engine == "spark":
        words = job_words(input_dir, output_dir, master, conf, plan_id=plan_id)
        return [sys.executable, "-m", "regions.plan.spark_job", *words]
    words = ["--engine", engine, "--input", str(input_dir), "--output", str(output_dir), "--die-with-parent"]
    return [sys.executable, "-m", "regions.plan", *words, *(["--plan-id", plan_id] if plan_id else [])]
