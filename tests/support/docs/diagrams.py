"""Mermaid diagrams drawn from the tables of states and steps: transitions, a replica's life, tables, packages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from typing import Final

from regions.transitions.states import STEPS
from regions.transitions.table_states import TABLE_STEPS, TABLET_STEPS
from regionserver.replica.states import LIFE
from tests.support.docs.source import GENERATED, paragraph
from tests.support.tidy import Module, load

#: The mark of the beginning and the end of a state diagram.
_END: Final = "[*]"
#: Packages in the order of the layers, top first.
_LAYERS: Final = ("pyspark_regionkeeper", "cli", "simulation", "master", "regionserver", "regions", "coord")


def diagrams_page() -> str:
    """Return docs/reference/diagrams.md."""
    lines = [
        "# Diagrams",
        "",
        GENERATED.format("the tables of states and from the imports"),
        "",
        "[architecture.md](../architecture.md) has the drawings of one write and of one region's opening.",
        "",
        "## A transition",
        "",
        *paragraph(
            """`regions/transitions/states.py`: the znode of a replica in transition. Steps of a server are marked; all
            others are the master's. [transitions.md](../transitions.md) has every row with its cause."""
        ),
        "",
        *_state_diagram((_name(s.before), _name(s.after), _cause(s.actor.value, s.cause.value)) for s in STEPS),
        "",
        "## A replica on its server",
        "",
        *paragraph(
            """`regionserver/replica/states.py`: what one replica goes through on one region server. The loss of the
            session is left out: it leads from every phase to DROPPING, or to the end, if nothing was open."""
        ),
        "",
        *_state_diagram((_name(r.before), _name(r.after), r.event) for r in LIFE if r.event != "session lost"),
        "",
        "## A table",
        "",
        "`regions/transitions/table_states.py`.",
        "",
        *_state_diagram((_name(s.before), _name(s.after), s.event) for s in TABLE_STEPS),
        "",
        "## A region's record",
        "",
        *_state_diagram((_name(s.before), _name(s.after), s.event) for s in TABLET_STEPS),
        "",
        "## Packages",
        "",
        "An arrow is an import. An arrow is left out where a longer way leads to the same package.",
        "",
        *_package_map(),
        "",
    ]
    for package in _LAYERS:
        if rooms := _rooms(package):
            lines += [f"### Inside {package}", "", *rooms, ""]
    return "\n".join(lines).rstrip() + "\n"


def _name(state: object) -> str:
    return _END if state is None else str(getattr(state, "name", state))


def _cause(actor: str, cause: str) -> str:
    return f"{cause} (server)" if actor == "server" else cause


def _state_diagram(steps: Iterable[tuple[str, str, str]]) -> list[str]:
    """Return a state diagram with one arrow for each pair of states, and all causes on it."""
    causes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for before, after, cause in steps:
        if cause not in causes[before, after]:
            causes[before, after].append(cause)
    arrows = [f"    {before} --> {after}: {', '.join(found)}" for (before, after), found in causes.items()]
    return ["```mermaid", "stateDiagram-v2", *arrows, "```"]


@cache
def _modules() -> dict[str, Module]:
    return load()


def _package_map() -> list[str]:
    """Return the imports between the top-level packages."""
    edges: dict[str, set[str]] = {package: set() for package in _LAYERS}
    for module in _modules().values():
        here = module.name.partition(".")[0]
        edges[here] |= {name.partition(".")[0] for name in module.imports} - {here}
    return _flowchart(edges, _LAYERS)


def _rooms(package: str) -> list[str]:
    """Return the imports between the folders of a package; [] if it has fewer than three."""
    edges: dict[str, set[str]] = {}
    for module in _modules().values():
        if not module.name.startswith(f"{package}."):
            continue
        here = _room(module.name, package)
        edges.setdefault(here, set())
        edges[here] |= {_room(name, package) for name in module.imports if name.startswith(f"{package}.")}
    for room, others in edges.items():
        others.discard(room)
    return _flowchart(edges, sorted(edges)) if len(edges) > 2 else []


def _room(module: str, package: str) -> str:
    """Return the folder below the package, or the module itself if it is directly in the package's folder."""
    return module.removeprefix(f"{package}.").partition(".")[0]


def _flowchart(edges: dict[str, set[str]], order: Iterable[str]) -> list[str]:
    lines = ["```mermaid", "flowchart TD"]
    shown = _reduced(edges)
    for here in order:
        lines.append(f"    {here}")
        lines += [f"    {here} --> {there}" for there in sorted(shown[here])]
    return [*lines, "```"]


def _reduced(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the edges that no longer path replaces. Edges within a circle stay."""
    reach = {one: _reachable(edges, one) for one in edges}
    return {
        one: {
            other
            for other in others
            if one in reach.get(other, set())
            or not any(other in reach.get(via, set()) and one not in reach.get(via, set()) for via in others - {other})
        }
        for one, others in edges.items()
    }


def _reachable(edges: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = list(edges.get(start, ()))
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            waiting += edges.get(one, ())
    return seen
