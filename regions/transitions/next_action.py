"""The next action for a transition, given which servers are alive: server death and failover in one table.

The table is level-triggered: it does not matter whether a server died, a master took over or a watch fired. The table
maps a transition's state, and whether its source and destination are alive, to an action. The same rows serve
RF-04..RF-08, MF-04..MF-08 and the steady state (RT-16..RT-19). X1, X2, X3, X5 and X6 are rows of the table, not
exceptions in code.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from regions.records.model import Incarnation, RegionState, TransitionRecord
from regions.transitions.states import Cause


class Party(enum.IntEnum):
    """State of a transition's source or destination. A restarted server is DEAD, because it has another start code."""

    NONE = 0  #: the transition names no server
    DEAD = 1
    ALIVE = 2


class Action(enum.IntEnum):
    """The master's action for a transition."""

    WAIT = 0  #: a server works on the transition: check the deadline and repeat the order
    ORDER_OPEN = 1  #: order the destination to open
    REASSIGN = 2  #: (force) OFFLINE with a newly chosen destination
    KEEP_PLAN = 3  #: (force) OFFLINE with the destination that the transition names
    ACKNOWLEDGE = 4  #: opened: delete the znode
    PUT_DOWN = 5  #: (force) OFFLINE without a destination; the znode is deleted next, and the region stays closed
    DELETE = 6  #: delete the znode with a check of the table's intent


class NextStep(NamedTuple):
    """A row of the table: the action, the cause that makes the step legal, and the requirements it implements."""

    action: Action
    cause: Cause
    rows: str


_NONE: Final = Party.NONE
_DEAD: Final = Party.DEAD
_ALIVE: Final = Party.ALIVE
_OFFLINE: Final = RegionState.OFFLINE
_OPENING: Final = RegionState.OPENING
_OPENED: Final = RegionState.OPENED
_CLOSING: Final = RegionState.CLOSING
_CLOSED: Final = RegionState.CLOSED
_ANY: Final = (_NONE, _DEAD, _ALIVE)
_GONE: Final = (_NONE, _DEAD)

# state, sources, destinations, next step. Every combination is covered exactly once (a test counts them).
# fmt: off
_REOPEN: Final = (
    (_OFFLINE, _ANY,     (_ALIVE,), NextStep(Action.ORDER_OPEN,  Cause.OPEN_ORDER,     "MF-04 RT-17")),
    (_OFFLINE, _ANY,     (_DEAD,),  NextStep(Action.REASSIGN,    Cause.SERVER_DEATH,   "RF-04 MF-04")),
    (_OFFLINE, _ANY,     (_NONE,),  NextStep(Action.REASSIGN,    Cause.REPLAN,         "MF-04")),
    (_OPENING, _ANY,     (_ALIVE,), NextStep(Action.WAIT,        Cause.PROGRESS,       "RT-18 RF-07 MF-07")),
    (_OPENING, _ANY,     _GONE,     NextStep(Action.REASSIGN,    Cause.SERVER_DEATH,   "RF-07")),
    (_OPENED,  _ANY,     (_ALIVE,), NextStep(Action.ACKNOWLEDGE, Cause.DONE,           "RT-19 RF-08 MF-08")),
    (_OPENED,  _ANY,     _GONE,     NextStep(Action.REASSIGN,    Cause.SERVER_DEATH,   "RF-08 X5")),
    (_CLOSING, (_ALIVE,), _ANY,     NextStep(Action.WAIT,        Cause.CLOSE_DONE,     "RT-16 RF-05 MF-05 X1")),
    (_CLOSING, _GONE,    (_ALIVE,), NextStep(Action.KEEP_PLAN,   Cause.SERVER_DEATH,   "RF-05 X1")),
    (_CLOSING, _GONE,    _GONE,     NextStep(Action.REASSIGN,    Cause.SERVER_DEATH,   "RF-05")),
    (_CLOSED,  _ANY,     (_ALIVE,), NextStep(Action.KEEP_PLAN,   Cause.MOVE_CONTINUES, "RT-17 RF-06 X2")),
    (_CLOSED,  _ANY,     (_DEAD,),  NextStep(Action.REASSIGN,    Cause.SERVER_DEATH,   "RF-06")),
    (_CLOSED,  _ANY,     (_NONE,),  NextStep(Action.REASSIGN,    Cause.MOVE_CONTINUES, "MF-06")),
)
_STAY_CLOSED: Final = (
    (_OFFLINE, _ANY,     _ANY,      NextStep(Action.DELETE,      Cause.DO_NOT_REOPEN,  "X3 X6")),
    (_OPENING, _ANY,     (_ALIVE,), NextStep(Action.WAIT,        Cause.PROGRESS,       "closed once it is open")),
    (_OPENING, _ANY,     _GONE,     NextStep(Action.PUT_DOWN,    Cause.SERVER_DEATH,   "RF-07 X6")),
    (_OPENED,  _ANY,     (_ALIVE,), NextStep(Action.ACKNOWLEDGE, Cause.DONE,           "RT-19 MF-08, closed next")),
    (_OPENED,  _ANY,     _GONE,     NextStep(Action.PUT_DOWN,    Cause.SERVER_DEATH,   "RF-08 X5 X6")),
    (_CLOSING, (_ALIVE,), _ANY,     NextStep(Action.WAIT,        Cause.CLOSE_DONE,     "RT-16 MF-05 X1")),
    (_CLOSING, _GONE,    _ANY,      NextStep(Action.PUT_DOWN,    Cause.SERVER_DEATH,   "RF-05 X6")),
    (_CLOSED,  _ANY,     _ANY,      NextStep(Action.DELETE,      Cause.DO_NOT_REOPEN,  "ED-01 X3 X6")),
)
# fmt: on

Row = tuple[RegionState, tuple[Party, ...], tuple[Party, ...], NextStep]


def _expand(rows: tuple[Row, ...]) -> dict[tuple[RegionState, Party, Party], NextStep]:
    table: dict[tuple[RegionState, Party, Party], NextStep] = {}
    for state, sources, destinations, verdict in rows:
        for source in sources:
            for destination in destinations:
                assert (state, source, destination) not in table, (state, source, destination)
                table[state, source, destination] = verdict
    return table


_REOPEN_TABLE: Final = _expand(_REOPEN)
_STAY_CLOSED_TABLE: Final = _expand(_STAY_CLOSED)


def next_action(state: RegionState, source: Party, destination: Party, *, reopen: bool) -> NextStep:
    """Return the table's row. `reopen`: the table's persisted intent is to have its regions open (X6)."""
    table = _REOPEN_TABLE if reopen else _STAY_CLOSED_TABLE
    return table[state, source, destination]


def is_cluster_startup(
    holders: Collection[Incarnation], transitions: Iterable[TransitionRecord], alive: Iterable[Incarnation]
) -> bool:
    """Return True for a cluster startup, False for a failover, decided from the store alone (X7, RT-02).

    It is a startup if every server start that a region or a transition names as its holder is dead. Then no region is
    open, and deleting all transitions loses nothing. Counting servers instead would mistake "all registered before the
    master" for a failover, and "all sessions lost at once" for a startup. `holders` are the holders that regions name.
    """
    live = frozenset(alive)
    if not live:
        return True
    if not live.isdisjoint(holders):
        return False
    return not any(one.source in live or one.destination in live for one in transitions)
