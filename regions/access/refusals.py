"""Refused requests, summed up: a caller that repeats them must not fill log and history. Pure.

A refusal is noted at once and written with the others of its span of SPAN_S: one line for each identity, request and
reason, with the number of times. At most LINES_MAX lines are written for one span. The identities take turns for these
lines, so the refusals of one identity do not hide those of another. One more line has the number of the other refusals,
and their identities.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Final

#: Seconds between two summaries.
SPAN_S: Final = 1.0
#: Lines of one summary, without the one that counts the other refusals. Different lines that are kept per identity.
LINES_MAX: Final = 10
#: Identities that are counted separately within one span.
IDENTITIES_MAX: Final = 100
#: Identities that the line about other refusals names.
_NAMES_MAX: Final = 5


class _OfOne:
    """The refusals of one identity."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        #: Refusals beyond LINES_MAX different ones.
        self.others = 0


class Refusals:
    """The refusals of one process since the last summary."""

    def __init__(self) -> None:
        self._found: dict[str, _OfOne] = {}
        #: Refusals of identities beyond IDENTITIES_MAX.
        self._others = 0

    def note(self, who: str, text: str) -> bool:
        """Count a refusal of `who`. Return True if it is the first of its span: a summary is due SPAN_S later."""
        is_first = not self._found
        found = self._found.get(who)
        if found is None:
            if len(self._found) >= IDENTITIES_MAX:
                self._others += 1
                return False
            found = self._found[who] = _OfOne()
        if text in found.counts:
            found.counts[text] += 1
        elif len(found.counts) < LINES_MAX:
            found.counts[text] = 1
        else:
            found.others += 1
        return is_first

    def take(self) -> list[str]:
        """Return the lines of the summary, and begin the next span."""
        turns = zip_longest(*([(who, *one) for one in found.counts.items()] for who, found in self._found.items()))
        noted = [one for turn in turns for one in turn if one is not None]
        lines = [text if count == 1 else f"{text} ({count} times)" for _, text, count in noted[:LINES_MAX]]
        left = {who: found.others for who, found in self._found.items()}
        for who, _, count in noted[LINES_MAX:]:
            left[who] += count
        total = sum(left.values()) + self._others
        if total:
            lines.append(f"{total} other refused requests: {_named(left, self._others)}")
        self._found.clear()
        self._others = 0
        return lines


def _named(left: dict[str, int], others: int) -> str:
    """Return who has sent how many requests, the most first."""
    most = sorted(((count, who) for who, count in left.items() if count), reverse=True)
    names = [f"{count} of {who}" for count, who in most[:_NAMES_MAX]]
    rest = sum(count for count, _ in most[_NAMES_MAX:]) + others
    return ", ".join([*names, f"{rest} of others"] if rest else names)
