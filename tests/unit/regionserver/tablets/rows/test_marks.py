"""Digests at the entries at which replicas are compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from coord.raft.messages import NOOP, Entry
from regionserver.tablets.commands import PutRow
from regionserver.tablets.rows import marks
from regionserver.tablets.rows.marks import DIGEST_EVERY, MARKS_KEPT, DigestMarks
from tests.unit.regionserver.tablets.rows.rows_file import entry, opened


def test_a_commit_ends_at_every_thousandth_entry_and_at_those_that_are_asked_for() -> None:
    found = DigestMarks()
    assert found.stop_after(0) == found.stop_after(DIGEST_EVERY - 1) == DIGEST_EVERY
    found.want(7)
    found.want(5)
    assert [found.stop_after(applied) for applied in (0, 4, 5, 6, 7)] == [5, 5, 7, 7, DIGEST_EVERY]
    found.reached(5, b"five")
    assert (found.at(5), found.at(7), found.latest) == (b"five", None, 0)
    assert found.stop_after(2 * DIGEST_EVERY) == 3 * DIGEST_EVERY


def test_only_the_newest_digests_are_kept() -> None:
    found = DigestMarks()
    for number in range(1, MARKS_KEPT + 3):
        found.reached(number * DIGEST_EVERY, b"%d" % number)
    assert [index // DIGEST_EVERY for index, _ in found.known()] == list(range(3, MARKS_KEPT + 3))
    assert found.latest == (MARKS_KEPT + 2) * DIGEST_EVERY


def test_replicas_have_equal_digests_at_one_entry_however_their_rounds_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the entry has no command, and if a round passes several such entries."""
    monkeypatch.setattr(marks, "DIGEST_EVERY", 10)
    entries = [entry(index, PutRow(f"k{index % 7}", b"%d" % index)) for index in range(1, 45)]
    entries[19] = Entry(1, 20, NOOP, b"")
    whole, parts = opened(tmp_path / "whole"), opened(tmp_path / "parts")
    whole.marks.want(33)
    assert len(whole.apply(entries)) == len(entries)
    for at in range(0, len(entries), 3):
        parts.apply(entries[at : at + 3])
    assert [index for index, _ in whole.marks.known()] == [10, 20, 30, 33, 40]
    assert [one for one in whole.marks.known() if one[0] != 33] == parts.marks.known()
    assert whole.marks.latest == parts.marks.latest == 40
    assert whole.marks.at(33) not in (whole.marks.at(30), whole.marks.at(40), None)
    for rows in (whole, parts):
        rows.close()
