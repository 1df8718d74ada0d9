"""The judgment of a drill's observations: owners, locations, history; and the report."""

from __future__ import annotations

import io
import itertools

from rich.console import Console

from cli.drill.invariants import Observation, check_at_rest, check_history
from cli.drill.load import LoadOperation, Outage
from cli.drill.report import (
    EXAMPLES_MAX,
    DrillReport,
    Figure,
    check,
    percentile,
    show,
    show_summary,
    spread,
    summary,
)
from cli.drill.scenarios.server_crash import left_before
from cli.drill.target.moves import moves_of, outages
from cli.drill.traffic import STEPS_MAX, band, rejected_at_rest, unavailability
from cli.drill.writers import Writer, compare, longest_gap_s
from regions.messages import HostedReplica
from regions.records.model import (
    Incarnation,
    RegionRecord,
    RegionState,
    ReplicaLocation,
    ServerRecord,
    TransitionRecord,
)
from regions.transitions.observed import Change, History, ObservedTransition


def region(name: str, uuid: str | None = "s1") -> RegionRecord:
    """Return a region that the store has open on `uuid`."""
    return RegionRecord("t", name, replicas=(ReplicaLocation(0, uuid, 1 if uuid else None),))


def hosted(name: str, state: str = "OPEN") -> HostedReplica:
    """Return a replica as a server lists it."""
    return HostedReplica(name, "t", 0, state)


def observation(**changes: object) -> Observation:
    """Return an observation of two sound regions on two servers, with changes."""
    values: dict[str, object] = {
        "regions": [region("r1"), region("r2", "s2")],
        "open_lists": {"s1@1": [hosted("r1")], "s2@1": [hosted("r2")]},
        "transitions": [],
        "replication": {"t": 1},
    }
    return Observation(**{**values, **changes})  # type: ignore[arg-type]


def broken(seen: Observation) -> list[str]:
    """Return the names of the checks that did not hold."""
    return [one.name for one in check_at_rest(seen) if not one.held]


def test_all_well_holds() -> None:
    """Every check holds, and each names what it has checked."""
    assert broken(observation()) == []
    assert all(one.detail for one in check_at_rest(observation()))


def test_two_owners_are_found() -> None:
    """Two servers have one region open: the worst case."""
    seen = observation(open_lists={"s1@1": [hosted("r1"), hosted("r2")], "s2@1": [hosted("r2")]})
    assert broken(seen) == ["each region open on exactly one live server"]
    assert check_at_rest(seen)[0].examples == ["r2-0 is open on 2 servers s1@1, s2@1"]


def test_no_owner_is_found() -> None:
    """A replica that is still being opened does not count as open."""
    seen = observation(open_lists={"s1@1": [hosted("r1", "OPENING")], "s2@1": [hosted("r2")]})
    assert broken(seen) == ["each region open on exactly one live server"]


def test_wrong_place_stray_and_silence_are_found() -> None:
    """The store must name the server, and a server must have no other regions."""
    assert broken(observation(regions=[region("r1", "s2"), region("r2", "s2")])) == [
        "the store names the right servers"
    ]
    assert broken(observation(regions=[region("r1")])) == ["each region open on exactly one live server"]
    assert broken(observation(open_lists={"s1@1": [hosted("r1"), hosted("r2")], "s2@1": None})) != []
    assert broken(observation(transitions=["/unassigned/aa/r1-0"])) == ["no transition left"]


def test_history_must_be_legal_and_the_epoch_must_rise() -> None:
    """A failover without a new epoch did not fence the old master."""
    record = TransitionRecord("r1", "t", 0, RegionState.CLOSED, epoch=1)
    history = History()
    history.see(ObservedTransition(0, "r1-0", record, 0, 5, 5))
    names = [one.name for one in check_history(history, [(1, 2)], new_epoch_after=1) if not one.held]
    assert names == ["epochs strictly increasing, no write of a deposed master", "only legal transitions"]
    assert all(one.held for one in check_history(History(), [(1, 2), (2, 9)], new_epoch_after=1))


def test_outage_is_from_the_first_leaving_to_opened() -> None:
    """A move is CLOSING, CLOSED, OFFLINE, OPENING, OPENED; the time runs from the first step."""
    record = TransitionRecord("r1", "t", 0, RegionState.CLOSING)
    states = ["", "CLOSING", "CLOSED", "OFFLINE", "OPENING", "OPENED", ""]
    steps = enumerate(itertools.pairwise(states))
    changes = [Change(n * 100, "r1-0", before, after, record) for n, (before, after) in steps]
    assert outages(changes) == [0.4]


