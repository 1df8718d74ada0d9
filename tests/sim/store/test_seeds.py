"""Histories that failed once, and shrinking a failing one."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from unittest import mock

import pytest

from simulation.engine.history import Violation
from tests.sim.raft.faults import run_one as run_group
from tests.sim.raft.plan import GROUP, Failure, Plan, parse_plan, shrink
from tests.sim.raft.rare import STORE_MET, STORE_RARE, missed
from tests.sim.store import __main__ as command
from tests.sim.store import planted
from tests.sim.store.clients import Client, Link
from tests.sim.store.faults import failure_of, run_plan
from tests.sim.store.net import SimSocket
from tests.sim.store.world import World
from tests.support.interpreted import is_interpreted

SEEDS = Path(__file__).with_name("seeds.txt")

pytestmark = pytest.mark.skipif(
    not is_interpreted(), reason="sockets are put in by a patch, which compiled code ignores; RK_PURE=1 runs it"
)


def kept() -> list[Plan]:
    """Return the plans of the file."""
    lines = SEEDS.read_text().splitlines()
    return [parse_plan(line) for line in lines if line.strip() and not line.startswith("#")]


@pytest.mark.parametrize("plan", kept(), ids=str)
def test_what_failed_once_holds(plan: Plan) -> None:
    """Each plan of the file passes now."""
    if plan.what == GROUP:
        run_group(plan.seed, plan.nodes)
    else:
        run_plan(plan)


def test_a_plan_is_a_line() -> None:
    """A plan is printed and parsed again; unknown fields are rejected."""
    plan = Plan(17, 5, 2.5, ("_flip", "_kill"), (3, 7), (2,), GROUP)
    assert parse_plan(str(plan)) == plan
    assert parse_plan("seed=1") == Plan(1)
    with pytest.raises(ValueError, match="colour"):
        parse_plan("seed=1 colour=red")


def test_a_failing_history_is_made_smaller() -> None:
    """Removed parts do not matter for the failure; the remaining parts do."""

    def run(plan: Plan) -> Failure | None:
        if "_a" in plan.without or 9 in plan.skip or plan.length_s() < 2:
            return None
        happened = [(n, kind) for n, kind in ((3, "_b"), (9, "_a"), (12, "_c")) if n not in plan.skip]
        happened = [(n, kind) for n, kind in happened if kind not in plan.without]
        return Failure("7 is wrong", 1.95, happened, [each for each in (1, 2) if each not in plan.absent])

    first = run(Plan(1))
    assert first is not None
    small = shrink(Plan(1), first, run)
    assert small.length_s() <= 2.1
    assert set(small.without) == {"_b", "_c"}
    assert small.absent == (1, 2)


def test_a_real_failure_says_how_to_see_it_again_and_gets_smaller() -> None:
    """A planted bug, from its violation to a smaller history that still shows it."""
    bug = planted.EphemeralsLeft
    plan = next(plan for plan in map(Plan, range(1, 10)) if failure_of(plan, bug) is not None)
    failure = failure_of(plan, bug)
    assert failure is not None
    assert f"--plan '{plan}' --trace" in failure.text
    small = shrink(plan, failure, lambda each: failure_of(each, bug), 3)
    again = failure_of(small, bug)
    assert again is not None
    assert small.length_s() < plan.length_s()


def test_the_trace_of_a_failing_history_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command in a failure's text prints the trace."""

    def fail(world: World, _: Plan) -> None:
        world.note("what happened")
        raise Violation("all is wrong")

    monkeypatch.setattr(command, "run_world", fail)
    monkeypatch.setattr(sys, "argv", ["tests.sim.store", "--seed", "1", "--trace"])
    assert command.main() == 1
    assert capsys.readouterr().out == "0.000000 what happened\nVIOLATION all is wrong\n"


def test_a_server_hears_of_a_session_by_whole_frames() -> None:
    """Half a request before the end of a connection is not a sign of the session, which may be ended in time."""
    world = World(1, 3)
    sock = SimSocket(world.net, -1)
    link = Link(Client(world, 1), sock)
    with mock.patch.object(sock, "send", len):
        link.send(b"x" * 10)
        link.send(b"y" * 6)
    heard = []
    for sock.taken in (0, 9, 10, 12, 16):
        heard.append(link.is_heard())
    assert heard == [False, False, True, False, True]


def test_a_situation_that_never_occurred_is_named() -> None:
    """A soak and `make test` fail for it."""
    assert missed(Counter(a=3, b=0), ("a", "b", "c")) == ["b", "c"]
    assert len(set(STORE_MET + STORE_RARE)) == len(STORE_MET) + len(STORE_RARE)
