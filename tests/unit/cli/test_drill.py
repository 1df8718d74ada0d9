"""Judging what a drill saw: owners, locations, history; and the report."""

from __future__ import annotations

import io
import itertools

from rich.console import Console

from cli.drill.invariants import Observation, judge, judge_history
from cli.drill.report import EXAMPLES_MAX, Figure, Report, check, percentile, show, spread
from cli.drill.run import outages
from cli.drill.store_leader import longest_gap_s
from regions.messages import HostedReplica
from regions.model import RegionRecord, RegionState, ReplicaLocation, TransitionRecord
from regions.sights import Change, History, Sight


def region(name: str, uuid: str | None = "s1") -> RegionRecord:
    """A region that the store says is open on `uuid`."""
    return RegionRecord("t", name, replicas=(ReplicaLocation(0, uuid, 1 if uuid else None),))


def hosted(name: str, state: str = "OPEN") -> HostedReplica:
    """A replica as a server lists it."""
    return HostedReplica(name, "t", 0, state)


def observation(**changes: object) -> Observation:
    """Two regions on two servers, all well, with changes."""
    values: dict[str, object] = {
        "regions": [region("r1"), region("r2", "s2")],
        "open_lists": {"s1@1": [hosted("r1")], "s2@1": [hosted("r2")]},
        "transitions": [],
        "replication": {"t": 1},
    }
    return Observation(**{**values, **changes})  # type: ignore[arg-type]


def broken(seen: Observation) -> list[str]:
    """Names of the checks that did not hold."""
    return [one.name for one in judge(seen) if not one.held]


def test_all_well_holds() -> None:
    """Every check, and each says what it looked at."""
    assert broken(observation()) == []
    assert all(one.detail for one in judge(observation()))


def test_two_owners_are_found() -> None:
    """The worst that can happen."""
    seen = observation(open_lists={"s1@1": [hosted("r1"), hosted("r2")], "s2@1": [hosted("r2")]})
    assert broken(seen) == ["each region open on exactly one live server"]
    assert judge(seen)[0].examples == ["r2-0 is open on 2 servers s1@1, s2@1"]


def test_no_owner_is_found() -> None:
    """A replica that is only being opened is not open."""
    seen = observation(open_lists={"s1@1": [hosted("r1", "OPENING")], "s2@1": [hosted("r2")]})
    assert broken(seen) == ["each region open on exactly one live server"]


def test_wrong_place_stray_and_silence_are_found() -> None:
    """The store must name the server, and a server must have nothing besides."""
    assert broken(observation(regions=[region("r1", "s2"), region("r2", "s2")])) == ["the store knows where"]
    assert broken(observation(regions=[region("r1")])) == ["each region open on exactly one live server"]
    assert broken(observation(open_lists={"s1@1": [hosted("r1"), hosted("r2")], "s2@1": None})) != []
    assert broken(observation(transitions=["/unassigned/aa/r1-0"])) == ["no transition left"]


def test_history_must_be_legal_and_the_epoch_must_rise() -> None:
    """A failover without a new epoch is one that did not fence."""
    record = TransitionRecord("r1", "t", 0, RegionState.CLOSED, epoch=1)
    history = History()
    history.see(Sight(0, "r1-0", record, 0, 5, 5))
    names = [one.name for one in judge_history(history, [(1, 2)], new_epoch_after=1) if not one.held]
    assert names == ["epochs strictly increasing, no write of a deposed master", "only legal transitions"]
    assert all(one.held for one in judge_history(History(), [(1, 2), (2, 9)], new_epoch_after=1))


def test_outage_is_from_the_first_leaving_to_opened() -> None:
    """A move is CLOSING, CLOSED, OFFLINE, OPENING, OPENED; the time runs from the first."""
    record = TransitionRecord("r1", "t", 0, RegionState.CLOSING)
    states = ["", "CLOSING", "CLOSED", "OFFLINE", "OPENING", "OPENED", ""]
    steps = enumerate(itertools.pairwise(states))
    changes = [Change(n * 100, "r1-0", before, after, record) for n, (before, after) in steps]
    assert outages(changes) == [0.4]


def test_longest_gap_is_between_neighbours() -> None:
    """In seconds."""
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
    """With a bounded number of examples, and the verdict last."""
    checks = [check("fine", [], "all of them"), check("bad", [f"v{n}" for n in range(9)], "")]
    report = Report("store-leader", "store-1", [Figure("gap", 0.25, "s", "why")], checks, 10, 2, ["a note"])
    text = io.StringIO()
    show(report, Console(file=text, width=150))
    assert not report.held
    assert checks[1].examples == [f"v{n}" for n in range(EXAMPLES_MAX)]
    for part in ("0.25 s", "BROKEN", "bad: v0", "9 violations", "10 steps, 2 of them", "a note"):
        assert part in text.getvalue()
    assert text.getvalue().rstrip().endswith("INVARIANTS BROKEN")