def test_longest_gap_is_between_neighbours() -> None:
    """The gap is in seconds."""
    assert longest_gap_s([0, 10, 510, 520]) == 0.5
    assert longest_gap_s([7]) == 0.0


def test_percentiles_are_values_that_occurred() -> None:
    """Nearest rank."""
    values = [float(n) for n in range(1, 101)]
    assert percentile(values, 0.5) == 50
    assert percentile(values, 0.99) == 99
    assert percentile([], 0.5) == 0
    assert [figure.value for figure in spread("x", [3.0, 1.0], "")] == [1.0, 3.0, 3.0]


def test_report_names_what_was_broken() -> None:
    """The number of examples is bounded, and the verdict comes last."""
    checks = [check("fine", [], "all of them"), check("bad", [f"v{n}" for n in range(9)], "")]
    report = DrillReport("store-leader", "store-1", [Figure("gap", 0.25, "s", "why")], checks, 10, 2, ["a note"])
    text = io.StringIO()
    show(report, Console(file=text, width=150))
    assert not report.held
    assert checks[1].examples == [f"v{n}" for n in range(EXAMPLES_MAX)]
    for part in ("0.25 s", "BROKEN", "bad: v0", "9 violations", "10 steps of transitions, 2 of them", "a note"):
        assert part in text.getvalue()
    assert text.getvalue().rstrip().endswith("INVARIANTS BROKEN")


def test_unavailability_is_over_the_affected_and_over_all() -> None:
    """Each region counts with its longest outage; the other regions of the table count as zero."""
    seen = unavailability([Outage("r1", 0.0, 1.0), Outage("r1", 5.0, 8.0), Outage("r2", 0.0, 0.5)], 200, 0.5)
    assert (seen.regions, seen.affected) == (200, 2)
    assert (seen.p50_s, seen.p99_s, seen.longest_s) == (0.5, 3.0, 3.0)
    assert (seen.all_p50_s, seen.all_p99_s) == (0.0, 0.0)
    worst = seen.per_region[0]
    assert (worst.region, worst.outages, worst.longest_s, worst.total_s) == ("r1", 2, 3.0, 4.0)
    assert unavailability([], 3, 0.5).longest_s == 0.0


def test_refusals_are_excused_by_a_move_since_the_last_good_answer_only() -> None:
    """A client with an old address is rejected once; a region that did not move has no excuse."""
    stale = LoadOperation("r1", "read", 5.0, 5.1, "ok", 2, "", ("not_serving",))
    good = LoadOperation("r1", "write", 1.0, 1.1, "ok", 1)
    moved = {"r1": [(102.0, 103.0)]}
    assert rejected_at_rest([stale, good], moved, 100.0) == ([], 0)
    assert len(rejected_at_rest([stale, good], {"r2": [(102.0, 103.0)]}, 100.0)[0]) == 1
    again = LoadOperation("r1", "read", 6.0, 6.1, "ok", 2, "", ("not_serving",))
    assert len(rejected_at_rest([good, stale, again], moved, 100.0)[0]) == 1


def test_regions_that_the_balancer_moved_before_the_fault_are_not_awaited() -> None:
    """A region that was moving at the fault is awaited; a region that came to the victim stays with it."""
    victim = ServerRecord("s1", "h", 1, 7)
    there, elsewhere = victim.incarnation, Incarnation("s2", 1)

    def step(region_id: str, after: str, at_ms: int, destination: Incarnation) -> Change:
        """Return a step of a region's only replica."""
        record = TransitionRecord(region_id, "t", 0, RegionState.OPENED, destination=destination)
        return Change(at_ms, f"{region_id}-0", "", after, record)

    changes = [
        step("left", "OPENED", 10, elsewhere),
        step("left", "", 20, elsewhere),
        step("moving", "OPENING", 90, elsewhere),
        step("moving", "OPENED", 110, elsewhere),
        step("came", "OPENED", 30, there),
        step("returned", "OPENED", 40, elsewhere),
        step("returned", "OPENED", 50, there),
    ]
    assert left_before(changes, victim, 100) == {"left-0"}


def test_a_move_too_quick_to_be_seen_is_a_move() -> None:
    """Only its end was observed: the znode was gone before it could be read."""
    record = TransitionRecord("r1", "t", 0, RegionState.OPENED)
    assert moves_of([Change(5000, "r1-0", "", "", record, missed=5)]) == {"r1": [(4.0, 5.0)]}
    assert moves_of([]) == {}


