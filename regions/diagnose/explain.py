"""Explains a replica's state: its step, the process that must act next, the deadline, and what an operator can do (N6).

A pure function of the cluster state. The state can be loaded from the store alone (`Assigner.load`), so `rk why` also
works without an active master. Orders, failed servers and times, which only the active master has, are then missing.
"""

from __future__ import annotations

from typing import Final

import msgspec

from regions.assign.placement import objection_to
from regions.cluster.entities import CLOSE, OPEN, Replica, Server
from regions.cluster.limits import AssignerConfig
from regions.cluster.state import ClusterState
from regions.messages import Explanation, NextActor
from regions.records.kinds import KV, kind_name, takes_tablets_alone
from regions.records.model import RegionState, TableState, TransitionRecord

_RESHARDED: Final = "it is closed, because it is split or merged"


def explain(replica: Replica, world: ClusterState, config: AssignerConfig, now_ms: int) -> Explanation:
    """Return what `replica` waits for at `now_ms`. The times of the cluster state are by the same clock."""
    found = _explain(replica, world, config)
    overdue_ms = now_ms - found.deadline_ms if found.deadline_ms else 0
    return msgspec.structs.replace(found, overdue_ms=overdue_ms) if overdue_ms > 0 else found


def _explain(replica: Replica, world: ClusterState, config: AssignerConfig) -> Explanation:
    transition = replica.transition
    table = replica.region.table.record
    found = Explanation(
        replica.region.record.region_id,
        replica.number,
        table.name,
        standing="",
        headline="",
        actor=NextActor.NOBODY,
        attempts_max=config.attempts_max,
        kind=table.kind or KV,
    )
    if transition is None:
        return _resting(found, replica, world, config)
    found = msgspec.structs.replace(
        found,
        standing="PARKED" if transition.parked else transition.state.value,
        source=transition.source,
        destination=transition.destination,
        reason=transition.reason,
        since_ms=transition.since_ms or replica.seen_ms,
        attempt=transition.attempt,
        last_error=transition.last_error or replica.last_error,
        epoch=transition.epoch,
        plan_id=transition.plan_id,
    )
    if replica.is_writing:
        return _explained(found, NextActor.MASTER, "its next step is being written", "wait for the store to commit it")
    if replica.region.is_leaving and transition.state in (RegionState.CLOSED, RegionState.OFFLINE):
        return _explained(found, NextActor.MASTER, _RESHARDED, "replace it by its daughters")
    if replica.region.is_given_up:
        return _explained(found, NextActor.MASTER, "its region could not be created", "replace it by another region")
    if transition.parked and replica.wants_open:
        return _parked(found, replica, transition)
    if transition.state is RegionState.CLOSING:
        return _closing(found, replica, world, config, transition)
    if transition.state is RegionState.OPENING and world.alive(transition.destination) is not None:
        return _opening(found, replica, world, config, transition)
    if transition.state is RegionState.OFFLINE and world.alive(transition.destination) is not None:
        return _offline(found, replica, world, config, transition)
    if transition.state is RegionState.OPENED and world.alive(transition.destination) is not None:
        return _explained(
            found, NextActor.MASTER, "it has been opened", "delete the transition", server=transition.destination
        )
    if not replica.wants_open:
        return _explained(found, NextActor.MASTER, "it is closed and must stay closed", "delete the transition")
    if transition.destination is not None and transition.state is not RegionState.CLOSED:
        why = f"its destination {transition.destination} is gone"
    else:
        why = "it is closed and needs a server"
    return _unplaced(found, replica, world, why)


# --- without a transition -------------------------------------------------------------------------------------------


def _resting(found: Explanation, replica: Replica, world: ClusterState, config: AssignerConfig) -> Explanation:
    server = replica.open_on
    if server is None:
        return _not_open(found, replica, world)
    found = msgspec.structs.replace(
        found, standing="OPEN", server=server.incarnation, source=server.incarnation, last_error=replica.last_error
    )
    if server.fencing:
        return _fenced(found, server, f"it is open on {server.uuid}, which has been fenced: {server.fencing}")
    order = replica.order
    if order is not None and order.kind == CLOSE:
        why = _why_closed(replica, server)
        found = msgspec.structs.replace(found, reason=why, attempt=order.sends, attempts_max=config.move_sends_max)
        if not order.first_sent_ms:
            step = f"order {server.uuid} to close it; the server is working on {len(server.busy)} other replicas"
            return _explained(found, NextActor.MASTER, f"it must be closed ({why})", step)
        found = _until_fenced(found, config, order.first_sent_ms, gives_up=replica.move is not None)
        headline = f"server {server.uuid} was ordered to close it ({why}) and has not begun"
        return _explained(
            found, NextActor.SERVER, headline, "begin to close it", f"rk region list --server {server.uuid}"
        )
    if server.draining and replica.wants_open:
        found = _with_objections(found, replica, world, but=server.uuid)
        headline = f"it must leave server {server.uuid}, and no other server can take it"
        return _explained(found, NextActor.OPERATOR, headline, "make room", *_make_room(replica, world))
    if replica.region.resharding:
        work = f"the split or merge of region {replica.region.resharding}"
        return _explained(found, NextActor.NOBODY, f"it is open on {server.uuid}, and takes part in {work}")
    return _explained(found, NextActor.NOBODY, f"it is open on {server.uuid}")


