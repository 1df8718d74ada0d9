"""The legal steps of a transition znode, as data. Every write below `/unassigned` is checked by `check` first.

(none) --OFFLINE--> OPENING --> OPENED --> (deleted)
(none) --CLOSING--> CLOSED --> OFFLINE ...       a move continues
                    CLOSED --> (deleted)         the intent is: do not reopen

There is no create-or-update (RT-21): a step is a create, or a set or delete that names the version that was read,
so of several writers exactly one succeeds (RT-30). A step also has a *cause*. Callers pass the cause if they know
it, because some steps are legal for one cause only: X1 forbids forcing a CLOSING region OFFLINE while its source is
alive.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from coord import errors
from regions.records.model import RegionState


class Actor(enum.StrEnum):
    """The writer of a step."""

    MASTER = "master"
    SERVER = "server"


class Cause(enum.StrEnum):
    """The reason for a step."""

    ASSIGN = "assign"  #: cluster startup, create, enable, a new replica
    SERVER_DEATH = "server death"  #: the server that the transition or location depends on is gone
    DEADLINE = "deadline"  #: the destination did not proceed in time
    OPEN_FAILED = "open failed"  #: the destination reported that it could not open the region
    REPLAN = "replan"  #: another destination before any server began to open
    MOVE_CONTINUES = "move continues"
    DONE = "done"
    DO_NOT_REOPEN = "do not reopen"
    REPLACED = "replaced"  #: Other regions took its place: it was never opened in time, or was split or merged.
    STARTUP_WIPE = "startup wipe"
    CLOSE_ORDER = "close order"
    CLOSE_DONE = "close done"
    OPEN_ORDER = "open order"
    PROGRESS = "progress"
    OPEN_DONE = "open done"
    DAMAGED = "damaged"  #: closed because its rows are damaged: parked
    ABANDONED = "abandoned"  #: of a tablet: the configuration lacks the member that was to be added
    NOT_A_MEMBER = "not a member"  #: of a tablet: the configuration has lost the member


class Step(NamedTuple):
    """One legal step; `before` None: no znode yet, `after` None: the znode is deleted."""

    rows: str
    actor: Actor
    before: RegionState | None
    after: RegionState | None
    cause: Cause
    when: str


_M: Final = Actor.MASTER
_S: Final = Actor.SERVER
_OFFLINE: Final = RegionState.OFFLINE
_OPENING: Final = RegionState.OPENING
_OPENED: Final = RegionState.OPENED
_CLOSING: Final = RegionState.CLOSING
_CLOSED: Final = RegionState.CLOSED

# fmt: off
STEPS: Final[tuple[Step, ...]] = (
    #    rows          actor  before    after     cause                when
    Step("RT-08 RT-22", _M,   None,     _OFFLINE, Cause.ASSIGN,         "startup, create, enable, new replica"),
    Step("RF-03",       _M,   None,     _OFFLINE, Cause.SERVER_DEATH,   "the server that had it open died"),
    Step("RT-23 RF-04", _M,   _OFFLINE, _OFFLINE, Cause.SERVER_DEATH,   "the destination died before it began"),
    Step("RT-23 RF-05", _M,   _CLOSING, _OFFLINE, Cause.SERVER_DEATH,   "the source died; never while it lives (X1)"),
    Step("RT-23 RF-06", _M,   _CLOSED,  _OFFLINE, Cause.SERVER_DEATH,   "the destination of the move died"),
    Step("RT-23 RF-07", _M,   _OPENING, _OFFLINE, Cause.SERVER_DEATH,   "the destination died while opening"),
    Step("RT-23 RF-08", _M,   _OPENED,  _OFFLINE, Cause.SERVER_DEATH,   "the destination died after opening (X5)"),
    Step("RT-11",       _M,   _OFFLINE, _OFFLINE, Cause.DEADLINE,       "the destination never began"),
    Step("RT-11",       _M,   _OPENING, _OFFLINE, Cause.DEADLINE,       "the destination did not finish in time"),
    Step("X11",         _M,   _OFFLINE, _OFFLINE, Cause.OPEN_FAILED,    "the destination refused or failed at once"),
    Step("X11",         _M,   _OPENING, _OFFLINE, Cause.OPEN_FAILED,    "the destination reported a failed open"),
    Step("MF-04",       _M,   _OFFLINE, _OFFLINE, Cause.REPLAN,         "failover, retry of a parked region, new plan"),
    Step("X2 MF-06",    _M,   _CLOSED,  _OFFLINE, Cause.MOVE_CONTINUES, "move continues; destination in the payload"),
    Step("X11",         _M,   _CLOSED,  _OFFLINE, Cause.DAMAGED,        "its rows are damaged: parked"),
    Step("RT-24 MF-08", _M,   _OPENED,  None,     Cause.DONE,           "open: the transition is over"),
    Step("X3 ED-01",    _M,   _CLOSED,  None,     Cause.DO_NOT_REOPEN,  "with a check of the persisted intent"),
    Step("X3",          _M,   _OFFLINE, None,     Cause.DO_NOT_REOPEN,  "disabled before any server began to open"),
    Step("DD-03",       _M,   _OFFLINE, None,     Cause.REPLACED,       "never opened, split or merged; same multi"),
    Step("X11",         _M,   _CLOSED,  None,     Cause.REPLACED,       "split or merged; same multi: daughters"),
    Step("FW-07",       _M,   _OPENING, _OFFLINE, Cause.ABANDONED,      "the tablet's leader removed the new member"),
    Step("FW-07",       _M,   _OFFLINE, None,     Cause.ABANDONED,      "the new member is not needed any more"),
    Step("FN-03 FW-09", _M,   _CLOSED,  None,     Cause.NOT_A_MEMBER,   "a removed replica is closed"),
    Step("RT-04 RT-25", _M,   _OFFLINE, None,     Cause.STARTUP_WIPE,   "cluster startup, before any assignment"),
    Step("RT-04 RT-25", _M,   _OPENING, None,     Cause.STARTUP_WIPE,   "cluster startup, before any assignment"),
    Step("RT-04 RT-25", _M,   _OPENED,  None,     Cause.STARTUP_WIPE,   "cluster startup, before any assignment"),
    Step("RT-04 RT-25", _M,   _CLOSING, None,     Cause.STARTUP_WIPE,   "cluster startup, before any assignment"),
    Step("RT-04 RT-25", _M,   _CLOSED,  None,     Cause.STARTUP_WIPE,   "cluster startup, before any assignment"),
    Step("RT-16 RT-26", _S,   None,     _CLOSING, Cause.CLOSE_ORDER,    "answer to CLOSE; created, never set"),
    Step("RT-16 RT-27", _S,   _CLOSING, _CLOSED,  Cause.CLOSE_DONE,     "closed"),
    Step("RT-18 RT-28", _S,   _OFFLINE, _OPENING, Cause.OPEN_ORDER,     "answer to OPEN, only the named destination"),
    Step("X11",         _S,   _OPENING, _OPENING, Cause.PROGRESS,       "progress: extends the deadline"),
    Step("RT-18 RT-29", _S,   _OPENING, _OPENED,  Cause.OPEN_DONE,      "open; same multi writes the location"),
)
# fmt: on

#: Causes that are legal only for a number that the tablet's configuration lacks. The multi that takes such a step
#: checks the region's record, whose members must not contain the number.
RESTS_ON_MEMBERS: Final = frozenset({Cause.ABANDONED, Cause.NOT_A_MEMBER})

_LEGAL: Final = frozenset((step.actor, step.before, step.after) for step in STEPS)
#: The steps of the table: actor, states before and after, cause.
LEGAL_BECAUSE: Final = frozenset((step.actor, step.before, step.after, step.cause) for step in STEPS)


class IllegalStep(errors.InvalidTransition):
    """Raised for a step that is not in the table. Nothing has been written."""

    def __init__(
        self,
        actor: Actor,
        before: RegionState | None,
        after: RegionState | None,
        cause: Cause | None = None,
        subject: str = "",
    ) -> None:
        because = f" because of {cause.value}" if cause is not None else ""
        super().__init__(subject or "a region", _name(before), f"{actor.value} writing {_name(after)}{because}")
        self.actor = actor
        self.before = before
        self.after = after
        self.cause = cause


def is_legal(actor: Actor, before: RegionState | None, after: RegionState | None, cause: Cause | None = None) -> bool:
    """Return True if the table has the step. Without a cause, any row with the three values counts."""
    if cause is None:
        return (actor, before, after) in _LEGAL
    return (actor, before, after, cause) in LEGAL_BECAUSE


def check(
    actor: Actor,
    before: RegionState | None,
    after: RegionState | None,
    cause: Cause | None = None,
    *,
    subject: str = "",
) -> None:
    """Check that a step is legal.

    Raises:
        InvalidTransition: the table lacks the row; the message names `subject` (a region).
    """
    if (actor, before, after, cause) not in LEGAL_BECAUSE and not is_legal(actor, before, after, cause):
        raise IllegalStep(actor, before, after, cause, subject)


def legal_successors(before: RegionState | None) -> list[RegionState | None]:
    """Return the states (None: deleted) that any actor may write after `before`, in the table's order, without
    repeats."""
    found: list[RegionState | None] = []
    for step in STEPS:
        if step.before == before and step.after not in found:
            found.append(step.after)
    return found


def _name(state: RegionState | None) -> str:
    return "(none)" if state is None else state.value


def as_markdown() -> str:
    """Return the table as the first part of docs/transitions.md (`regions/transitions/diagrams.py`)."""
    lines = [
        "# Legal steps of a transition znode",
        "",
        "Generated from `regions/transitions/states.py`; every writer below `/unassigned` checks against that table.",
        "",
        "| rows | who | from | to | cause | when |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for step in STEPS:
        after = "(deleted)" if step.after is None else step.after.value
        words = (step.rows, step.actor.value, _name(step.before), after, step.cause.value, step.when)
        lines.append(f"| {' | '.join(words)} |")
    return "\n".join(lines) + "\n"
