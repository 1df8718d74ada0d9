"""Refused requests, summed up: a caller that repeats them must not fill log and history. Pure.

A refusal is noted at once and written with the others of its span of SPAN_S: one line for each identity, request and
reason, with the number of times. At most LINES_MAX lines are written for one span; one more line counts the rest.
"""

from __future__ import annotations

from typing import Final

#: Seconds between two summaries.
SPAN_S: Final = 1.0
#: Lines of one summary.
LINES_MAX: Final = 10


class Refusals:
    """The refusals of one process since the last summary."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        #: Refusals beyond LINES_MAX different ones.
        self._others = 0

    def note(self, text: str) -> bool:
        """Count a refusal. Return True if it is the first of its span: a summary is due SPAN_S later."""
        is_first = not self._counts
        if text in self._counts:
            self._counts[text] += 1
        elif len(self._counts) < LINES_MAX:
            self._counts[text] = 1
        else:
            self._others += 1
        return is_first

    def take(self) -> list[str]:
        """Return the lines of the summary, and begin the next span."""
        lines = [text if count == 1 else f"{text} ({count} times)" for text, count in self._counts.items()]
        if self._others:
            lines.append(f"{self._others} other refused requests")
        self._counts.clear()
        self._others = 0
        return lines
