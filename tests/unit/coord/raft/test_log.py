"""The log's arithmetic, compared with a plain list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coord.raft.log import RaftLog
from coord.raft.membership import Configuration
from coord.raft.messages import NORMAL, Entry, RaftSnapshot, bootstrap

START = bootstrap([1, 2, 3])


def some_log(terms: list[int], first: int = 1) -> list[Entry]:
    """Return entries with these terms, from index `first` on."""
    return [Entry(term, first + i, NORMAL, b"%d" % (first + i)) for i, term in enumerate(terms)]


def meta(index: int, term: int) -> RaftSnapshot:
    """Return a snapshot at that position."""
    return RaftSnapshot(index, term, Configuration([1, 2, 3]))


TERMS = st.lists(st.integers(1, 4), min_size=0, max_size=10).map(sorted)


@given(TERMS, st.integers(0, 10))
def test_term_at_is_the_lists_and_unknown_outside(terms: list[int], compacted: int) -> None:
    """After a compaction only the last dropped position is known."""
    log = RaftLog(START, some_log(terms))
    compacted = min(compacted, log.last)
    log.commit_to(log.last)
    log.applying = log.last
    log.snapshot = meta(compacted, ([0, *terms])[compacted])
    log.compact(compacted)
    for index in range(14):
        known = compacted <= index <= len(terms)
        assert log.term_at(index) == (([0, *terms])[index] if known else -1)


@given(TERMS, TERMS, st.integers(0, 10))
def test_first_difference_is_where_terms_part(mine: list[int], theirs: list[int], matched: int) -> None:
    """Only a real difference counts, so a shorter append finds none."""
    matched = min(matched, len(mine), len(theirs))
    theirs = mine[:matched] + [max(t, mine[matched - 1] if matched else 1) for t in theirs[matched:]]
    if not theirs:
        return
    expected = next(
        (i for i, term in enumerate(theirs) if i >= len(mine) or mine[i] != term),
        len(theirs),
    )
    assert RaftLog(START, some_log(mine)).first_difference(some_log(theirs)) == expected


@given(TERMS, TERMS)
def test_the_hint_never_skips_the_place_where_the_logs_agree(mine: list[int], theirs: list[int]) -> None:
    """For two logs with a common prefix each hint is at or above its end, and the search ends there (Raft §5.3)."""
    common = 0
    while common < min(len(mine), len(theirs)) and mine[common] == theirs[common]:
        common += 1
    leader, follower = RaftLog(START, some_log(mine)), RaftLog(START, some_log(theirs))
    previous = leader.last
    for _ in range(30):
        if follower.term_at(previous) == leader.term_at(previous) and previous <= common:
            break
        index, term = follower.find_conflict_by_term(previous, leader.term_at(previous))
        index, _ = leader.find_conflict_by_term(index, term)
        assert common <= index
        assert index < previous or follower.term_at(previous) == leader.term_at(previous)
        previous = min(previous - 1, index)
    assert previous == common or mine[:previous] == theirs[:previous]


@given(TERMS, st.integers(1, 12), st.integers(0, 30))
def test_a_portion_fits_or_is_a_single_entry(terms: list[int], first: int, room: int) -> None:
    """Bytes are bounded, but progress is guaranteed."""
    log = RaftLog(START, some_log(terms))
    if first > log.last + 1:
        return
    portion = log.entries_from(first, room)
    assert [entry.index for entry in portion] == list(range(first, first + len(portion)))
    assert sum(len(entry.data) for entry in portion) <= room or len(portion) == 1
    assert portion or first == log.last + 1


def test_a_committed_entry_is_never_truncated() -> None:
    """The assertion stops the node."""
    log = RaftLog(START, some_log([1, 1, 1]))
    log.commit_to(2)
    with pytest.raises(AssertionError, match="committed up to 2"):
        log.truncate(2)
    log.truncate(3)
    assert log.last == 2


def test_commit_beyond_the_log_stops_the_node() -> None:
    """A missing entry cannot be committed."""
    with pytest.raises(AssertionError, match="beyond the end"):
        RaftLog(START, some_log([1])).commit_to(2)


@pytest.mark.parametrize(
    ("snapshot", "terms", "first", "expected"),
    [
        (meta(3, 2), [], 1, (3, 2, 3)),  # nothing but the snapshot
        (meta(3, 2), [2, 2], 4, (3, 2, 5)),  # continues it
        (meta(3, 2), [1, 1, 2, 2], 1, (0, 0, 4)),  # the whole log is still there
        (meta(3, 2), [1, 2, 2], 2, (2, 1, 4)),  # part of it: the first entry only marks the position
        (meta(3, 2), [1, 1], 1, (3, 2, 3)),  # ends before the snapshot
        (meta(3, 2), [1, 1, 1, 1], 1, (3, 2, 3)),  # disagrees with the snapshot, which replaces the log
    ],
)
def test_what_a_restart_makes_of_snapshot_and_log(
    snapshot: RaftSnapshot, terms: list[int], first: int, expected: tuple[int, int, int]
) -> None:
    """(offset, its term, last) after a crash at any point of installing or saving a snapshot."""
    log = RaftLog(snapshot, some_log(terms, first))
    assert (log.offset, log.offset_term, log.last) == expected
    assert log.commit == log.applying == snapshot.index
    assert log.stable == log.persisting == log.last


def test_a_hole_between_snapshot_and_log_is_refused() -> None:
    """Entries are missing: a crash cannot leave this state."""
    with pytest.raises(AssertionError, match="gap between the snapshot at 3 and the log from 5"):
        RaftLog(meta(3, 2), some_log([2, 2], 5))


@pytest.mark.parametrize(
    ("entries_max", "bytes_max", "kept"),
    [(10, 10, 4), (3, 10, 3), (0, 10, 0), (10, 2, 2), (10, 1, 1), (10, 0, 0), (4, 4, 4)],
)
def test_what_is_kept_for_slow_peers_is_bounded_twice(entries_max: int, bytes_max: int, kept: int) -> None:
    """Of the four entries of one byte up to the snapshot; later ones do not count."""
    log = RaftLog(START, some_log([1, 1, 1, 1, 1, 1]))
    assert log.floor(4, entries_max, bytes_max) == 4 - kept
    log.commit_to(6)
    log.applying = 6
    log.snapshot = meta(4, 1)
    log.compact(2)
    assert log.floor(4, entries_max, bytes_max) == 4 - min(kept, 2)
