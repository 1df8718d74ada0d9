"""The life cycle as a table."""

from __future__ import annotations

import pytest

from coord.errors import InvalidTransition
from regionserver.replica.orders import ORDERS, Treatment
from regionserver.replica.states import HELD, LIFE, MOVES, Event, Phase
from tests.unit.regionserver.replica.support import KEY, Run


def test_each_phase_is_reached_and_left() -> None:
    """Every phase can be left, and every phase can be reached."""
    for phase in Phase:
        assert any(row.after is phase for row in LIFE)
        assert any(row.before is phase and row.after is not phase for row in LIFE)


def test_a_move_outside_the_table_is_refused_with_the_story() -> None:
    """The error names the replica and its history."""
    run = Run().until_open()
    replica = run.replicas._replicas[KEY]
    with pytest.raises(InvalidTransition, match=r"r1-0.*(?s:.*)open ordered"):
        run.replicas._advance(replica, Event.CLOSED, 1)


def test_a_phase_is_entered_and_left_as_the_opener_holds_it() -> None:
    """The guard of each row agrees with the condition of the phase that it leads to."""
    for row in LIFE:
        held = None if row.after is None else HELD.get(row.after)
        assert held is None or row.held in (held, None), row


def test_each_phase_has_a_treatment_for_every_order() -> None:
    """An order begins work only if MOVES has a row for the phase and the order."""
    assert set(ORDERS) == set(Phase)
    for phase, treatments in ORDERS.items():
        assert (treatments.other_open is Treatment.BEGIN) == ((phase, Event.OPEN_ORDERED, True) in MOVES)
        assert (treatments.close is Treatment.BEGIN) == ((phase, Event.CLOSE_ORDERED, True) in MOVES)
