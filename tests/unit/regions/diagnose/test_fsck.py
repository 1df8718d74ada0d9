"""The checker: every kind of damage is planted once; steps in progress are not damage; fixes are legal steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from regions.diagnose.fsck import (
    LATE_MS,
    OF_TABLETS,
    WARNINGS,
    ClusterView,
    Finding,
    FixKind,
    FoundTransition,
    Problem,
    check,
    confirmed,
)
from regions.messages import HostedReplica
from regions.records.kinds import TABLETS_ALONE
from regions.records.model import (
    DirectoryRecord,
    Incarnation,
    RegionRecord,
    RegionState,
    ReplicaLocation,
    ServerRecord,
    TableIntent,
    TableRecord,
    TableState,
    TransitionRecord,
)
from regions.records.znodes import Layout
from regions.transitions.states import Actor, Cause, is_legal

A = Incarnation("a", 1)
B = Incarnation("b", 1)
NOW = 10_000_000
LAYOUT = Layout("/rk")


def hosted(region_id: str, state: str = "OPEN") -> HostedReplica:
    return HostedReplica(region_id, "t", 0, state, token=7)


def healthy() -> ClusterView:
    """Return two servers and one table of three regions: two open on a, one on b."""
    regions = []
    for name, start, end, home in (("t.1", "", "g", A), ("t.2", "g", "p", A), ("t.3", "p", "", B)):
        location = ReplicaLocation(0, home.uuid, home.start_code, token=7)
        regions.append(RegionRecord("t", name, start, end, replicas=(location,)))
    return ClusterView(
        tables=[TableRecord("t", "orders")],
        regions={"t": regions},
        servers=[ServerRecord("a", "host-a", 1, 1), ServerRecord("b", "host-b", 1, 1)],
        lists={"a": [hosted("t.1"), hosted("t.2")], "b": [hosted("t.3")]},
        names={"orders": "t"},
        directories={"kv": DirectoryRecord("one")},
        used_directories={"a": "one", "b": "one"},
        now_ms=NOW,
        root="/rk",
    )


def change(view: ClusterView, number: int, **fields: Any) -> None:
    view.regions["t"][number] = msgspec.structs.replace(view.regions["t"][number], **fields)


def replicated(view: ClusterView) -> TableRecord:
    """Return the table with a second replica of each region, all open."""
    for number, region in enumerate(view.regions["t"]):
        other = B if region.replicas[0].uuid == "a" else A
        second = ReplicaLocation(1, other.uuid, other.start_code)
        change(view, number, replicas=(*region.replicas, second))
        view.lists[other.uuid].append(msgspec.structs.replace(hosted(region.region_id), replica=1))
    return msgspec.structs.replace(view.tables[0], replication=2)


def transition(
    view: ClusterView,
    state: str,
    *,
    name: str = "t.1",
    number: int = 0,
    path: str = "",
    version: int = 2,
    **fields: Any,
) -> None:
    """Return a transition, with both servers named unless the test says otherwise."""
    given: dict[str, Any] = {"source": A, "destination": B, "deadline_ms": NOW, **fields}
    record = TransitionRecord(name, "t", number, RegionState(state), **given)
    view.transitions.append(FoundTransition(path or LAYOUT.transition(name, number), record, version))


def _disable(view: ClusterView) -> None:
    view.tables[0] = msgspec.structs.replace(view.tables[0], intent=TableIntent.DISABLED)


def _left_behind(view: ClusterView, state: str) -> None:
    """Plant a table that is deleted and finished, with the transition of a region whose server is dead."""
    _lose_server_a(view)
    view.tables[0] = msgspec.structs.replace(view.tables[0], state=TableState.REMOVED, finished_ms=7)
    view.names.clear()
    view.lists["b"] = []
    transition(view, state, destination=None, deadline_ms=0)


def _no_lists_of_a(view: ClusterView) -> None:
    view.lists["a"] = None


def _no_shared_directory(view: ClusterView) -> None:
    """Plant servers that were restarted without a shared directory: the regions are not open; each waits in OFFLINE."""
    view.servers[:] = [msgspec.structs.replace(one, kind=TABLETS_ALONE) for one in view.servers]


def _corrupt_region(view: ClusterView) -> None:
    """Plant a corrupt region record: its transition exists, and its server has it open."""
    view.regions["t"].pop(2)
    view.unreadable.append((LAYOUT.region("t", "t.3"), "no JSON"))
    transition(view, "OFFLINE", name="t.3")


def _corrupt_table(view: ClusterView) -> None:
    view.tables.clear()
    view.unreadable.append((LAYOUT.table("t"), "no JSON"))
    transition(view, "CLOSED", name="t.3", source=Incarnation("dead", 1))


def _lose_server_a(view: ClusterView) -> None:
    view.servers = view.servers[1:]
    del view.lists["a"]


Damage = Callable[[ClusterView], object]

DAMAGES: list[tuple[str, Damage, list[tuple[Problem, str]]]] = [
    ("a region deleted", lambda v: v.regions["t"].pop(1),
     [(Problem.HOLE, "orders:g"), (Problem.UNKNOWN_REGION, "t.2-0")]),
    ("the first region begins late", lambda v: change(v, 0, start_key="b"), [(Problem.HOLE, "orders:")]),
    ("the last region ends", lambda v: change(v, 2, end_key="x"), [(Problem.HOLE, "orders:x")]),
    ("a region begins early", lambda v: change(v, 1, start_key="c"), [(Problem.OVERLAP, "t.2")]),
    ("a region has no end", lambda v: change(v, 0, end_key=""), [(Problem.OVERLAP, "t.2"), (Problem.OVERLAP, "t.3")]),
    ("open twice", lambda v: v.lists["b"].append(hosted("t.1")), [(Problem.SEVERAL_OWNERS, "t.1-0")]),
    ("lost by its server", lambda v: v.lists["a"].pop(0), [(Problem.NO_OWNER, "t.1-0")]),
    ("failed on its server", lambda v: v.lists.update(a=[hosted("t.1", "FAILED"), hosted("t.2")]),
     [(Problem.NO_OWNER, "t.1-0")]),
    ("on another server", lambda v: v.lists.update(a=[hosted("t.2")], b=[hosted("t.3"), hosted("t.1")]),
     [(Problem.ELSEWHERE, "t.1-0")]),
    ("its server died, nobody noticed", _lose_server_a, [(Problem.NO_OWNER, "t.1-0"), (Problem.NO_OWNER, "t.2-0")]),
    ("never assigned, yet open", lambda v: change(v, 0, replicas=()), [(Problem.ELSEWHERE, "t.1-0")]),
    ("open though disabled", _disable,
     [(Problem.NOT_CLOSED, "t.1-0"), (Problem.NOT_CLOSED, "t.2-0"), (Problem.NOT_CLOSED, "t.3-0")]),
    ("open though unassigned", lambda v: change(v, 0, unassigned=True), [(Problem.NOT_CLOSED, "t.1-0")]),
    ("another shared directory", lambda v: v.used_directories.update(a="one", b="other"),
     [(Problem.OTHER_DIRECTORY, "b")]),
    ("another opening", lambda v: v.lists["b"].append(msgspec.structs.replace(v.lists["b"].pop(), token=6)),
     [(Problem.OTHER_OPENING, "t.3-0")]),
    ("unknown to the store", lambda v: v.lists["b"].append(hosted("x.1")), [(Problem.UNKNOWN_REGION, "x.1-0")]),
    ("orphan", lambda v: transition(v, "OFFLINE", name="x.1"), [(Problem.ORPHAN_TRANSITION, "x.1-0")]),
    ("closing, of a table that is no more", lambda v: _left_behind(v, "CLOSING"),
     [(Problem.ORPHAN_TRANSITION, "t.1-0")]),
    ("closed, of a table that is no more", lambda v: _left_behind(v, "CLOSED"),
     [(Problem.ORPHAN_TRANSITION, "t.1-0")]),
    ("a replica too many", lambda v: transition(v, "OFFLINE", number=1), [(Problem.ORPHAN_TRANSITION, "t.1-1")]),
    ("misplaced", lambda v: transition(v, "CLOSED", path="/rk/unassigned/00/t.1-0"),
     [(Problem.MISPLACED_TRANSITION, "/rk/unassigned/00/t.1-0")]),
    ("parked", lambda v: transition(v, "OFFLINE", parked=True, attempt=8), [(Problem.PARKED, "t.1-0")]),
    ("late", lambda v: transition(v, "OPENING", deadline_ms=NOW - LATE_MS - 1), [(Problem.LATE, "t.1-0")]),
    ("silent", _no_lists_of_a, [(Problem.SILENT_SERVER, "a")]),
    ("a name without a table", lambda v: v.names.update(other="y"), [(Problem.HALF_TABLE, "other")]),
    ("regions without a table", lambda v: v.regions.update(y=[]), [(Problem.HALF_TABLE, "y")]),
    ("a table without a name", lambda v: v.names.clear(), [(Problem.NAMELESS, "orders")]),
    ("a table by another name", lambda v: (v.names.clear(), v.names.update(old="t")), [(Problem.NAMELESS, "orders")]),
    ("a table without regions", lambda v: (v.regions.clear(), v.lists.update(a=[], b=[])), [(Problem.HOLE, "orders")]),
    ("nonsense in a znode", lambda v: v.unreadable.append(("/rk/tables/t", "no JSON")),
     [(Problem.UNREADABLE, "/rk/tables/t")]),
    ("nonsense in a region", _corrupt_region,
     [(Problem.UNREADABLE, "/rk/regions/t/t.3"), (Problem.HOLE, "orders:p")]),
    ("nonsense in a table", _corrupt_table,
     [(Problem.UNREADABLE, "/rk/tables/t"), (Problem.HALF_TABLE, "orders"), (Problem.HALF_TABLE, "t")]),
    ("files of no table", lambda v: v.on_disk.extend(["t", "zz"]), [(Problem.LEFTOVER, "zz")]),
    ("replicas of one copy", lambda v: v.tables.__setitem__(0, replicated(v)), [(Problem.ONE_COPY, "orders")]),
    ("servers without a shared directory", _no_shared_directory, [(Problem.NO_SHARED_DIRECTORY, "orders")]),
    ("no master", lambda v: setattr(v, "has_master", False), [(Problem.NO_MASTER, "")]),
]  # fmt: skip


def test_nothing_is_mended_where_a_record_cannot_be_understood() -> None:
    """Otherwise its server would be fenced and its transition deleted, as if the region did not exist."""
    for spoil in (_corrupt_region, _corrupt_table):
        view = healthy()
        spoil(view)
        assert [one.problem for one in check(view) if one.fix is not None] == []


def found(view: ClusterView) -> list[tuple[str, str]]:
    return [(one.problem, one.subject) for one in check(view)]


def test_nothing_is_wrong_with_a_healthy_cluster() -> None:
    """`rk fsck`: no findings and exit status 0."""
    assert check(healthy()) == []


@pytest.mark.parametrize(("damage", "expected"), [row[1:] for row in DAMAGES], ids=[row[0] for row in DAMAGES])
def test_each_damage_is_found_and_nothing_else(damage: Damage, expected: list[tuple[Problem, str]]) -> None:
    """N5: holes, overlaps, two owners, no owner, orphans, unknown regions."""
    view = healthy()
    damage(view)
    assert found(view) == [(problem.value, subject) for problem, subject in expected]
    for one in check(view):
        assert one.is_warning == (one.problem in WARNINGS)
        assert one.text


def test_every_kind_of_problem_is_planted_somewhere() -> None:
    """The table above has every kind except UNATTENDED, which has its own test, and tablets, which are in
    test_fsck_tablets.py."""
    planted = {problem for _, _, expected in DAMAGES for problem, _ in expected}
    # Servers report damaged rows only to `rk fsck --deep`.
    # Access lists are compared by `cli.diagnose.access_lists`.
    assert planted == set(Problem) - {Problem.UNATTENDED, Problem.DAMAGED, Problem.ACCESS} - OF_TABLETS


@pytest.mark.parametrize("state", list(RegionState))
def test_what_is_under_way_is_no_damage(state: RegionState) -> None:
    """A moving region is not open for a while, and the store's location is its last one."""
    view = healthy()
    transition(view, state.value)
    view.lists["a"] = [hosted("t.2")]
    assert check(view) == []
    late = healthy()
    transition(late, "OPENING", deadline_ms=NOW - LATE_MS)
    assert check(late) == [], "at the bound, not beyond"


