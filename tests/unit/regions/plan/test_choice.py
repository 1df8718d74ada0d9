"""The choice of `auto`: the best plan that is expected before the deadline (docs/planning.md, "Which engine when")."""

from __future__ import annotations

from pathlib import Path

import pytest

from regions.plan import choice
from regions.plan.choice import CLUSTER_MIN, FLOW_MAX, choose_engine, expected_s, fallbacks, job_command
from regions.plan.spark.target import parse_target

HERE, CLUSTER = "local[*]", "spark://somewhere:7077"


@pytest.mark.parametrize(
    ("replicas", "master", "deadline_s", "lack", "ortools", "engine"),
    [
        (1_000, HERE, 600, "", True, "flow"),
        (1_000_000, HERE, 600, "", True, "flow"),
        (FLOW_MAX, HERE, 600, "", True, "flow"),
        (FLOW_MAX + 1, HERE, 600, "", True, "spark"),
        (FLOW_MAX + 1, HERE, 600, "no Java", True, "greedy"),
        (FLOW_MAX + 1, HERE, 60, "", True, "greedy"),
        (1_000_000, HERE, 20, "", True, "greedy"),
        (1_000, HERE, 1, "", True, "greedy"),
        (1_000_000, HERE, 600, "", False, "greedy"),
        (CLUSTER_MIN, CLUSTER, 600, "", True, "flow"),
        (CLUSTER_MIN + 1, CLUSTER, 600, "", True, "spark"),
        (CLUSTER_MIN + 1, CLUSTER, 30, "", True, "flow"),
        (CLUSTER_MIN + 1, CLUSTER, 600, "no Java", True, "flow"),
    ],
)
def test_auto(
    replicas: int,
    master: str,
    deadline_s: float,
    lack: str,
    ortools: bool,
    engine: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By size, place of Spark, available time, and installed packages."""
    monkeypatch.setattr(choice, "missing", lambda _: lack)
    monkeypatch.setattr(choice.importlib.util, "find_spec", lambda _: object() if ortools else None)
    assert choose_engine(replicas, parse_target(master), deadline_s) == engine


def test_spark_on_this_machine_never_beats_the_flow() -> None:
    """Its start alone takes as long as half a million replicas."""
    for replicas in (0, 10_000, 1_000_000, FLOW_MAX):
        assert expected_s("flow", replicas) < expected_s("spark", replicas)


def test_a_job_is_told_what_to_do() -> None:
    """Jobs of both kinds end with their waiting process."""
    for engine, module in (("flow", "regions.plan"), ("spark", "regions.plan.spark_job")):
        command = job_command(engine, Path("in"), Path("out"), "local", ["a=b"], plan_id="p")
        assert command[1:3] == ["-m", module]
        assert {"--die-with-parent", "--plan-id", "p"} <= set(command)
        assert ("a=b" in command) == (engine == "spark")


def test_the_engines_that_take_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """N9: from Spark the one with the same plan, as far as one process can make it in time."""
    both = ("sharded", "greedy")
    assert fallbacks("spark", FLOW_MAX, 600) == both
    assert fallbacks("spark", FLOW_MAX + 1, 600) == ("greedy",)
    assert fallbacks("spark", 0, expected_s("flow", 0)) == both
    assert fallbacks("spark", 0, expected_s("flow", 0) - 0.1) == ("greedy",)
    assert fallbacks("flow", 0, 600) == ("greedy",)
    monkeypatch.setattr(choice.importlib.util, "find_spec", lambda _: None)
    assert fallbacks("spark", 0, 600) == ("greedy",)
