"""`rk plan show --html`: one self-contained page about a plan, without scripts and external resources.

Pure: figures in, text out. External text (names of servers, racks, plans) is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Final

from cli.common.output import count, size
from regions.plan.artifact.binding import WORDS, PlanRule
from regions.plan.artifact.figures import Figures, PlannedServer
from regions.plan.artifact.files import PlanManifest
from regions.plan.artifact.verify import PlanVerdict
from regions.plan.problem.model import Stats
from regions.plan.problem.numbered import REASONS
from regions.records.kinds import pool_words

#: Servers in the diagram, the fullest after the plan first; a table has all.
DRAWN_MAX: Final = 200
_BAR: Final = 520
_LEFT: Final = 210
_ROW: Final = 22

_STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem;color:#1d2733;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem}table{border-collapse:collapse}
td,th{padding:.2rem .8rem .2rem 0;text-align:left;vertical-align:top}td.n,th.n{text-align:right}
th{color:#5b6b7b;font-weight:600}.note{color:#8a4b00}svg text{font:13px system-ui,sans-serif;fill:#1d2733}
.before{fill:#b9c6d3}.after{fill:#2f6f9f}.quota{fill:none;stroke:#c0392b;stroke-width:2}.cell{stroke:#fff}
.grey{color:#5b6b7b}
"""