def test_a_transition_that_waits_for_a_master_is_told_when_there_is_none() -> None:
    """Without a master a server at work continues; everything else waits."""
    view = healthy()
    view.has_master = False
    transition(view, "CLOSED")
    transition(view, "OPENING", name="t.2")
    transition(view, "OFFLINE", name="t.3", destination=None)
    unattended = [subject for problem, subject in found(view) if problem == Problem.UNATTENDED]
    assert unattended == ["t.1-0", "t.3-0"]


def test_only_what_two_looks_find_is_reported() -> None:
    """A step between two reads looks like damage only once."""
    damaged = healthy()
    damaged.lists["a"] = [hosted("t.2")]
    assert confirmed(check(damaged), check(healthy())) == []
    again = check(damaged)
    assert confirmed(check(damaged), again) == again


DEAD = Incarnation("a", 0)


@pytest.mark.parametrize(
    ("state", "source", "destination", "kind"),
    [
        ("OFFLINE", None, A, FixKind.DELETE),
        ("CLOSED", A, None, FixKind.DELETE),
        ("OPENING", None, DEAD, FixKind.PUT_DOWN),
        ("OPENED", None, DEAD, FixKind.PUT_DOWN),
        ("CLOSING", DEAD, None, FixKind.PUT_DOWN),
        ("OPENING", None, A, None),
        ("OPENED", None, A, None),
        ("CLOSING", A, None, None),
    ],
)
def test_an_orphan_is_ended_by_legal_steps_only(
    state: str, source: Incarnation | None, destination: Incarnation | None, kind: FixKind | None
) -> None:
    """RT-21, N11: each proposed step is in the table; no step is proposed while a live server is at work."""
    view = healthy()
    transition(view, state, name="x.1", source=source, destination=destination, version=7)
    [finding] = check(view)
    if kind is None:
        assert finding.fix is None
        return
    fix = finding.fix
    assert fix is not None
    assert (fix.kind, fix.path, fix.version) == (kind, LAYOUT.transition("x.1", 0), 7)
    after = RegionState(fix.after) if fix.after else None
    assert is_legal(Actor.MASTER, RegionState(fix.before), after, Cause(fix.cause))


