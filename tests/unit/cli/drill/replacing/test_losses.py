"""The effects of a loss of servers on tablets, and whether their members were replaced correctly."""

from __future__ import annotations

import pytest

from cli.common.errors import CliError
from cli.drill.load import LoadOperation
from cli.drill.replacing.losses import (
    Loss,
    answered_within,
    check_replaced,
    compare,
    loss_of,
    require_copies,
    servers_needed,
    single_copies,
    stray_rows,
    unwhole,
)
from regions.records.members import Member, MemberRole
from regions.records.model import RegionRecord


def record(name: str, *uuids: str, first: int = 1, learners: tuple[str, ...] = ()) -> RegionRecord:
    members = [Member(number, uuid) for number, uuid in enumerate(uuids, first)]
    members += [Member(first + len(uuids) + n, uuid, MemberRole.LEARNER) for n, uuid in enumerate(learners)]
    return RegionRecord("t", name, members=tuple(members), next_number=first + len(members))


def records(*found: RegionRecord) -> dict[str, RegionRecord]:
    return {one.region_id: one for one in found}


BEFORE = records(record("t.0", "a", "b", "c"), record("t.1", "b", "c", "d"))


def test_a_tablet_is_served_by_a_majority_of_its_voters() -> None:
    assert loss_of(BEFORE, {"a"}) == Loss(frozenset(BEFORE), frozenset(), frozenset({"t.0"}))
    assert loss_of(BEFORE, {"a", "b"}) == Loss(frozenset({"t.1"}), frozenset({"t.0"}), frozenset(BEFORE))
    assert loss_of(BEFORE, {"a", "b", "c", "d"}).lost == BEFORE.keys()


def test_half_of_the_voters_are_no_majority_and_learners_do_not_count() -> None:
    even = records(record("t.0", "a", "b"), record("t.1", "a", "b", "c", learners=("d",)))
    assert loss_of(even, {"a"}).lost == {"t.0"}
    assert loss_of(even, {"a", "b"}).lost == even.keys()
    assert loss_of(even, {"d"}) == Loss(frozenset(even), frozenset(), frozenset({"t.1"}))


def test_single_copies_and_the_servers_that_are_needed() -> None:
    assert single_copies(records(record("t.0", "a", learners=("b",)), record("t.1", "a", "b"))) == ["t.0"]
    assert single_copies(BEFORE) == []
    assert servers_needed(BEFORE, 1) == 4
    assert servers_needed({}, 1) == 1


def test_a_loss_that_cannot_be_healed_is_refused() -> None:
    """The limit: as many servers as replicas, and those that go."""
    require_copies(BEFORE, 4, 1)
    require_copies(BEFORE, 3, 0)
    with pytest.raises(CliError, match="needs 4 region servers: 3 for each tablet's replicas, and 1 more"):
        require_copies(BEFORE, 3, 1)
    with pytest.raises(CliError, match=r"1 tablet \(t.2\) with one copy only"):
        require_copies({**BEFORE, "t.2": record("t.2", "a")}, 9, 1)


def test_tablets_are_not_whole_while_members_are_missing_or_new() -> None:
    assert unwhole(BEFORE, BEFORE, ()) == []
    assert unwhole(BEFORE, BEFORE, {"a"}) == ["t.0: member 1 is still on a"]
    few = {**BEFORE, "t.0": record("t.0", "b", "c")}
    assert unwhole(BEFORE, few, {"a"}) == ["t.0 has 2 voters of 2 members"]
    joining = {**BEFORE, "t.0": record("t.0", "b", "c", "d", learners=("e",))}
    assert unwhole(BEFORE, joining, ()) == ["t.0 has 3 voters of 4 members"]
    assert unwhole(BEFORE, {"t.1": BEFORE["t.1"]}, ()) == ["t.0 is missing"]


def test_successors_have_new_numbers() -> None:
    new = RegionRecord("t", "t.0", members=(Member(2, "b"), Member(3, "c"), Member(4, "d")), next_number=5)
    found = check_replaced(BEFORE, {**BEFORE, "t.0": new}, {"a"})
    assert found.held
    assert found.detail == "1 new member in 2 tablets"
    again = RegionRecord("t", "t.0", members=(Member(1, "d"), Member(2, "b"), Member(3, "c")), next_number=4)
    broken = check_replaced(BEFORE, {**BEFORE, "t.0": again}, {"a"})
    assert broken.examples == ["t.0: the new member on d has the former number 1"]
    assert not check_replaced(BEFORE, BEFORE, {"a"}).held
    assert check_replaced(BEFORE, BEFORE).held


def test_rows_without_a_member_are_strays() -> None:
    rows = {"a": {"t.0", "t.1", "of another table"}, "b": {"t.0", "t.1"}}
    assert stray_rows(rows, BEFORE) == ["rows of t.1 are on a, which has no member of it"]


def operation(tablet: str, began_s: float, ended_s: float, outcome: str = "ok") -> LoadOperation:
    return LoadOperation(tablet, "write", began_s, ended_s, outcome, 1)


def test_an_answer_counts_if_its_operation_lies_within_the_outage() -> None:
    operations = [
        operation("before", 0.9, 1.5),
        operation("within", 1.0, 2.0),
        operation("after", 1.5, 2.1),
        operation("failed", 1.2, 1.4, "failed"),
    ]
    assert answered_within(operations, 1.0, 2.0) == {"within"}


LOSS = Loss(frozenset({"t.1"}), frozenset({"t.0"}), frozenset({"t.0", "t.1"}))


def test_a_loss_is_as_forecast() -> None:
    served, lost = compare(LOSS, {"t.1"}, 5.0)
    assert (served.expected, served.count, served.outcome, served.agrees) == ("yes", 1, "1 of 1", True)
    assert (lost.expected, lost.count, lost.outcome, lost.agrees) == ("yes", 1, "1 of 1", True)


def test_a_silent_tablet_with_a_majority_is_not_as_forecast() -> None:
    served, lost = compare(LOSS, set(), 5.0)
    assert (served.agrees, served.outcome) == (False, "0 of 1; t.1 were not answered")
    assert lost.agrees


def test_an_answer_without_a_majority_is_not_as_forecast() -> None:
    served, lost = compare(LOSS, {"t.0", "t.1"}, 5.0)
    assert served.agrees
    assert (lost.agrees, lost.outcome) == (False, "0 of 1; t.0 were answered")


def test_without_clients_nothing_was_observed() -> None:
    assert all(one.agrees and not one.is_observed for one in compare(LOSS, None, 5.0))


def test_no_tablet_without_a_majority_is_expected_where_none_is() -> None:
    _, lost = compare(loss_of(BEFORE, {"a"}), {"t.0", "t.1"}, 5.0)
    assert (lost.expected, lost.outcome, lost.agrees) == ("no", "none", True)
