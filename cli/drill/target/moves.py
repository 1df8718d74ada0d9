"""Times at which regions were not open, from the observed steps of their transitions. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cli.drill.traffic import Span
from regions.records.replica_key import parse_replica_key
from regions.transitions.observed import NONE, Change

#: A step is observed at most this much later than it happened; a move with unobserved steps took no longer.
SEEN_LATE_MS: Final = 1000


def spans(changes: list[Change]) -> Iterator[tuple[str, int, int]]:
    """Yield (replica, from, to) in ms for each time a replica was not open: from leaving its server to OPENED."""
    began: dict[str, int] = {}
    for change in changes:
        if change.after in ("CLOSING", "CLOSED", "OFFLINE", "OPENING"):
            began.setdefault(change.key, change.at_ms)
        elif change.after in ("OPENED", NONE) and change.key in began:
            yield change.key, began.pop(change.key), change.at_ms


def moves_of(changes: list[Change]) -> dict[str, list[Span]]:
    """Return when each region was moving, in seconds; each span begins early, because steps are observed late."""
    seen = [(key, start_ms, end_ms) for key, start_ms, end_ms in spans(changes)]
    unseen = [
        (change.key, change.at_ms, change.at_ms)
        for change in changes
        if change.missed and change.after in ("OPENED", NONE)
    ]
    found: dict[str, list[Span]] = {}
    for key, start_ms, end_ms in seen + unseen:
        found.setdefault(parse_replica_key(key)[0], []).append(((start_ms - SEEN_LATE_MS) / 1000, end_ms / 1000))
    return found


def outages(changes: list[Change]) -> list[float]:
    """Return the seconds for which replicas were not open, one value per outage."""
    return [(end_ms - start_ms) / 1000 for _, start_ms, end_ms in spans(changes)]
