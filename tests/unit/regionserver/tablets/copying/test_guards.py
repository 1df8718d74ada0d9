"""StartTabletCopy: each row of its checks, alone and together with every later row; each state in each role (TC-08,
X13)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

import msgspec
import pytest

from regions.messages.heartbeat import ReplicaState
from regions.records.members import MemberRole
from regionserver.tablets.copying.guards import CHECKS, REPLACEABLE, CopyFacts, ReplicaHere, check_copy
from regionserver.tablets.copying.messages import CopyOutcome, CopySource, SeenReplica, StartTabletCopy

_S: Final = ReplicaState
_O: Final = CopyOutcome
LOCAL: Final = ReplicaHere(2, 2, _S.FAILED, 5, 4, 117, has_memory=True)
ORDER: Final = StartTabletCopy(
    "me", "t", 2, MemberRole.VOTER, 5, CopySource(9, "other", "h", 7), SeenReplica(2, _S.FAILED, 4, 117)
)
GOOD: Final = CopyFacts(ORDER, "me", LOCAL, is_copied=False, is_busy=False, has_room=True, has_space=True)

Change = Callable[[CopyFacts], CopyFacts]


def order(**changes: object) -> Change:
    return lambda facts: facts._replace(order=msgspec.structs.replace(facts.order, **changes))


def local(**changes: object) -> Change:
    def change(facts: CopyFacts) -> CopyFacts:
        assert facts.local is not None
        return facts._replace(local=facts.local._replace(**changes))  # type: ignore[arg-type]

    return change


def facts(**changes: object) -> Change:
    return lambda found: found._replace(**changes)  # type: ignore[arg-type]


#: A change that makes the row of the same place apply, and no other one.
BREAKS: Final[tuple[Change, ...]] = (
    order(recipient="another"),
    local(highest_number=3),
    facts(is_copied=True),
    order(term=4),
    order(seen=SeenReplica(2, _S.FAILED, 4, 116)),
    facts(is_busy=True),
    local(has_memory=False),
    facts(has_room=False),
    facts(has_space=False),
)


def test_a_good_order_starts() -> None:
    assert check_copy(GOOD).outcome is _O.STARTED
    assert len(BREAKS) == len(CHECKS) - 1


@pytest.mark.parametrize("at", range(len(BREAKS)))
def test_each_row_decides_alone(at: int) -> None:
    assert check_copy(BREAKS[at](GOOD)) is CHECKS[at]


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(range(len(BREAKS)), 2)))
def test_earlier_rows_decide_before_later_ones(first: int, second: int) -> None:
    assert check_copy(BREAKS[second](BREAKS[first](GOOD))) is CHECKS[first]


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        (order(source=CopySource(1, "me", "h", 7)), _O.INVALID_NAME),
        (order(source=CopySource(2, "other", "h", 7)), _O.INVALID_NAME),
        (order(term=6), _O.STARTED),
        (order(seen=None), _O.ILLEGAL_STATE),
        (order(seen=SeenReplica(1, _S.FAILED, 4, 117)), _O.ILLEGAL_STATE),
        (order(seen=SeenReplica(2, _S.RUNNING, 4, 117)), _O.ILLEGAL_STATE),
        (order(seen=SeenReplica(2, _S.FAILED, 3, 117)), _O.ILLEGAL_STATE),
        # The sender does not know how the replica fares.
        (order(seen=SeenReplica(2, None, 4, 117)), _O.STARTED),
        (order(seen=SeenReplica(2, None, 4, 118)), _O.ILLEGAL_STATE),
        (order(number=1), _O.ILLEGAL_STATE),
        # A number that is new here.
        (order(number=3), _O.AMNESIA),
        (order(number=3, role=MemberRole.PRE_VOTER), _O.STARTED),
        (order(number=3, role=MemberRole.LEARNER), _O.STARTED),
    ],
)
def test_what_an_order_names(change: Change, outcome: CopyOutcome) -> None:
    assert check_copy(change(GOOD)).outcome is outcome


@pytest.mark.parametrize("role", MemberRole)
@pytest.mark.parametrize("has_memory", [True, False])
@pytest.mark.parametrize("state", ReplicaState)
def test_every_state_in_every_role(state: ReplicaState, has_memory: bool, role: MemberRole) -> None:
    seen = SeenReplica(2, state, 4, 117)
    found = local(state=state, has_memory=has_memory)(order(seen=seen, role=role)(GOOD))
    outcome = check_copy(found).outcome
    if state is _S.COPYING:
        assert outcome is _O.ALREADY_INPROGRESS
    elif state not in REPLACEABLE:
        assert outcome is _O.ILLEGAL_STATE
    elif state is _S.LOST or (role is MemberRole.VOTER and not has_memory):
        assert outcome is _O.AMNESIA
    else:
        assert outcome is _O.STARTED


def test_a_lost_replica_looks_like_a_tombstone_to_its_leader() -> None:
    lost = local(state=_S.LOST, has_memory=False)(order(seen=SeenReplica(2, _S.TOMBSTONE, 4, 117))(GOOD))
    assert check_copy(lost).outcome is _O.AMNESIA


@pytest.mark.parametrize("role", MemberRole)
def test_a_server_that_has_nothing(role: MemberRole) -> None:
    nothing = facts(local=None)(order(seen=None, role=role)(GOOD))
    assert check_copy(nothing).outcome is (_O.AMNESIA if role is MemberRole.VOTER else _O.STARTED)
    assert check_copy(facts(local=None)(GOOD)).outcome is _O.ILLEGAL_STATE
