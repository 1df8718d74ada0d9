"""Formats of the cluster: raised when all know a higher one, refused when this build does not."""

from __future__ import annotations

from regions.records.formats import FORMATS, KNOWN, UNANNOUNCED, attainable, objection


def test_formats_are_numbered_without_gaps() -> None:
    """Each says what it brought."""
    assert list(FORMATS) == list(range(1, KNOWN + 1))
    assert all(FORMATS.values())


def test_the_format_is_what_the_oldest_process_knows() -> None:
    """Who announces nothing is of a build before announcements; the format never falls, nor passes this build's."""
    assert attainable(UNANNOUNCED, [KNOWN, KNOWN]) == KNOWN
    assert attainable(UNANNOUNCED, [KNOWN, 0, KNOWN]) == UNANNOUNCED
    assert attainable(KNOWN, [KNOWN, 0]) == KNOWN
    assert attainable(UNANNOUNCED, [KNOWN + 5]) == KNOWN


def test_a_cluster_of_a_later_format_is_refused() -> None:
    """With one sentence that says what to do."""
    assert objection(KNOWN, "/cluster") == ""
    assert objection(KNOWN + 1, "/cluster") == (
        f"/cluster has format {KNOWN + 1}; this program knows formats up to {KNOWN}: start a build that knows format"
        f" {KNOWN + 1} (docs/compatibility.md)"
    )