def _not_open(found: Explanation, replica: Replica, world: ClusterState) -> Explanation:
    table = replica.region.table.record
    if replica.wants_open:
        found = msgspec.structs.replace(found, standing="NOT OPEN", reason=replica.cause.value)
        if replica.is_writing:
            return _explained(
                found, NextActor.MASTER, "its assignment is being written", "wait for the store to commit it"
            )
        gone = "" if replica.home is None else f"its server {replica.home} is gone"
        return _unplaced(found, replica, world, gone or "it is not open and needs a server")
    found = msgspec.structs.replace(found, standing="CLOSED")
    if table.state is TableState.REMOVED:
        return _explained(found, NextActor.NOBODY, f"table {table.name} has been deleted")
    if not replica.region.table.wants_open:
        return _explained(
            found, NextActor.NOBODY, f"table {table.name} is disabled", "", f"rk table enable {table.name}: open it"
        )
    assign = f"rk region assign {found.region_id}: open it"
    return _explained(found, NextActor.NOBODY, "an operator has unassigned it", "", assign)


def _why_closed(replica: Replica, server: Server) -> str:
    if not replica.wants_open:
        return "unassigned" if replica.region.table.wants_open else "disabled"
    return "move" if replica.move is not None or not server.draining else "drain"


# --- in transition --------------------------------------------------------------------------------------------------


def _parked(found: Explanation, replica: Replica, transition: TransitionRecord) -> Explanation:
    reason = transition.last_error or "no reason given"
    headline = f"it is parked after {transition.attempt} failed attempts: {reason}"
    if transition.damage:
        headline = f"it is closed and parked because its rows are damaged: {reason}"
    return _explained(
        found,
        NextActor.OPERATOR,
        headline,
        "remove the cause, then retry it",
        f"rk region retry {found.region_id}: retry it from the first attempt",
        f"rk table disable {replica.region.table.record.name}: close the whole table for now",
    )


def _closing(
    found: Explanation, replica: Replica, world: ClusterState, config: AssignerConfig, transition: TransitionRecord
) -> Explanation:
    server = world.alive(transition.source)
    if server is None:
        if not replica.wants_open:
            return _explained(
                found, NextActor.MASTER, f"its server {transition.source} died while closing it", "put it down"
            )
        return _unplaced(found, replica, world, f"its server {transition.source} died while closing it")
    found = msgspec.structs.replace(found, server=server.incarnation)
    if server.fencing:
        return _fenced(found, server, f"{server.uuid} did not close it and has been fenced: {server.fencing}")
    found = _until_fenced(found, config, replica.seen_ms)
    order = replica.order
    if order is not None:
        found = msgspec.structs.replace(found, attempt=order.sends)
    found = msgspec.structs.replace(found, attempts_max=0)
    return _explained(
        found,
        NextActor.SERVER,
        f"server {server.uuid} is closing it",
        "finish closing it",
        f"kill the process of {server.uuid}: its regions open on other servers at once",
    )


def _opening(
    found: Explanation, replica: Replica, world: ClusterState, config: AssignerConfig, transition: TransitionRecord
) -> Explanation:
    server = world.alive(transition.destination)
    assert server is not None, replica.key
    found = msgspec.structs.replace(
        found,
        server=server.incarnation,
        deadline_ms=replica.seen_ms + config.open_timeout_ms,
        at_deadline=_next_attempt(transition, config),
    )
    headline = f"server {server.uuid} is opening it"
    if not replica.wants_open:
        headline += "; it will be closed once it is open"
    return _explained(found, NextActor.SERVER, headline, "finish opening it, or report why not")


