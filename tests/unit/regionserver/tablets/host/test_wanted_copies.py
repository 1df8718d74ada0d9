"""For which members a leader asks for a copy, and how often."""

from __future__ import annotations

import pytest

from regions.records.members import MemberRole
from regionserver.tablets.host.envelope import Word
from regionserver.tablets.host.wanted_copies import (
    ANSWER_TICKS,
    FORGET_TICKS,
    PAUSE_TICKS,
    PAUSE_TICKS_MAX,
    WantedCopies,
)

VOTER, PRE_VOTER, LEARNER = MemberRole


@pytest.mark.parametrize("word", list(Word))
@pytest.mark.parametrize("role", list(MemberRole))
def test_which_refusals_ask_for_a_copy(word: Word, role: MemberRole) -> None:
    """A server without the replica gets a copy only as a PRE_VOTER or learner. A server with a FAILED replica or a
    tombstone gets a copy in any role, because it may still remember the votes of a voter."""
    is_copied = word in (Word.FAILED, Word.DELETED) or (
        word in (Word.DOES_NOT_EXIST, Word.OLDER) and role in (PRE_VOTER, LEARNER)
    )
    assert WantedCopies().is_due("t", 4, word, role, 100) is is_copied


def test_one_question_at_a_time_and_pauses_that_double() -> None:
    wanted = WantedCopies()
    now = 100
    pauses = []
    for _ in range(7):
        assert wanted.is_due("t", 4, Word.DOES_NOT_EXIST, PRE_VOTER, now)
        assert not wanted.is_due("t", 4, Word.DOES_NOT_EXIST, PRE_VOTER, now + 50), "the question is open"
        now += 60
        wanted.answered("t", 4, now)
        began = now
        while not wanted.is_due("t", 4, Word.DOES_NOT_EXIST, PRE_VOTER, now):
            now += 1
        pauses.append(now - began)
        wanted.answered("t", 4, now)
        now += PAUSE_TICKS_MAX
    assert pauses[0] == PAUSE_TICKS
    assert pauses == sorted(pauses)
    assert pauses[-1] == PAUSE_TICKS_MAX


def test_members_do_not_wait_for_each_other() -> None:
    wanted = WantedCopies()
    assert wanted.is_due("t", 4, Word.DOES_NOT_EXIST, PRE_VOTER, 0)
    assert wanted.is_due("t", 5, Word.DOES_NOT_EXIST, LEARNER, 0)
    assert wanted.is_due("u", 4, Word.FAILED, VOTER, 0)


def test_a_question_whose_server_is_gone_does_not_stay_open() -> None:
    wanted = WantedCopies()
    assert wanted.is_due("t", 4, Word.DOES_NOT_EXIST, PRE_VOTER, 0)
    assert not wanted.is_due("t", 4, Word.DOES_NOT_EXIST, PRE_VOTER, ANSWER_TICKS - 1)
    assert not wanted.is_due("t", 4, Word.DOES_NOT_EXIST, PRE_VOTER, ANSWER_TICKS)
    assert wanted.is_due("t", 4, Word.DOES_NOT_EXIST, PRE_VOTER, ANSWER_TICKS + PAUSE_TICKS)


def test_pauses_begin_anew_after_the_member_took_part() -> None:
    wanted = WantedCopies()
    now = 0
    for _ in range(4):
        wanted.is_due("t", 4, Word.FAILED, VOTER, now)
        wanted.answered("t", 4, now)
        now += PAUSE_TICKS_MAX
    now += FORGET_TICKS
    assert wanted.is_due("t", 4, Word.FAILED, VOTER, now)
    wanted.answered("t", 4, now)
    assert wanted.is_due("t", 4, Word.FAILED, VOTER, now + PAUSE_TICKS)


def test_an_accepted_question_stays_open_while_the_copy_is_queued() -> None:
    """The server gives the same reason for its refusals until the copy begins. More questions would only cost time."""
    wanted = WantedCopies()
    assert wanted.is_due("t", 4, Word.DOES_NOT_EXIST, PRE_VOTER, 0)
    asked = [now for now in range(1, 2 * ANSWER_TICKS) if wanted.is_due("t", 4, Word.DOES_NOT_EXIST, PRE_VOTER, now)]
    assert asked == [ANSWER_TICKS + PAUSE_TICKS], "the server may have lost its queue"


@pytest.mark.parametrize("words", [[Word.DELETED], [Word.COPYING, Word.DOES_NOT_EXIST]], ids=["ended", "ran"])
def test_a_copy_that_has_ended_without_success_is_asked_for_again_soon(words: list[Word]) -> None:
    wanted = WantedCopies()
    assert wanted.is_due("t", 4, Word.DOES_NOT_EXIST, PRE_VOTER, 0)
    for now, word in enumerate(words, 1):
        assert not wanted.is_due("t", 4, word, PRE_VOTER, now)
    assert wanted.is_due("t", 4, words[-1], PRE_VOTER, 1 + PAUSE_TICKS)
