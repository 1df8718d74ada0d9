"""Records of drills: the fault that was injected, the time, and the verdict. Value of `/drills/<drill_id>`.

A drill writes its record when its faults begin, and again at its end, even after an interruption. So an operator who
looks for the cause of an old outage finds the drill, and the report outlives the terminal.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec


class DrillVerdict(enum.StrEnum):
    """Result of a drill."""

    #: The record has no end: the drill runs, or its process was killed.
    UNFINISHED = "unfinished"
    HELD = "held"
    BROKEN = "broken"
    #: The drill could not be completed.
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class DrillEvent(msgspec.Struct, frozen=True, array_like=True):
    """A line that the drill printed, in seconds since the drill began."""

    at_s: float
    text: str


class DrillRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One drill on a cluster."""

    drill_id: str
    drill: str
    began_ms: int
    seed: int = 0
    #: Milliseconds since 1970; 0 before the end.
    ended_ms: int = 0
    verdict: DrillVerdict = DrillVerdict.UNFINISHED
    #: The process with the fault, and the kind of the fault.
    victim: str = ""
    action: str = ""
    #: User and host that ran the drill.
    by: str = ""
    error: str = ""
    events: tuple[DrillEvent, ...] = ()
    #: Number of events that were dropped because there were too many.
    events_dropped: int = 0
    #: The report (`cli/drill/report.py`), without the regions beyond the ones with the longest outages.
    report: dict[str, Any] | None = None
