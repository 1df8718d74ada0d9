"""`rk drill … --html`: each run as a time line, the regions unavailable to clients above phases and events; tables.

Pure: reports in, text out.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import msgspec

from cli.common import output
from cli.drill.report import DrillReport, shown_value, summary
from cli.html.pages import render
from regions.records.acts.drills import DrillEvent

#: Regions in the table of outages, those with the longest.
OUTAGES_SHOWN: Final = 20
WIDTH: Final = 1000
#: Heights: the band, and the row of a phase.
BAND: Final = 72
ROW: Final = 26


class DrillRun(msgspec.Struct, frozen=True):
    """One run of a drill: its report and its events."""

    report: DrillReport
    events: tuple[DrillEvent, ...] = ()


class BandStep(msgspec.Struct, frozen=True):
    """A part of the band, as a rectangle, and its description."""

    x: float
    width: float
    height: float
    label: str


class DrillTimeline(msgspec.Struct, frozen=True):
    """The time line of a run, as coordinates."""

    end_s: float
    most: int
    height: int
    steps: tuple[BandStep, ...]
    #: (x, y, width, label, is the label left of the bar).
    phases: tuple[tuple[float, float, float, str, bool], ...]
    #: (x, label).
    events: tuple[tuple[float, str], ...]
    #: Time of the fault; None if the report does not have it.
    struck_x: float | None


def page(runs: Sequence[DrillRun], requested: int) -> str:
    """Return the page of some runs of one drill. `requested`: number of runs that were requested."""
    reports = [one.report for one in runs]
    rows = [
        (one.name, *(shown_value(value, one.unit) for value in (one.smallest, one.median, one.largest)))
        for one in summary(reports)
    ]
    return render(
        "drill.html",
        title=f"Drill {reports[0].drill}",
        runs=[(one.report, timeline(one), one.events) for one in runs],
        requested=requested,
        held=sum(one.held for one in reports),
        summary=rows,
        figures=[_figures(one) for one in reports],
        outages_shown=OUTAGES_SHOWN,
    )


def timeline(run: DrillRun) -> DrillTimeline:
    """Return the time line of a run."""
    report = run.report
    end_s = max([1.0, report.seconds, *(one.at_s for one in run.events)])
    scale = WIDTH / end_s
    band = report.traffic.unavailability.band if report.traffic is not None else []
    most = max([1, *(number for _, number in band)])
    steps = [
        BandStep(
            round((report.struck_s + at_s) * scale, 1),
            round(max(1.0, (until_s - at_s) * scale), 1),
            round(BAND * number / most, 1),
            f"{output.count(number, 'region')} unavailable, {output.seconds(max(0.0, at_s))} after the fault",
        )
        for (at_s, number), (until_s, _) in itertools.pairwise(band)
        if number
    ]
    top = BAND + 30
    phases = tuple(
        (
            round(one.began_s * scale, 1),
            float(top + at * ROW),
            round(max(2.0, one.seconds * scale), 1),
            f"{one.name} {output.seconds(one.seconds)}",
            one.began_s > end_s * 0.6,
        )
        for at, one in enumerate(report.phases)
    )
    events = tuple((round(one.at_s * scale, 1), f"{output.seconds(one.at_s)}: {one.text}") for one in run.events)
    struck_x = round(report.struck_s * scale, 1) if report.struck_s else None
    return DrillTimeline(end_s, most, top + ROW * max(1, len(phases)) + 20, tuple(steps), phases, events, struck_x)


def _figures(report: DrillReport) -> list[tuple[str, str, str]]:
    return [(one.name, shown_value(one.value, one.unit), one.meaning) for one in report.figures]
