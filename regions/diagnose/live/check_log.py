"""Time and result of the latest run of each check of the auditor. Pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

import msgspec

#: Findings of one check that are kept, the latest ones.
FINDINGS_MAX: Final = 10


class AuditCheck(enum.StrEnum):
    """The checks, in the words of the page."""

    OWNERS = "every server's own list of regions against the store"
    DOUBTS = "owners of the regions that were on their way or in doubt"
    COPY = "this master's copy of the regions against the store, a slice at a time"
    KEYS = "the key space of the tables: each key in one region, a slice at a time"


class CheckFinding(msgspec.Struct, frozen=True):
    """Result and time of a check."""

    at_ms: int
    text: str


class CheckFigure(msgspec.Struct):
    """One check. `at_ms` is 0 before the first run."""

    name: str
    at_ms: int = 0
    times: int = 0
    #: All findings of this auditor's session, and the latest ones.
    found: int = 0
    findings: list[CheckFinding] = []


class CheckLog:
    """All checks of one auditor."""

    def __init__(self) -> None:
        self._figures = {check: CheckFigure(check.value) for check in AuditCheck}

    def note(self, check: AuditCheck, at_ms: int, texts: Sequence[str]) -> None:
        """Record that a check, or a slice of one, was made, with its result."""
        figure = self._figures[check]
        figure.at_ms, figure.times, figure.found = at_ms, figure.times + 1, figure.found + len(texts)
        if texts:
            new = [CheckFinding(at_ms, text) for text in texts[-FINDINGS_MAX:]]
            figure.findings = [*figure.findings, *new][-FINDINGS_MAX:]

    def figures(self) -> list[CheckFigure]:
        """Return all checks, also those that were not made."""
        return list(self._figures.values())
