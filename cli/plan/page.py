"""`rk plan show --html`: the figures of a plan as the values of its template (`cli/html/templates/plan.html`).

Pure: figures in, text out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from cli.common.output import count, size
from cli.html.pages import render
from regions.plan.artifact.binding import WORDS, PlanRule
from regions.plan.artifact.figures import Figures, PlannedServer
from regions.plan.artifact.files import PlanManifest
from regions.plan.artifact.verify import PlanVerdict
from regions.plan.problem.model import Stats
from regions.plan.problem.numbered import REASONS
from regions.records.kinds import pool_words

#: Servers in the diagram, the fullest after the plan first; a table has all.
DRAWN_MAX: Final = 200
#: Racks in the grid of moves; more of them become a table.
GRID_MAX: Final = 40
_BAR: Final = 520


def page(manifest: PlanManifest, verdict: PlanVerdict, figures: Figures, name: Callable[[str], str]) -> str:
    """Return the page. `name` returns the name of a server."""
    servers = figures.servers
    return render(
        "plan.html",
        title=f"Plan {manifest.plan_id}",
        manifest=manifest,
        summary=_summary(manifest, verdict, figures),
        replicas=_balance(servers, name, lambda one: (one.before, one.after), str, quotas=True),
        bytes=_balance(servers, name, lambda one: (one.bytes_before, one.bytes_after), size, quotas=False),
        rest=max(0, len(servers) - DRAWN_MAX),
        locality=_locality(figures),
        grid=_grid(figures),
        racks=[(one.source or "(gone)", one.destination, one.moves, size(one.bytes)) for one in figures.racks],
        bound=[
            (number, rule, WORDS[PlanRule(rule)])
            for rule, number in sorted(figures.bound.items(), key=lambda item: (-item[1], item[0]))
        ],
        servers=_servers(servers, name),
    )


#: Description of a violation, by the field of a verdict that counts it, in the order of the rules.
BROKEN: Final[Mapping[str, str]] = {
    "missing": "without a row",
    "surplus": "too many, or numbered wrongly",
    "same_server": "on one server with another of their region",
    "wrong_server": "on a server that may not take them",
    "same_rack": "on one rack with another of their region, where racks suffice",
    "over_ceiling": "above the ceiling of their server's quota",
    "under_floor": "missing to the floor of their server's quota",
    "over_table": "above the ceiling of their table's share of the server",
}


def shortcomings(stats: Stats, verdict: PlanVerdict) -> list[str]:
    """Return sentences about unusable input and unreached goals."""
    found = [f"set aside: {number} x {REASONS[reason]}" for reason, number in stats.ignored.items()]
    if stats.degraded:
        found.append("degraded: more than a twentieth of the block rows could not be used, so locality is doubtful")
    found += [
        f"without any place: {count(number, 'region')} of group {pool_words(group)!r}, which has no server"
        for group, number in stats.unassignable.items()
    ]
    if stats.under_replicated:
        wanted = "there are fewer servers than required replicas"
        found.append(f"{count(stats.under_replicated, 'replica')} cannot exist: {wanted}")
    if stats.racks_shared:
        share = "shares a rack with another of its" if stats.racks_shared == 1 else "share a rack with another of their"
        found.append(f"{count(stats.racks_shared, 'replica')} {share} region: there are too few racks")
    if stats.quota_adjusted:
        found.append(
            f"the quotas of {count(stats.quota_adjusted, 'server')} differ from their weight's share: a rack, and a "
            "server, can hold only one replica of a region"
        )
    if stats.tables_raised:
        found.append(
            f"{count(stats.tables_raised, 'table')} may exceed the share of a server by more than the slack: the other "
            "racks have too few servers for their replicas"
        )
    for field, words in BROKEN.items():
        if number := getattr(verdict, field):
            found.append(f"a rule could not be kept: {count(number, 'replica')} {words}")
    return found


def _summary(manifest: PlanManifest, verdict: PlanVerdict, figures: Figures) -> list[tuple[str, str]]:
    stats = manifest.stats
    rows = [
        ("engine", manifest.engine),
        ("regions", f"{figures.regions} in {count(stats.tables, 'table')}, {count(figures.replicas, 'replica')}"),
        ("servers", f"{stats.servers}, of which {stats.eligible_servers} may take regions"),
        (
            "replicas",
            f"{figures.stay} stay, {figures.move} move ({size(figures.moved_bytes)}), {figures.first} are new",
        ),
        ("broken rules", str(stats.violations)),
        ("digest", manifest.digest),
        ("input", f"{manifest.origin or 'files'}, fingerprint {manifest.fingerprint[:16] or 'none'}"),
    ]
    return rows + [("of the input", sentence) for sentence in shortcomings(stats, verdict)]


def _balance(
    servers: Sequence[PlannedServer],
    name: Callable[[str], str],
    value: Callable[[PlannedServer], tuple[int, int]],
    shown: Callable[[int], str],
    *,
    quotas: bool,
) -> list[dict[str, Any]]:
    """Return two bars for each server that is drawn, with the length of each in pixels."""
    drawn = sorted(servers, key=lambda one: (-max(value(one)), one.server_id))[:DRAWN_MAX]
    drawn.sort(key=lambda one: (one.rack, name(one.server_id)))
    most = max([1, *(max(*value(one), one.ceil if quotas else 0) for one in drawn)])
    bars = []
    for one in drawn:
        before, after = value(one)
        left, right = one.floor * _BAR / most, one.ceil * _BAR / most
        bars.append(
            {
                "label": f"{name(one.server_id)}  {one.rack}",
                "before": shown(before),
                "before_width": round(before * _BAR / most, 1),
                "after": shown(after),
                "after_width": round(after * _BAR / most, 1),
                "quota": (round(left, 1), round(max(right - left, 1), 1)) if quotas and one.takes_regions else None,
            }
        )
    return bars


def _locality(figures: Figures) -> list[tuple[str, float, str]]:
    """Return the share of local bytes before and after; an empty text if the input has no blocks."""
    if not figures.knows_blocks:
        return []
    found = []
    for kind, local, total in (
        ("before", figures.local_before, figures.bytes_before),
        ("after", figures.local_after, figures.bytes_after),
    ):
        part = local / total if total else 0.0
        found.append((kind, part, f"{part:.1%}: {size(local)} of {size(total)}"))
    return found


def _grid(figures: Figures) -> dict[str, Any] | None:
    """Return the grid of racks, where darker cells have more moves; None without moves or with too many racks."""
    names = sorted({one.source for one in figures.racks} | {one.destination for one in figures.racks})
    if not names or len(names) > GRID_MAX:
        return None
    moves = {(one.source, one.destination): one for one in figures.racks}
    most = max(one.moves for one in figures.racks)

    def cell(source: str, to: str) -> dict[str, Any]:
        one = moves.get((source, to))
        what = size(one.bytes) if one else "nothing"
        return {
            "moves": one.moves if one else 0,
            "shade": f"{0.2 + 0.6 * one.moves / most if one else 0.08:.2f}",
            "label": f"{source} to {to}: {what}",
        }

    cells = [[cell(source, to) for to in names] for source in names]
    return {"names": [one or "(gone)" for one in names], "cells": cells}


def _servers(servers: Sequence[PlannedServer], name: Callable[[str], str]) -> list[tuple[object, ...]]:
    return [
        (
            name(one.server_id),
            one.host,
            one.rack,
            pool_words(one.group),
            one.before,
            one.after,
            f"{one.floor}..{one.ceil}" if one.takes_regions else "takes none",
            size(one.bytes_before),
            size(one.bytes_after),
        )
        for one in servers
    ]
