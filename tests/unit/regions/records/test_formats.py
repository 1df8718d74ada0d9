"""Formats of the cluster: raised when all processes know a higher one, rejected if this build does not know it."""

from __future__ import annotations

from regions.records.formats import FORMATS, KNOWN, UNANNOUNCED, attainable, objection


def test_formats_are_numbered_without_gaps() -> None:
    """Each has a description."""
    assert list(FORMATS) == list(range(1, KNOWN + 1))
    assert all(FORMATS.values())


def test_the_format_is_what_the_oldest_process_knows() -> None:
    """A process that announces nothing counts as a build before announcements; the format never falls, nor exceeds this
    build's."""
    assert attainable(UNANNOUNCED, [KNOWN, KNOWN]) == KNOWN
    assert attainable(UNANNOUNCED, [KNOWN, 0, KNOWN]) == UNANNOUNCED
    assert attainable(KNOWN, [KNOWN, 0]) == KNOWN
    assert attainable(UNANNOUNCED, [KNOWN + 5]) == KNOWN


def test_a_cluster_of_a_later_format_is_refused() -> None:
    """One sentence names the remedy."""
    assert objection(KNOWN, "/cluster") == ""
    assert objection(KNOWN + 1, "/cluster") == (
        f"/cluster has format {KNOWN + 1}; this program knows formats up to {KNOWN}: start a build that knows format"
        f" {KNOWN + 1} (docs/compatibility.md)"
    )
