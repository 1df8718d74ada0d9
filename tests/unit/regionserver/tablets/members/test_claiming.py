"""Claims of new numbers for copies, against a store in memory."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from coord.env_os import OsClock
from regions.records import znodes
from regions.records.members import Member, MemberRole
from regions.records.model import Incarnation, RegionRecord, RegionState, TransitionRecord
from regionserver.metrics import Metrics
from regionserver.tablets.members.claiming import NewMember, StoreClaims, objection
from regionserver.tablets.orders import TabletOrders
from tests.unit.regionserver.replica.memory_store import PATHS, FakeReactor, MemoryStore

ME = Incarnation("me", 7)
LATER = Incarnation("me", 8)
GIVEN = TransitionRecord(
    "r1", "t", 4, RegionState.OFFLINE, destination=ME, epoch=4, since_ms=1_000, deadline_ms=601_000,
    joins=MemberRole.PRE_VOTER,
)  # fmt: skip
PATH = PATHS.transition("r1", 4)


@pytest.mark.parametrize(
    ("changes", "may_begin_again", "why"),
    [
        ({}, False, ""),
        ({"state": RegionState.OPENING}, True, ""),
        ({"begun": True}, True, ""),
        ({"state": RegionState.OPENING}, False, "begun before"),
        ({"begun": True}, False, "begun before"),
        ({"destination": LATER}, True, "is given to"),
        ({"destination": None}, True, "given to no server"),
        ({"joins": None}, True, "first replica"),
        ({"state": RegionState.OPENED}, True, "OPENED already"),
    ],
)
def test_a_number_begins_only_here_and_only_once(changes: dict[str, Any], may_begin_again: bool, why: str) -> None:
    """A number that was begun may have been complete, and may have voted."""
    found = objection(replace(GIVEN, **changes), ME, may_begin_again=may_begin_again)
    assert found.find(why) >= 0 if why else not found, found


def test_a_number_without_a_transition_does_not_begin() -> None:
    assert "no transition" in objection(None, ME, may_begin_again=True)


class StoreClaimsTest(SynchronousTestCase):
    """The server `me` with its store."""

    def setUp(self) -> None:
        self.reactor = FakeReactor()
        self.store = MemoryStore()
        self.orders = TabletOrders(self.reactor, OsClock(), lambda: None, PATHS, Metrics(), self.fail)
        self.orders.begin(ME, self.store)
        self.claims = StoreClaims(lambda: self.orders.steps, OsClock())
        region = RegionRecord("t", "r1", members=(Member(1, "you"),), next_number=5)
        self.store.znodes[PATHS.region("t", "r1")] = (znodes.encode(region), 5)
        self.put(GIVEN)

    def put(self, record: TransitionRecord) -> None:
        self.store.znodes[PATH] = (znodes.encode(record), 3)

    def found(self) -> tuple[TransitionRecord, int]:
        data, version = self.store.znodes[PATH]
        return znodes.decode_transition(data), version

    def claim(self, *, has_superblock: bool = False) -> Deferred[str]:
        return self.claims.claim(NewMember("r1", "t", 4, has_superblock))

    def run_store(self, **how: bool) -> None:
        for _ in range(4):
            self.reactor.advance(0.2)
            self.store.let_through(**how)
            self.reactor.advance(0)

    def test_opening_is_in_the_store_before_the_answer(self) -> None:
        answer = self.claim()
        self.reactor.advance(0)
        self.assertNoResult(answer)
        self.run_store()
        assert self.successResultOf(answer) == ""
        record, version = self.found()
        assert (record.state, record.destination, version) == (RegionState.OPENING, ME, 4)
        assert record.deadline_ms - record.since_ms == 600_000
        assert len(record.took) == 1

    def test_a_claim_that_another_step_overtook_is_lost(self) -> None:
        """The master gave the number up between the read and the write (FW-07)."""
        answer = self.claim()
        self.reactor.advance(0)
        self.store.znodes[PATH] = (znodes.encode(replace(GIVEN, destination=None, begun=True)), 4)
        self.run_store()
        assert "the transition is OFFLINE" in self.successResultOf(answer)

    def test_a_transition_that_ended_meanwhile_is_lost(self) -> None:
        answer = self.claim()
        self.reactor.advance(0)
        del self.store.znodes[PATH]
        self.run_store()
        assert "the transition is gone" in self.successResultOf(answer)

    def test_a_lost_reply_is_read_back(self) -> None:
        answer = self.claim()
        self.reactor.advance(0)
        self.store.let_through(lose_answers=True)
        self.run_store()
        assert self.successResultOf(answer) == ""
        assert self.found()[0].state is RegionState.OPENING

    def test_an_unfinished_copy_begins_again(self) -> None:
        """In the process that began it; in a later one only if its superblock is there."""
        self.claim()
        self.run_store()
        again = self.claim()
        assert self.successResultOf(again) == ""
        other = StoreClaims(lambda: self.orders.steps, OsClock())
        assert "begun before" in self.successResultOf(other.claim(NewMember("r1", "t", 4, has_superblock=False)))
        assert self.successResultOf(other.claim(NewMember("r1", "t", 4, has_superblock=True))) == ""

    def test_a_complete_copy_never_begins_again(self) -> None:
        self.claim()
        self.run_store()
        self.claims.made("r1", 4)
        assert "begun before" in self.successResultOf(self.claim())

    def test_without_a_session_no_number_begins(self) -> None:
        answer = self.claim()
        self.reactor.advance(0)
        self.orders.end()
        assert "session" in self.successResultOf(answer)
        assert "no session" in self.successResultOf(self.claim())

    def test_progress_is_written(self) -> None:
        self.claim()
        self.run_store()
        done = self.claims.progressed(NewMember("r1", "t", 4, has_superblock=True))
        self.run_store()
        self.successResultOf(done)
        record, version = self.found()
        assert (record.state, len(record.took), version) == (RegionState.OPENING, 2, 5)

    def test_there_is_no_progress_without_a_claim(self) -> None:
        """A FAILED voter is copied under its number, without a transition."""
        for record in (GIVEN, replace(GIVEN, state=RegionState.OPENED), None):
            if record is None:
                del self.store.znodes[PATH]
            else:
                self.put(record)
            self.successResultOf(self.claims.progressed(NewMember("r1", "t", 4, has_superblock=True)))
            self.run_store()
            assert PATH not in self.store.znodes or self.found()[1] == 3
