"""A server's figures: phases of its replicas, states of its tablets' replicas, requests per second. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from regions.messages import HostedReplica
from regions.messages.heartbeat import TAKES_PART, Measure, ReplicaReport, ReplicaState, ServerFigures
from regions.messages.server import TabletFigures
from regionserver.replica.effects import Key
from regionserver.replica.states import Phase

_OPENING: Final = (Phase.CLAIMING, Phase.OPENING, Phase.ANNOUNCING)
_CLOSING: Final = (Phase.MARKING, Phase.CLOSING, Phase.STUCK, Phase.RELEASING, Phase.DROPPING)


def figures(
    phases: Mapping[Phase, int], rates: Mapping[Key, float], tablets: TabletFigures | None = None
) -> ServerFigures:
    """Return the numbers of replicas by state, those of tablets included, and the requests per second of all."""
    is_open = phases[Phase.OPEN]
    opening = sum(map(phases.__getitem__, _OPENING))
    closing = sum(map(phases.__getitem__, _CLOSING))
    requests_per_second = round(sum(rates.values()), 2)
    if tablets is None:
        return ServerFigures(is_open, opening, closing, requests_per_second, shared=is_open)
    of = tablets.replicas
    return ServerFigures(
        is_open + sum(of.get(state.value, 0) for state in TAKES_PART),
        opening + of.get(ReplicaState.COPYING.value, 0),
        closing + of.get(ReplicaState.STOPPING.value, 0),
        requests_per_second,
        tablets.alarms,
        tablets.disk_free,
        is_open,
    )


def with_figures(report: ReplicaReport, load: float | None, size: Measure | None) -> ReplicaReport:
    """Return a replica's report with its requests per second and its measured size, as far as they are known."""
    if load is not None:
        report = replace(report, load=round(load, 2))
    return report if size is None else replace(report, rows=size.rows, size_bytes=size.size_bytes)


def hosted_with_load(hosted: Iterable[HostedReplica], rates: Mapping[Key, float]) -> list[HostedReplica]:
    """Return the replicas with their requests per second."""
    found = []
    for one in hosted:
        load = rates.get((one.region_id, one.replica))
        found.append(one if load is None else replace(one, load=round(load, 2)))
    return found
