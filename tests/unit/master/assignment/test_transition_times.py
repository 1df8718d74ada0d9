"""Times of states and transitions, from their steps."""

from __future__ import annotations

from master.assignment.transition_times import EARLIER, TransitionTimes
from regions.cluster.history import StepLog
from regions.records.model import RegionState as S
from regions.transitions.states import Actor, Cause
from regions.transitions.steps import SeenStep


def step(at_ms: int, before: S | None, after: S | None, cause: Cause, key: str = "r.0") -> SeenStep:
    """Return a step of a replica."""
    return SeenStep(at_ms, key, Actor.MASTER, before, after, cause, "", 1, "", 0, "")


def test_a_transition_counts_by_state_and_by_the_cause_of_its_first_step() -> None:
    """The log passes steps on, one by one or several at once."""
    times, log = TransitionTimes(), StepLog(2)
    log.listener = times.take
    log.append(step(1000, None, S.OFFLINE, Cause.SERVER_DEATH))
    assert times.since_ms("r.0") == 1000
    log.extend([step(1200, S.OFFLINE, S.OPENING, Cause.OPEN_ORDER), step(3200, S.OPENING, S.OPENED, Cause.OPEN_DONE)])
    log.append(step(3000, S.OPENED, None, Cause.DONE))
    assert {name: spans.total_s for name, spans in times.states.by_name.items()} == {
        "OFFLINE": 0.2,
        "OPENING": 2.0,
        "OPENED": 0.0,  # the server's clock was ahead
    }
    assert {name: spans.total_s for name, spans in times.causes.by_name.items()} == {"server death": 2.0}
    assert times.since_ms("r.0") is None


def test_what_another_master_has_begun_has_a_cause_of_its_own() -> None:
    times = TransitionTimes()
    times.take([step(1000, None, S.OFFLINE, Cause.ASSIGN)])
    times.new_tenure()
    times.take([step(5000, S.OFFLINE, S.OPENING, Cause.OPEN_ORDER)])
    times.take([step(5500, S.OPENING, S.OPENED, Cause.OPEN_DONE)])
    times.take([step(6000, S.OPENED, None, Cause.DONE)])
    assert {name: spans.total_s for name, spans in times.causes.by_name.items()} == {EARLIER: 1.0}
    assert "OFFLINE" not in times.states.by_name