def page(manifest: PlanManifest, verdict: PlanVerdict, figures: Figures, name: Callable[[str], str]) -> str:
    """Return the page. `name` returns the name of a server."""
    parts = [
        f"<h1>Plan {escape(manifest.plan_id)}</h1>",
        _summary(manifest, verdict, figures),
        "<h2>Replicas of each server, before and after</h2>",
        _legend(),
        _balance(figures.servers, name, lambda one: (one.before, one.after), str, quotas=True),
        "<h2>Bytes of each server, before and after</h2>",
        _balance(figures.servers, name, lambda one: (one.bytes_before, one.bytes_after), size, quotas=False),
        "<h2>Locality</h2>",
        _locality(figures),
        "<h2>Moves by rack</h2>",
        _racks(figures),
        "<h2>Rules that bound</h2>",
        _bound(figures),
        "<h2>All servers</h2>",
        _servers(figures.servers, name),
    ]
    title = escape(f"Plan {manifest.plan_id}")
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n"
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


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; a column whose name begins with `#` has numbers."""

    def cells(tag: str, row: Sequence[object]) -> str:
        return "".join(
            f"<{tag}{' class=n' if column.startswith('#') else ''}>{escape(str(cell))}</{tag}>"
            for column, cell in zip(head, row, strict=True)
        )

    top = cells("th", [column.removeprefix("#") for column in head])
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><tr>{top}</tr>{body}</table>"


def _summary(manifest: PlanManifest, verdict: PlanVerdict, figures: Figures) -> str:
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
    rows += [("of the input", sentence) for sentence in shortcomings(stats, verdict)]
    note = f'<p class="note">{escape(manifest.note)}</p>' if manifest.note else ""
    return note + _table(["", " "], rows)


def _legend() -> str:
    return (
        '<svg width="620" height="24" role="img" aria-label="legend">'
        '<rect class="before" x="0" y="6" width="14" height="12"/><text x="20" y="17">before</text>'
        '<rect class="after" x="90" y="6" width="14" height="12"/><text x="110" y="17">after</text>'
        '<rect class="quota" x="180" y="5" width="14" height="14"/><text x="200" y="17">quota, floor to ceiling</text>'
        "</svg>"
    )


def _balance(
    servers: Sequence[PlannedServer],
    name: Callable[[str], str],
    value: Callable[[PlannedServer], tuple[int, int]],
    shown: Callable[[int], str],
    *,
    quotas: bool,
) -> str:
    """Return two bars for each server, one above the other."""
    drawn = sorted(servers, key=lambda one: (-max(value(one)), one.server_id))[:DRAWN_MAX]
    drawn.sort(key=lambda one: (one.rack, name(one.server_id)))
    most = max([1, *(max(*value(one), one.ceil if quotas else 0) for one in drawn)])
    lines = []
    for at, one in enumerate(drawn):
        top = at * 2 * _ROW + 4
        before, after = value(one)
        label = f"{name(one.server_id)}  {one.rack}"
        lines.append(f'<text x="0" y="{top + 20}">{escape(_cut(label, 28))}<title>{escape(label)}</title></text>')
        for kind, number, y in (("before", before, top), ("after", after, top + 16)):
            width = number * _BAR / most
            lines.append(f'<rect class="{kind}" x="{_LEFT}" y="{y}" width="{width:.1f}" height="14"/>')
            lines.append(f'<text x="{_LEFT + width + 6:.1f}" y="{y + 12}">{escape(shown(number))}</text>')
        if quotas and one.takes_regions:
            left, right = one.floor * _BAR / most, one.ceil * _BAR / most
            place = f'x="{_LEFT + left:.1f}" y="{top + 14}" width="{max(right - left, 1):.1f}" height="18"'
            lines.append(f'<rect class="quota" {place}/>')
    height = len(drawn) * 2 * _ROW + 8
    rest = len(servers) - len(drawn)
    more = f'<p class="grey">and {rest} more, see the table below</p>' if rest else ""
    width = _LEFT + _BAR + 90
    return (
        f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">{"".join(lines)}</svg>{more}'
    )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _locality(figures: Figures) -> str:
    if not figures.knows_blocks:
        return "<p>The input has no locations of blocks, so locality was ignored.</p>"
    lines = []
    for at, (kind, local, total) in enumerate(
        (
            ("before", figures.local_before, figures.bytes_before),
            ("after", figures.local_after, figures.bytes_after),
        )
    ):
        part = local / total if total else 0.0
        y = at * 26 + 4
        lines.append(
            f'<text x="0" y="{y + 14}">{kind}</text>'
            f'<rect x="{_LEFT}" y="{y}" width="{_BAR}" height="18" fill="#eef2f6"/>'
            f'<rect class="{kind}" x="{_LEFT}" y="{y}" width="{part * _BAR:.1f}" height="18"/>'
            f'<text x="{_LEFT + 8}" y="{y + 14}">{part:.1%}: {escape(size(local))} of {escape(size(total))}</text>'
        )
    return f'<svg width="{_LEFT + _BAR + 90}" height="60" role="img">{"".join(lines)}</svg>'


def _racks(figures: Figures) -> str:
    """Return a grid of racks; darker cells have more moves."""
    if not figures.racks:
        return "<p>Nothing moves.</p>"
    names = sorted({one.source for one in figures.racks} | {one.destination for one in figures.racks})
    if len(names) > 40:
        rows = [(one.source or "(gone)", one.destination, one.moves, size(one.bytes)) for one in figures.racks]
        return _table(["from rack", "to rack", "#moves", "#bytes"], rows)
    moves = {(one.source, one.destination): one for one in figures.racks}
    most = max(one.moves for one in figures.racks)
    cell, left, top = 64, 130, 40
    lines = [f'<text x="0" y="{top - 14}">from \\ to</text>']
    for column, to in enumerate(names):
        lines.append(f'<text x="{left + column * cell + 4}" y="{top - 14}">{escape(_cut(to or "(gone)", 8))}</text>')
    for row, source in enumerate(names):
        y = top + row * 30
        lines.append(f'<text x="0" y="{y + 20}">{escape(_cut(source or "(gone)", 18))}</text>')
        for column, to in enumerate(names):
            one = moves.get((source, to))
            shade = 0.08 if one is None else 0.2 + 0.6 * one.moves / most
            lines.append(
                f'<rect class="cell" x="{left + column * cell}" y="{y}" width="{cell}" height="30" '
                f'fill="#2f6f9f" fill-opacity="{shade:.2f}"><title>'
                f"{escape(source)} to {escape(to)}: {escape(size(one.bytes)) if one else 'nothing'}</title></rect>"
            )
            if one is not None:
                lines.append(f'<text x="{left + column * cell + 8}" y="{y + 20}">{one.moves}</text>')
    height, width = top + len(names) * 30 + 8, left + len(names) * cell + 10
    return f'<svg width="{width}" height="{height}" role="img">{"".join(lines)}</svg>'


def _bound(figures: Figures) -> str:
    if not figures.bound:
        return "<p>Every replica is at its best place.</p>"
    rows = [
        (number, rule, WORDS[PlanRule(rule)])
        for rule, number in sorted(figures.bound.items(), key=lambda item: (-item[1], item[0]))
    ]
    return "<p>Replicas that would be better off elsewhere, and the rule that prevents it:</p>" + _table(
        ["#replicas", "rule", "that is"], rows
    )


def _servers(servers: Sequence[PlannedServer], name: Callable[[str], str]) -> str:
    rows = [
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
    return _table(["server", "host", "rack", "group", "#before", "#after", "#quota", "#bytes", "#bytes after"], rows)
