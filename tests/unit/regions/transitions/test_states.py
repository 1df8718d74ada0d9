"""The transition table has exactly the rows of the design."""

from __future__ import annotations

from pathlib import Path

import pytest

from regions.records.model import RegionState
from regions.transitions.diagrams import transitions_page
from regions.transitions.states import STEPS, Actor, Cause, IllegalStep, check, is_legal, legal_successors

OFFLINE, OPENING, OPENED, CLOSING, CLOSED = (
    RegionState.OFFLINE,
    RegionState.OPENING,
    RegionState.OPENED,
    RegionState.CLOSING,
    RegionState.CLOSED,
)
SERVER_STEPS = {(None, CLOSING), (CLOSING, CLOSED), (OFFLINE, OPENING), (OPENING, OPENING), (OPENING, OPENED)}
MASTER_STEPS = (
    {(None, OFFLINE)} | {(state, OFFLINE) for state in RegionState} | {(state, None) for state in RegionState}
)


@pytest.mark.parametrize("before", [None, *RegionState])
@pytest.mark.parametrize("after", [None, *RegionState])
@pytest.mark.parametrize("actor", list(Actor))
def test_only_listed_steps_are_legal(actor: Actor, before: RegionState | None, after: RegionState | None) -> None:
    """RT-21 to RT-29: all 72 combinations."""
    allowed = (before, after) in (MASTER_STEPS if actor is Actor.MASTER else SERVER_STEPS)
    assert is_legal(actor, before, after) is allowed
    if allowed:
        check(actor, before, after)
    else:
        with pytest.raises(IllegalStep) as caught:
            check(actor, before, after, subject="r1")
        assert "r1" in str(caught.value)


def test_deleting_needs_its_cause() -> None:
    """RT-24, RT-25, X3: besides OPENED and an intended CLOSED, only a startup deletes."""
    for state in RegionState:
        assert is_legal(Actor.MASTER, state, None, Cause.DONE) is (state is OPENED)
        assert is_legal(Actor.MASTER, state, None, Cause.DO_NOT_REOPEN) is (state in (CLOSED, OFFLINE))
        assert is_legal(Actor.MASTER, state, None, Cause.STARTUP_WIPE)
        assert not is_legal(Actor.SERVER, state, None)
        assert is_legal(Actor.MASTER, state, None, Cause.ABANDONED) is (state is OFFLINE)
        assert is_legal(Actor.MASTER, state, None, Cause.NOT_A_MEMBER) is (state is CLOSED)


def test_closing_is_only_created() -> None:
    """RT-26: a node can never be transitioned to CLOSING."""
    assert [step.before for step in STEPS if step.after is CLOSING] == [None]
    assert legal_successors(CLOSING) == [OFFLINE, None, CLOSED]


def test_deadlines_force_only_what_no_live_server_holds() -> None:
    """RT-11 against X1: neither CLOSING nor OPENED is forced because of time."""
    forced = {step.before for step in STEPS if step.cause in (Cause.DEADLINE, Cause.OPEN_FAILED)}
    assert forced == {OFFLINE, OPENING}


def test_page_is_up_to_date() -> None:
    """docs/transitions.md is generated: python -m regions.transitions.diagrams > docs/transitions.md."""
    page = Path(__file__).parents[4] / "docs" / "transitions.md"
    assert page.read_text() == transitions_page()
