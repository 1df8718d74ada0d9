"""Liveness between servers: each reason for which a peer server counts as gone, reported once."""

from __future__ import annotations

import pytest

from regionserver.tablets.host.beats import BEAT_TICKS, SILENCE_TICKS, Beats


@pytest.fixture
def beats() -> Beats:
    """Return a server that knows one peer."""
    beats = Beats()
    assert beats.introduced("peer", 5) is False
    return beats


def test_a_silent_peer_is_gone(beats: Beats) -> None:
    beats.beat("peer", 1, disk_answers=True)
    assert [beats.tick() for _ in range(SILENCE_TICKS)] == [[]] * (SILENCE_TICKS - 1) + [["peer"]]
    assert not beats.is_there("peer")
    assert [beats.tick() for _ in range(SILENCE_TICKS)] == [[]] * SILENCE_TICKS
    beats.beat("peer", 2, disk_answers=True)
    assert beats.is_there("peer")


def test_beats_end_the_silence(beats: Beats) -> None:
    for number in range(1, 20):
        beats.beat("peer", number, disk_answers=True)
        assert [beats.tick() for _ in range(SILENCE_TICKS - 1)] == [[]] * (SILENCE_TICKS - 1)


def test_a_peer_is_gone_when_its_connection_breaks(beats: Beats) -> None:
    assert not beats.lost("peer", 4)
    assert not beats.lost("nobody", 5)
    assert beats.lost("peer", 5)
    assert not beats.lost("peer", 5)
    assert not beats.is_there("peer")


def test_a_new_start_code_ends_the_former_process(beats: Beats) -> None:
    assert beats.introduced("peer", 5) is False
    assert beats.introduced("peer", 6) is True
    assert beats.is_there("peer")
    assert beats.introduced("peer", 5) is None, "a process that was replaced"


def test_numbers_of_beats_begin_anew_with_a_process(beats: Beats) -> None:
    beats.beat("peer", 100, disk_answers=True)
    beats.introduced("peer", 6)
    assert beats.lost("peer", 6)
    beats.beat("peer", 1, disk_answers=True)
    assert beats.is_there("peer")


def test_a_peer_whose_disk_does_not_answer_is_gone(beats: Beats) -> None:
    assert not beats.beat("peer", 1, disk_answers=True)
    assert beats.beat("peer", 2, disk_answers=False)
    assert not beats.is_there("peer")
    assert not beats.beat("peer", 3, disk_answers=False)
    assert not beats.beat("peer", 4, disk_answers=True)
    assert beats.is_there("peer")


def test_beats_are_sent_at_every_second_tick() -> None:
    beats = Beats()
    due = []
    for _ in range(3 * BEAT_TICKS):
        beats.tick()
        due.append(beats.is_due())
    assert due == [False, True] * 3


def test_an_absence_lasts_until_the_server_is_back(beats: Beats) -> None:
    """Tried: without the removal in `_is_back` the servers stay absent."""
    beats.expected("never seen")
    beats.lost("peer", 5)
    beats.tick()
    assert beats.absences(1) == {"never seen", "peer"}
    assert beats.absences(2) == frozenset()
    beats.beat("peer", 1, disk_answers=True)
    beats.introduced("never seen", 1)
    assert beats.absences(0) == frozenset()
    assert beats.take_returned() == ["peer", "peer", "never seen"], "`peer` was new at first"
    assert beats.take_returned() == []
