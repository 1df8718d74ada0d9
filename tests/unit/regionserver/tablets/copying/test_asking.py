"""What a leader tells the server of a member that needs a copy."""

from __future__ import annotations

import pytest

from regions.messages.heartbeat import ReplicaState
from regions.records.members import MemberRole
from regionserver.tablets.copying.asking import CopyQuestions, seen_in
from regionserver.tablets.copying.messages import CopySource, SeenReplica
from regionserver.tablets.disk.life import RunState
from regionserver.tablets.host.wanted_copies import COPIED, CopyWanted
from regionserver.tablets.host.words import Word
from regionserver.tablets.process.replica import TabletReplica
from tests.unit.regionserver.tablets.disk.examples import TABLET, ready


def wanted(word: Word) -> CopyWanted:
    return CopyWanted(TABLET, 3, "s3", MemberRole.VOTER, 7, word, 3, 6, 117)


@pytest.mark.parametrize("word", list(COPIED))
def test_every_refusal_that_asks_for_a_copy_shows_a_replica(word: Word) -> None:
    states = {Word.FAILED: ReplicaState.FAILED, Word.DELETED: ReplicaState.TOMBSTONE, Word.OLDER: None}
    expected = None if word is Word.DOES_NOT_EXIST else SeenReplica(3, states[word], 6, 117)
    assert seen_in(wanted(word)) == expected


def test_the_leader_names_itself_as_the_source() -> None:
    replica = TabletReplica(ready(), None, RunState.RUNNING)
    questions = CopyQuestions(None, "me", ("h", 7001), {TABLET: replica})
    order = questions._order(wanted(Word.FAILED), replica)
    assert order.source == CopySource(2, "me", "h", 7001)
    assert (order.recipient, order.number, order.role, order.term) == ("s3", 3, MemberRole.VOTER, 7)
    assert (order.table, order.start_key, order.end_key, order.hash_buckets) == ("orders", "ä", "k", 4)


def test_nobody_is_asked_whose_address_is_unknown() -> None:
    questions = CopyQuestions(None, "me", ("h", 7001), {TABLET: TabletReplica(ready(), None, RunState.RUNNING)})
    answers: list[object] = []
    questions.ask(wanted(Word.FAILED)).addCallback(answers.append)
    assert answers == [None]
