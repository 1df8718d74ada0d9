"""N11: the step that helps a stuck replica; a replica that makes progress is left alone."""

from __future__ import annotations

from typing import Any

import click
import pytest

from cli.main import rk
from regions.diagnose.remedy.unstick import unstick
from regions.messages import Explanation, NextActor
from regions.records.acts.undo import Remedy
from regions.records.model import Incarnation
from tests.unit.regions.model_cluster import ModelCluster, at, region, server

S = Incarnation("s1", 1)


def said(standing: str, actor: NextActor, **more: Any) -> Explanation:
    return Explanation("t.1", 0, "orders", standing, "so it is", actor, **more)


@pytest.mark.parametrize(
    ("explanation", "answers", "action"),
    [
        (said("OPEN", NextActor.NOBODY), True, Remedy.NOTHING),
        (said("PARKED", NextActor.OPERATOR, attempt=8), None, Remedy.RETRY),
        (said("CLOSED", NextActor.NOBODY, way_out=["rk region assign t.1: open it"]), None, Remedy.ASSIGN),
        (said("CLOSED", NextActor.NOBODY, way_out=["rk table enable orders: open it"]), None, Remedy.NOTHING),
        (said("CLOSING", NextActor.SERVER, server=S), True, Remedy.NOTHING),
        (said("CLOSING", NextActor.SERVER, server=S), None, Remedy.NOTHING),
        (said("CLOSING", NextActor.SERVER, server=S), False, Remedy.FENCE),
        (said("OPENING", NextActor.SERVER, server=S, overdue_ms=1), True, Remedy.FENCE),
        (said("OFFLINE", NextActor.MASTER), None, Remedy.NOTHING),
        (said("OFFLINE", NextActor.OPERATOR), None, Remedy.NOTHING),
    ],
)
def test_the_step_that_helps(explanation: Explanation, answers: bool | None, action: Remedy) -> None:
    plan = unstick(explanation, server_answers=answers)
    assert plan.action is action
    assert plan.why
    if action is not Remedy.NOTHING:
        assert plan.steps, "a preview"
        assert plan.cost
    assert (plan.server == "s1") == (action is Remedy.FENCE)


def test_the_way_back_is_named_and_leads_back() -> None:
    """N11: after a retry there is nothing to undo; a command of ours undoes an assignment and a fence."""
    parked = said("PARKED", NextActor.OPERATOR, attempt=8)
    hung = said("CLOSING", NextActor.SERVER, server=S)
    closed = said("CLOSED", NextActor.NOBODY, way_out=["rk region assign t.1: open it"])
    assert unstick(parked, server_answers=None).undo == "not needed: it is parked again if it fails again"
    for found in (unstick(hung, server_answers=False), unstick(closed, server_answers=None)):
        assert "rk unstick --undo t.1" in found.undo
    command = rk.get_command(click.Context(rk), "unstick")
    assert command is not None
    assert any("--undo" in one.opts for one in command.params), "the option exists"


def test_an_assignment_and_its_way_back_leave_the_region_as_it_was() -> None:
    """N11: `rk region unassign` restores the mark that the assignment removes, and the region is closed again."""
    cluster = ModelCluster()
    cluster.put(region(on=at("a")))
    cluster.start(server("a"), server("b"))
    cluster.set_unassigned("r1", True)
    before = (cluster.open, cluster.unassigned, cluster.regions["r1"][0].unassigned)
    assert before == ({}, {}, True)
    cluster.set_unassigned("r1", False)
    assert cluster.where() is not None
    cluster.set_unassigned("r1", True)
    assert (cluster.open, cluster.unassigned, cluster.regions["r1"][0].unassigned) == before