def test_a_move_whose_steps_were_all_seen_at_its_end_began_before_it() -> None:
    """The watcher was late and read only the last state, while a client had noticed the move before."""
    record = TransitionRecord("r1", "t", 0, RegionState.OPENED)
    way = ["CLOSING", "CLOSED", "OFFLINE", "OPENING", "OPENED"]
    changes = [
        Change(5000, "r1-0", before, after, record, inferred=after != "OPENED")
        for before, after in itertools.pairwise(["", *way])
    ]
    assert moves_of(changes) == {"r1": [(4.0, 5.0)]}
    met = LoadOperation("r1", "write", 4.7, 4.75, "ok", 2, "", ("not_serving",))
    assert rejected_at_rest([met], moves_of(changes), 0.0) == ([], 0)


def test_a_move_first_seen_when_it_opens_again_is_a_move() -> None:
    """Several legal paths lead from nothing to OPENING in that many steps, so the unobserved steps are not printed."""
    opening, opened = (TransitionRecord("r1", "t", 0, state) for state in (RegionState.OPENING, RegionState.OPENED))
    history = History()
    history.see(ObservedTransition(5000, "r1-0", opening, 3, czxid=1, mzxid=4))
    history.see(ObservedTransition(5200, "r1-0", opened, 4, czxid=1, mzxid=5))
    assert [(one.after, one.missed) for one in history.changes] == [("OPENING", 3), ("OPENED", 0)]
    assert moves_of(history.changes) == {"r1": [(4.0, 5.2)]}


def test_slowness_is_no_refusal() -> None:
    """A busy machine makes requests slow, but no region unavailable."""
    slow = LoadOperation("r1", "read", 5.0, 5.9, "ok", 1)
    late = LoadOperation("r1", "read", 6.0, 7.9, "ok", 2, "", ("timeout",))
    failed = LoadOperation("r1", "read", 8.0, 8.9, "failed", 2, "no answer", ("timeout",))
    refused, count = rejected_at_rest([slow, late, failed], {}, 0.0)
    assert count == 2
    assert len(refused) == 1
    assert "no answer" in refused[0]


def test_store_writes_are_lost_or_there_twice_by_their_names() -> None:
    """The number of the write is in the name, and the store adds another number to each copy."""
    writer = Writer.__new__(Writer)
    writer.acked = {0: "w-0000000-0000000000", 1: "w-0000001-0000000001"}
    children = ["w-0000001-0000000001", "w-0000001-0000000002", "w-0000002-0000000003"]
    assert compare([writer], children) == (["w-0000000-0000000000"], [("w-0000001", 2)])


def test_summary_spreads_each_figure_over_the_runs_and_names_the_broken() -> None:
    """A run that was not carried out does not count as a success."""
    bad = check("no store write lost", ["w"], "")
    runs = [
        DrillReport("store-leader", "store-1", [Figure("gap", value, "s", "why")], checks, 1, 0, seed=seed)
        for seed, (value, checks) in enumerate([(0.5, []), (0.1, [bad]), (0.3, [])])
    ]
    found = summary(runs)[0]
    assert (found.name, found.smallest, found.median, found.largest) == ("gap", 0.1, 0.3, 0.5)
    text = io.StringIO()
    show_summary(runs, 4, Console(file=text, width=150))
    for part in ("3 of 4 runs", "BROKEN with --seed 1 (store-1): no store write lost", "1 runs did not take place"):
        assert part in text.getvalue()


def test_the_band_counts_the_regions_that_are_away_at_once() -> None:
    """Outages that meet, overlap and lie apart; an empty one counts nowhere."""
    assert band([(1.0, 3.0), (2.0, 4.0), (4.0, 5.0), (8.0, 9.0), (6.0, 6.0)]) == [
        (1.0, 1),
        (2.0, 2),
        (3.0, 1),
        (4.0, 1),
        (5.0, 0),
        (8.0, 1),
        (9.0, 0),
    ]
    assert band([]) == []


def test_a_long_band_keeps_its_highest_number_and_its_end() -> None:
    """A record of a drill has room for STEPS_MAX steps."""
    spans = [(float(n), n + 0.5) for n in range(2 * STEPS_MAX)] + [(700.0, 700.2), (700.0, 700.1)]
    found = band(spans)
    assert len(found) <= STEPS_MAX
    assert max(number for _, number in found) == 3
    assert found[-1][1] == 0