def _fix_of(view: ClusterView) -> Any:
    [finding] = check(view)
    return finding.fix


def test_two_owners_are_settled_by_fencing_the_one_that_the_store_does_not_name() -> None:
    """RF-01: its registration is deleted, it closes everything, and its regions are assigned anew; the preview has
    their number."""
    view = healthy()
    view.lists["b"].append(hosted("t.1"))  # type: ignore[union-attr]
    fix = _fix_of(view)
    assert (fix.kind, fix.server, fix.path) == (FixKind.FENCE, "b", LAYOUT.fence_mark("b"))
    assert "2 regions" in fix.preview
    lost = healthy()
    lost.lists["a"] = [hosted("t.2")]
    assert _fix_of(lost).server == "a"
    without = healthy()
    without.has_master = False
    without.lists["a"] = [hosted("t.2")]
    assert [one.fix for one in check(without)] == [None, None], "nobody would assign them anew"


def test_a_parked_region_is_fixed_by_asking_the_master() -> None:
    """X11, N11."""
    view = healthy()
    transition(view, "OFFLINE", parked=True)
    fix = _fix_of(view)
    assert (fix.kind, fix.region_id, fix.replica) == (FixKind.RETRY, "t.1", 0)
    assert "version 2" in fix.preview


def test_findings_are_ordered_by_what_is_worst() -> None:
    view = healthy()
    transition(view, "OFFLINE", parked=True, name="t.3")
    view.regions["t"].pop(1)
    kinds = [one.problem for one in check(view)]
    assert kinds == [Problem.HOLE, Problem.UNKNOWN_REGION, Problem.PARKED]
    assert isinstance(check(view)[0], Finding)
