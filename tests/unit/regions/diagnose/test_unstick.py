"""N11: which step helps a stuck replica, and that one which goes on by itself is left alone."""

from __future__ import annotations

from typing import Any

import pytest

from regions.diagnose.unstick import Remedy, unstick
from regions.messages import Explanation, NextActor
from regions.records.model import Incarnation

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
        assert plan.undo
    assert (plan.server == "s1") == (action is Remedy.FENCE)
