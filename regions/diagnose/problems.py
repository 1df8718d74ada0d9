"""Problems that need an operator's attention, one line each, the most urgent first; equal problems are counted."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from regions.assign.placement import bar_end_text
from regions.cluster.entities import CLOSE, Replica
from regions.cluster.limits import AssignerConfig
from regions.cluster.state import ClusterState
from regions.diagnose.explain import objections
from regions.diagnose.explain_table import late_tables
from regions.diagnose.live.work_in_progress import WorkInProgress
from regions.records.model import RegionState


def problems(
    world: ClusterState,
    work: WorkInProgress,
    unplaceable: Iterable[Replica],
    config: AssignerConfig,
    now_ms: int,
    limit: int,
) -> list[str]:
    """Return at most `limit` lines about fenced and flapping servers, replicas without an eligible server, tables that
    stay ALTERING or new, parked replicas and late closes."""
    found = [*_of_servers(world, config, now_ms), *_of_unplaceable(world, unplaceable)]
    found += islice(late_tables(world, work, config, now_ms), limit)
    for replica in (*work.named, *work.closing):
        if len(found) >= limit:
            break
        line = _of_replica(replica, world, config, now_ms)
        if line:
            found.append(line)
    return found[:limit]


def _of_servers(world: ClusterState, config: AssignerConfig, now_ms: int) -> list[str]:
    found: list[str] = []
    for server in world.servers.values():
        if server.fenced_until_ms is not None:
            left_s = max(0, server.fenced_until_ms - now_ms) / 1000
            found.append(
                f"server {server.uuid} is fenced ({server.fencing}); its regions open elsewhere in {left_s:.0f} s"
            )
        elif server.marked and not server.opens and not server.closes and not server.busy and server.open:
            left = [one for one in server.open.values() if one.transition is None and one.order is None]
            if left:
                found.append(f"server {server.uuid} cannot be drained: no other server can take {_some(left)}")
    found += [
        f"server {uuid} was fenced ({bar.reason}) and gets no regions {bar_end_text(bar)}"
        for uuid, bar in world.bars.items()
        if uuid not in world.servers or world.servers[uuid].fenced_until_ms is None
    ]
    for uuid, until_ms in world.flapping.items():
        left_s = max(0, until_ms - now_ms) / 1000
        found.append(
            f"server {uuid} has registered more than {config.flaps_max} times within {config.flap_window_ms // 1000} s;"
            f" it gets no regions until it has stayed for {left_s:.0f} s more"
        )
    return found


def _of_unplaceable(world: ClusterState, unplaceable: Iterable[Replica]) -> list[str]:
    by_reason: dict[str, list[Replica]] = {}
    for replica in unplaceable:
        against = sorted(set(objections(replica, world).values()))
        reason = "; ".join(against) if against else "there is no live server"
        by_reason.setdefault(reason, []).append(replica)
    return [
        f"{_some(replicas)} {'has' if len(replicas) == 1 else 'have'} no eligible server: {reason}"
        for reason, replicas in by_reason.items()
    ]


def _of_replica(replica: Replica, world: ClusterState, config: AssignerConfig, now_ms: int) -> str:
    transition = replica.transition
    order = replica.order
    if transition is None:
        if order is None or order.kind != CLOSE or not order.first_sent_ms or order.server.fencing:
            return ""
        late_ms = now_ms - order.first_sent_ms - config.close_timeout_ms
        error = f", last error: {replica.last_error}" if replica.last_error else ""
        line = f"server {order.server.uuid} has not begun to close {replica.key}, {late_ms / 1000:.0f} s late{error}"
        return line + _fence_in(config, order.first_sent_ms, now_ms) if late_ms > 0 else ""
    if transition.parked:
        return f"{replica.key} is parked after {transition.attempt} attempts: {transition.last_error}"
    if transition.state is RegionState.CLOSING:
        late_ms = now_ms - replica.seen_ms - config.close_timeout_ms
        server = world.alive(transition.source)
        if late_ms <= 0 or server is None or server.fencing:
            return ""
        error = f", last error: {replica.last_error}" if replica.last_error else ""
        line = f"{replica.key} is closing on server {transition.source}, {late_ms / 1000:.0f} s late{error}"
        return line + _fence_in(config, replica.seen_ms, now_ms)
    return ""


def _fence_in(config: AssignerConfig, from_ms: int, now_ms: int) -> str:
    if not config.fence_after_ms:
        return ""
    return f"; the server will be fenced in {max(0, from_ms + config.fence_after_ms - now_ms) / 1000:.0f} s"


def _some(replicas: list[Replica]) -> str:
    """Return `r1-0`, or `r1-0 and 41 more`."""
    first = replicas[0].key
    return first if len(replicas) == 1 else f"{first} and {len(replicas) - 1} more"
