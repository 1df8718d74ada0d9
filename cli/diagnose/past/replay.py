"""`rk history --replay A..B`: the entries between two points, with the cluster before and after; and `--owner`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Final

import click
import msgspec
from rich.text import Text

from cli.common import output
from cli.common.errors import UsageFaultError
from cli.common.names import Names
from cli.diagnose.history import HistoryLine, HistoryView, lines
from cli.diagnose.past.state import ClusterThen, describe, point_of, state_of
from regions.cluster.history import GAP
from regions.cluster.past import Interval, Point, owners_of, picture_at, split
from regions.records.replica_key import parse_replica_key
from regions.transitions.entries import HistoryEntry

#: Longest pause of a replay between two entries.
PAUSE_MAX_S: Final = 5.0


class ReplayedRange(msgspec.Struct):
    """Content of `rk history --replay`."""

    before: ClusterThen
    steps: list[HistoryLine]
    after: ClusterThen


class OwnerLine(msgspec.Struct):
    """One line of `rk history --owner`: the server that held a replica in an interval. Times are 0 before the history
    begins, and for an interval without an end."""

    region: str
    replica: int
    server: str
    from_ms: int
    to_ms: int
    ended: str
    is_gap: bool


def range_of(text: str, now_ms: int) -> tuple[Point, Point]:
    """Return both ends of `A..B`; an omitted B is now, an omitted A the beginning. Raise UsageFaultError."""
    first, dots, last = text.partition("..")
    if not dots or ".." in last:
        raise UsageFaultError(f"--replay {text!r} is not a range", "Write it as 13:00..13:05, 15m..5m or 0x1f3..0x2a0.")
    begin = point_of(first, now_ms, "--replay") if first.strip() else Point(at_ms=0)
    end = point_of(last, now_ms, "--replay") if last.strip() else Point(at_ms=now_ms)
    if begin.at_ms > end.at_ms >= 0:
        raise UsageFaultError(f"--replay {text}: the first point is later than the last one")
    return begin, end


def replay(
    past: HistoryView,
    tables: Mapping[str, str],
    ends: tuple[Point, Point],
    is_wanted: Callable[[HistoryEntry], bool],
    present: Mapping[str, tuple[str, int]],
) -> ReplayedRange:
    """Return the entries between two points, and the cluster before and after them."""
    begin, end = ends
    _, later = split(past.entries, begin)
    until, _ = split(past.entries, end)
    kept = {id(one) for one in later} & {id(one) for one in until}
    steps = [past.step(one, dict(tables)) for one in past.entries if id(one) in kept and is_wanted(one)]
    before, after = (state_of(picture_at(past.entries, point, present), past, tables, point) for point in (begin, end))
    return ReplayedRange(before, steps, after)


def show_replay(found: ReplayedRange, speed: float, *, zxids: bool) -> None:
    """Print a replay. On a terminal with a `speed` above 0, wait between the entries as the cluster did."""
    console = output.console()
    is_timed = speed > 0 and sys.stdout.isatty()
    for text in describe(found.before):
        console.print(text, soft_wrap=True)
    entries = "1 entry" if len(found.steps) == 1 else f"{len(found.steps)} entries"
    console.print(Text(f"--- {entries}", style="dim"))
    last_ms = found.steps[0].time_ms if found.steps else 0
    for step, text in zip(found.steps, lines(found.steps, zxids=zxids), strict=True):
        if is_timed:
            time.sleep(min(PAUSE_MAX_S, max(0, step.time_ms - last_ms) / 1000 / speed))
            last_ms = max(last_ms, step.time_ms)
        console.print(text, soft_wrap=True)
    console.print(Text("---", style="dim"))
    for text in describe(found.after):
        console.print(text, soft_wrap=True)


def owners(entries: list[HistoryEntry], region_id: str, names: Names) -> list[OwnerLine]:
    """Return who has held the replicas of a region, oldest first, with names for people."""
    return [_owner(one, names) for one in owners_of(entries, region_id)]


def _owner(one: Interval, names: Names) -> OwnerLine:
    region_id, number = parse_replica_key(one.key)
    server = names.of_uuid(one.server) if one.server else ""
    return OwnerLine(region_id, number, server, one.from_ms, one.to_ms, one.ended, one.is_gap)


def show_owners(found: list[OwnerLine], region_id: str) -> None:
    """Print who has held a region."""
    for text in owner_lines(found):
        click.echo(text)
    if not found:
        click.echo(f"the history does not say who has held {region_id}")


def owner_lines(found: list[OwnerLine]) -> list[str]:
    """Return the intervals for people: begin, end, server, and why it ended; between them the times without a
    server."""
    texts = []
    for at, one in enumerate(found):
        number = f"#{one.replica} " if one.replica else ""
        begin = output.moment(one.from_ms) if one.from_ms else "before the history begins   "
        if one.is_gap:
            texts.append(f"{number}{begin}  gap: steps were not recorded, so another server may have held it")
            continue
        end = f"to {output.moment(one.to_ms)}" if one.to_ms else "until now"
        ended = f", then the history has a {GAP}" if one.ended == GAP else f", {one.ended}" if one.ended else ""
        texts.append(f"{number}{begin}  {one.server} {end}{ended}")
        if one.to_ms and one.ended != GAP:
            later = next((two for two in found[at + 1 :] if two.replica == one.replica), None)
            texts += _nobody(number, one.to_ms, None if later is None else later.from_ms)
    return texts


def _nobody(number: str, from_ms: int, to_ms: int | None) -> list[str]:
    """Return the line for a time during which no server held a replica, if it has a length; `to_ms` None: until now."""
    if to_ms is None:
        return [f"{number}{output.moment(from_ms)}  nobody until now"]
    if to_ms <= from_ms:
        return []
    took = output.seconds((to_ms - from_ms) / 1000)
    return [f"{number}{output.moment(from_ms)}  nobody to {output.moment(to_ms)}, for {took}"]
