"""Intents about members: when each has ended, and what is refused."""

from __future__ import annotations

import msgspec
import pytest

from regions.records.intents import TabletIntents, TabletMove
from regions.records.members import Member, MemberRole, Storage
from regions.records.model import RegionRecord, ServerRecord, TableRecord, TabletState
from regions.records.znodes import CorruptZnode, Layout, decode_intents, encode
from regions.replication.config import first_members
from regions.replication.policy import intents
from regions.replication.policy.intents import IntentProgress
from regions.replication.policy.next_change import CHECKS, as_markdown
from regions.replication.policy.situation import outage_of
from tests.support.sources import ROOT

TABLE = TableRecord("t", "orders", replication=3, storage=Storage.TABLET)
REGION = RegionRecord("t", "r", state=TabletState.RUNNING, members=first_members("abc"), next_number=9)
NONE = TabletIntents("t", "r")
MOVE = TabletMove("c", "d")
VOTER, PRE_VOTER, LEARNER = MemberRole.VOTER, MemberRole.PRE_VOTER, MemberRole.LEARNER


def servers(names: str) -> dict[str, ServerRecord]:
    """Return registered servers that take tablets."""
    return {uuid: ServerRecord(uuid, uuid, 1, 1, kind="kv/1", tablets=True) for uuid in names}


@pytest.mark.parametrize(
    ("added", "gone", "expected"),
    [
        (None, "", IntentProgress.OPEN),
        (PRE_VOTER, "", IntentProgress.OPEN),
        (VOTER, "", IntentProgress.OPEN),
        (VOTER, "c", IntentProgress.DONE),
        (PRE_VOTER, "c", IntentProgress.OPEN),
        # The source failed, and another newcomer has taken its place.
        (None, "c", IntentProgress.VOID),
    ],
)
def test_a_move_ends_with_a_voter_there_and_none_here(
    added: MemberRole | None, gone: str, expected: IntentProgress
) -> None:
    members = [one for one in REGION.members if one.uuid != gone]
    members += [Member(4, "d", added)] if added is not None else []
    found = intents.standing_of(MOVE, members)
    assert found.progress is expected
    assert found.why
    kept = intents.with_move(NONE, MOVE)
    left = intents.remaining(kept, members)
    assert (left is kept) is (expected is IntentProgress.OPEN)
    assert left.is_empty is (expected is not IntentProgress.OPEN)


def test_a_source_has_one_move() -> None:
    """The later one counts; learners are kept beside it."""
    kept = intents.with_move(TabletIntents("t", "r", (TabletMove("c", "e"),), ("f",)), MOVE)
    assert kept == TabletIntents("t", "r", (MOVE,), ("f",))
    assert not intents.remaining(kept, [Member(4, "d")]).is_empty


@pytest.mark.parametrize(
    ("move", "kept", "expected"),
    [
        (MOVE, NONE, ""),
        (TabletMove("d", "e"), NONE, "d has no member"),
        (TabletMove("c", "b"), NONE, "b has a member of the tablet already"),
        (TabletMove("c", "x"), NONE, "x is not registered"),
        (TabletMove("c", "e"), NONE, "e takes no members of this table"),
        (TabletMove("b", "d"), intents.with_move(NONE, MOVE), "is moving to d already"),
    ],
)
def test_a_move_that_cannot_come_true_is_refused(move: TabletMove, kept: TabletIntents, expected: str) -> None:
    found = intents.objection_to_move(REGION, TABLE, servers("abcde"), {"e"}, kept, move)
    assert (expected in found) if expected else not found


def test_only_voters_are_moved() -> None:
    more = msgspec.structs.replace(REGION, members=(*REGION.members, Member(4, "d", LEARNER)))
    assert "only voters are moved" in intents.objection_to_move(
        more, TABLE, servers("abcde"), (), NONE, TabletMove("d", "e")
    )


def test_a_count_needs_servers() -> None:
    """TC-20. Fewer replicas are always possible."""
    there = servers("abcde").values()
    assert intents.objection_to_new_count(TABLE, 5, there, ()) == ""
    assert "4 can be used" in intents.objection_to_new_count(TABLE, 5, there, {"e"})
    assert "odd number" in intents.objection_to_new_count(TABLE, 4, there, ())
    assert intents.objection_to_new_count(TABLE, 1, [], ()) == ""


def test_a_server_is_retired_if_the_others_suffice() -> None:
    """TC-21. It is empty when no configuration names it."""
    assert intents.objection_to_retired("a", [TABLE], servers("abcd").values(), ()) == ""
    found = intents.objection_to_retired("a", [TABLE], servers("abc").values(), ())
    assert "only 2 servers can have one" in found
    shared = msgspec.structs.replace(TABLE, storage=Storage.SHARED)
    assert intents.objection_to_retired("a", [shared], servers("a").values(), ()) == ""
    assert (intents.left_on("a", [REGION, REGION]), intents.left_on("d", [REGION])) == (2, 0)


def test_the_record_of_a_tablet() -> None:
    """The record is decoded from its znode unchanged; damage is reported."""
    kept = TabletIntents("t", "r", (MOVE,), ("f",))
    assert decode_intents(encode(kept)) == kept
    assert Layout("/x").tablet_intents("r") == "/x/intents/r"
    with pytest.raises(CorruptZnode):
        decode_intents(b"{}")


@pytest.mark.parametrize(
    ("gone", "registered", "retiring", "stops"),
    [("c", "ab", "", False), ("cd", "abef", "", False), ("cd", "abe", "", True), ("cd", "abe", "d", False)],
)
def test_an_outage_is_more_than_a_third(gone: str, registered: str, retiring: str, stops: bool) -> None:
    """Exactly a third is replaced. A retired server is gone for good."""
    loads = {**dict.fromkeys(gone + registered, 2), "long ago": 0}
    assert bool(outage_of(loads, registered, retiring)) is stops


def test_the_page_has_the_checks() -> None:
    """docs/tablets.md shows the table that decides."""
    assert all(one.when and one.answer for one in CHECKS)
    assert as_markdown() in (ROOT / "docs" / "tablets.md").read_text("utf-8")