def _offline(
    found: Explanation, replica: Replica, world: ClusterState, config: AssignerConfig, transition: TransitionRecord
) -> Explanation:
    server = world.alive(transition.destination)
    assert server is not None, replica.key
    found = msgspec.structs.replace(found, server=server.incarnation)
    if not replica.wants_open:
        return _explained(found, NextActor.MASTER, "it must not be opened any more", "delete the transition")
    if server.fencing:
        return _fenced(found, server, f"its destination {server.uuid} has been fenced: {server.fencing}")
    order = replica.order
    if order is None or order.kind != OPEN or not order.first_sent_ms:
        due_ms = 0 if order is None else order.next_ms
        found = msgspec.structs.replace(
            found, deadline_ms=due_ms, at_deadline=f"server {server.uuid} is ordered to open it"
        )
        if transition.attempt:
            headline = f"its open failed {transition.attempt} times, the next attempt follows after a pause"
            return _explained(found, NextActor.MASTER, headline, "retry")
        step = f"order {server.uuid} to open it; the server is working on {len(server.busy)} of {config.busy_max}"
        return _explained(found, NextActor.MASTER, f"it is queued for server {server.uuid}", step)
    found = msgspec.structs.replace(
        found,
        deadline_ms=order.first_sent_ms + config.start_timeout_ms,
        at_deadline=_next_attempt(transition, config),
    )
    return _explained(found, NextActor.SERVER, f"server {server.uuid} was ordered to open it", "begin to open it")


def _unplaced(found: Explanation, replica: Replica, world: ClusterState, why: str) -> Explanation:
    """Explain a replica without a destination: the master will choose one, or no server is eligible."""
    found = _with_objections(found, replica, world)
    if len(found.ruled_out) < len(world.servers):
        return _explained(found, NextActor.MASTER, why, "choose a server")
    return _explained(
        found,
        NextActor.OPERATOR,
        f"{why}; no server can take it",
        "start a server or make one eligible",
        *_make_room(replica, world),
    )


def _fenced(found: Explanation, server: Server, headline: str) -> Explanation:
    until_ms = server.fenced_until_ms
    found = msgspec.structs.replace(
        found, server=server.incarnation, deadline_ms=until_ms or 0, at_deadline="its regions go to other servers"
    )
    return _explained(found, NextActor.MASTER, headline, "wait for the end of the server's lease, then reassign it")


# --- texts ----------------------------------------------------------------------------------------------------------


def _explained(
    found: Explanation, actor: NextActor, headline: str, step: str = "", *way_out: str, **more: object
) -> Explanation:
    return msgspec.structs.replace(found, actor=actor, headline=headline, step=step, way_out=list(way_out), **more)


def _next_attempt(transition: TransitionRecord, config: AssignerConfig) -> str:
    if transition.attempt + 1 >= config.attempts_max:
        return "it is parked until an operator retries it"
    return "another server gets it"


def _until_fenced(found: Explanation, config: AssignerConfig, from_ms: int, *, gives_up: bool = False) -> Explanation:
    """Add the consequence of a slow close: a move that has not begun is canceled, otherwise the server is fenced."""
    if gives_up:
        return msgspec.structs.replace(found, at_deadline=f"the move is canceled after {config.move_sends_max} orders")
    if not config.fence_after_ms:
        return msgspec.structs.replace(found, at_deadline="the order is repeated without end, as fencing is off")
    return msgspec.structs.replace(
        found,
        deadline_ms=from_ms + config.fence_after_ms,
        at_deadline="the server is fenced, its regions open on other servers",
    )


def objections(replica: Replica, world: ClusterState, *, but: str = "") -> dict[str, str]:
    """Return server uuid -> why the server may not take `replica`. Eligible servers and the server `but` are left
    out."""
    peers, _ = world.peers(replica)
    others = (server for server in world.servers.values() if server.uuid != but)
    found = {server.uuid: objection_to(server, replica, peers) for server in others}
    return {uuid: why for uuid, why in found.items() if why}


def _with_objections(found: Explanation, replica: Replica, world: ClusterState, *, but: str = "") -> Explanation:
    against = objections(replica, world, but=but)
    return msgspec.structs.replace(found, ruled_out=[f"{uuid}: {why}" for uuid, why in sorted(against.items())])


def _make_room(replica: Replica, world: ClusterState) -> list[str]:
    """Return the commands that help a replica for which no live server is eligible."""
    table = replica.region.table.record
    of_group = f" with --group {table.group}" if table.group else ""
    of_kind = "" if kind_name(table.kind) == kind_name(KV) else f" whose opener is of kind {table.kind}"
    is_without = any(takes_tablets_alone(one.kind) for one in world.servers.values())
    shared = " with --shared-dir, the directory that its servers share" if is_without else ""
    ways = [f"rk server run …{of_group}: start a server{of_kind}{shared}"]
    drained = (one.uuid for one in world.servers.values() if one.marked)
    ways += [f"rk server undrain {uuid}: allow regions on it again" for uuid in drained]
    ways += [f"rk server unfence {uuid}: allow regions on it again" for uuid in sorted(world.bars)]
    return ways
