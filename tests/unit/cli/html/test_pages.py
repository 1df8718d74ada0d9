"""Reports as files: escaped, closed, without scripts, and nothing is loaded from elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.pages import write_page
from cli.common.errors import CliError
from cli.drill.records.page import DrillRun, page, timeline
from cli.drill.report import (
    DrillPhase,
    DrillReport,
    Figure,
    ForecastOutcome,
    InvariantCheck,
    RegionOutage,
    Traffic,
    Unavailability,
)
from cli.html.curves import Series, curves
from cli.html.pages import render, write
from regions.records.acts.drills import DrillEvent
from tests.support.markup import check_report

EVIL = "<script>alert('x')</script>"


def _report(*, held: bool = True) -> DrillReport:
    seen = Unavailability(
        40, 1, 2.0, 2.0, 2.0, 0.0, 2.0, 0.1, [RegionOutage(EVIL, 1, 2.0, 2.0)], band=[(0.5, 1), (1.0, 4), (2.5, 0)]
    )
    return DrillReport(
        drill="server-crash",
        victim=EVIL,
        figures=[Figure("noticed", 0.4, "s", EVIL)],
        checks=[InvariantCheck("one owner", held, "4 regions", [] if held else [EVIL])],
        transitions=12,
        steps_unseen=0,
        notes=[EVIL],
        seconds=20.0,
        struck_s=5.0,
        phases=[DrillPhase("load", 0.0, 5.0), DrillPhase("crash", 5.0, 15.0)],
        traffic=Traffic(20.0, {"write ok": 4}, 4, 0, 0, 1.0, 9.0, seen),
        forecast=[ForecastOutcome(EVIL, "yes", 0.0, None, 1, "", True, True, "happened")],
    )


def test_the_band_stands_where_its_outages_were() -> None:
    """1,000 pixels are 20 seconds; the band begins 0.5 s after the fault, and is highest where 4 regions are away."""
    found = timeline(DrillRun(_report(), (DrillEvent(10.0, "killed"),)))
    assert [(one.x, one.width, one.height) for one in found.steps] == [(275.0, 25.0, 18.0), (300.0, 75.0, 72.0)]
    assert (found.most, found.struck_x, found.events) == (4, 250.0, ((500.0, "10.0 s: killed"),))
    assert [(x, width) for x, _, width, _, _ in found.phases] == [(0.0, 250.0), (250.0, 750.0)]


@pytest.mark.parametrize("requested", [1, 3])
def test_a_page_of_a_drill_shows_names_as_text(requested: int) -> None:
    """A report of one run and of several, held and broken."""
    runs = [DrillRun(_report(), (DrillEvent(0.1, EVIL),)), DrillRun(_report(held=False))][:requested]
    text = page(runs, requested)
    check_report(text)
    assert EVIL not in text
    assert "&lt;script&gt;" in text
    assert ("of 3 runs took place" in text) == (requested == 3)


def test_a_drill_without_clients_has_no_band() -> None:
    """The time line says so."""
    report = _report()
    report.traffic = None
    text = page([DrillRun(report)], 1)
    check_report(text)
    assert "no clients ran" in text


def test_a_page_of_runs_says_when_nothing_was_recorded() -> None:
    """And draws the phases otherwise, also phases that took no time."""
    check_report(render("runs.html", title="Runs", runs=[], more=0))
    one = {
        "when": "now",
        "kind": "failover",
        "epoch": 2,
        "master": EVIL,
        "took_s": 0.0,
        "phases": (("a", 0.0),),
        "work": "",
    }
    text = render("runs.html", title="Runs", runs=[one], more=3)
    check_report(text)
    assert EVIL not in text
    assert "3 events more" in text


def test_a_benchmark_becomes_a_page(tmp_path: Path) -> None:
    """Its Markdown tables become tables; HTML in them stays text."""
    drawing = curves("grown", "s", [Series(EVIL, ((1, 1.0), (10, 2.0)))])
    write_page(tmp_path / "b.html", "Store", f"| a | b |\n| --- | --: |\n| {EVIL} | **2** |\n", [drawing])
    text = (tmp_path / "b.html").read_text()
    check_report(text)
    assert EVIL not in text
    assert "<strong>2</strong>" in text


def test_a_file_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    """Not a traceback."""
    with pytest.raises(CliError, match="cannot be written: No such file or directory"):
        write(tmp_path / "missing" / "x.html", "")
