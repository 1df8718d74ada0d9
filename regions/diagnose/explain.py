"""Why a replica is where it is: which step, who must act next, until when, and what an operator can do (N6).

A pure function of the master's picture. The same picture can be loaded from the store alone (`Assigner.load`), so the
question can also be answered when no master is active; what only a reigning master knows (orders on their way, failed
servers, times since the last sign of life) is then missing, and the store's own words stand instead.
"""

from __future__ import annotations

import msgspec

from regions.assign.placement import objection_to
from regions.cluster.entities import CLOSE, OPEN, Replica, Server
from regions.cluster.limits import AssignerConfig
from regions.cluster.state import ClusterState
from regions.messages import Explanation, NextActor
from regions.records.kinds import KV, kind_name
from regions.records.model import RegionState, TableState, TransitionRecord


def explain(replica: Replica, world: ClusterState, config: AssignerConfig, now_ms: int) -> Explanation:
    """What `replica` waits for, as of `now_ms` on the clock by which the world's times were taken."""
    said = _explain(replica, world, config)
    overdue_ms = now_ms - said.deadline_ms if said.deadline_ms else 0
    return msgspec.structs.replace(said, overdue_ms=overdue_ms) if overdue_ms > 0 else said


def _explain(replica: Replica, world: ClusterState, config: AssignerConfig) -> Explanation:
    transition = replica.transition
    table = replica.region.table.record
    said = Explanation(
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
        return _resting(said, replica, world, config)
    said = msgspec.structs.replace(
        said,
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
        return _say(said, NextActor.MASTER, "its next step is being written", "the store's answer to the write")
    if replica.region.is_given_up:
        return _say(said, NextActor.MASTER, "its region could not be created", "put another region in its place")
    if transition.parked and replica.wants_open:
        return _parked(said, replica, transition)
    if transition.state is RegionState.CLOSING:
        return _closing(said, replica, world, config, transition)
    if transition.state is RegionState.OPENING and world.alive(transition.destination) is not None:
        return _opening(said, replica, world, config, transition)
    if transition.state is RegionState.OFFLINE and world.alive(transition.destination) is not None:
        return _offline(said, replica, world, config, transition)
    if transition.state is RegionState.OPENED and world.alive(transition.destination) is not None:
        return _say(
            said, NextActor.MASTER, "it has been opened", "delete the transition", server=transition.destination
        )
    if not replica.wants_open:
        return _say(said, NextActor.MASTER, "it is closed and is to stay so", "delete the transition")
    if transition.destination is not None and transition.state is not RegionState.CLOSED:
        why = f"its destination {transition.destination} is gone"
    else:
        why = "it is closed and wants a server"
    return _unplaced(said, replica, world, why)


# --- without a transition -------------------------------------------------------------------------------------------


def _resting(said: Explanation, replica: Replica, world: ClusterState, config: AssignerConfig) -> Explanation:
    server = replica.open_on
    if server is None:
        return _not_open(said, replica, world)
    said = msgspec.structs.replace(
        said, standing="OPEN", server=server.incarnation, source=server.incarnation, last_error=replica.last_error
    )
    if server.fencing:
        return _fenced(said, server, f"it is open on {server.uuid}, which has been fenced: {server.fencing}")
    order = replica.order
    if order is not None and order.kind == CLOSE:
        why = _why_closed(replica, server)
        said = msgspec.structs.replace(said, reason=why, attempt=order.sends, attempts_max=config.move_sends_max)
        if not order.first_sent_ms:
            step = f"order {server.uuid} to close it, after the {len(server.busy)} replicas that it is at work on"
            return _say(said, NextActor.MASTER, f"it is to be closed ({why})", step)
        said = _until_fenced(said, config, order.first_sent_ms, gives_up=replica.move is not None)
        headline = f"server {server.uuid} was told to close it ({why}) and has not begun"
        return _say(said, NextActor.SERVER, headline, "begin to close it", f"rk region list --server {server.uuid}")
    if server.draining and replica.wants_open:
        said = _with_objections(said, replica, world, but=server.uuid)
        headline = f"it is to leave {server.uuid}, and no other server may have it"
        return _say(said, NextActor.OPERATOR, headline, "make room", *_make_room(replica, world))
    return _say(said, NextActor.NOBODY, f"it is open on {server.uuid}")


def _not_open(said: Explanation, replica: Replica, world: ClusterState) -> Explanation:
    table = replica.region.table.record
    if replica.wants_open:
        said = msgspec.structs.replace(said, standing="NOT OPEN", reason=replica.cause.value)
        if replica.is_writing:
            return _say(said, NextActor.MASTER, "its assignment is being written", "the store's answer to the write")
        gone = "" if replica.home is None else f"its server {replica.home} is gone"
        return _unplaced(said, replica, world, gone or "it is open nowhere and wants a server")
    said = msgspec.structs.replace(said, standing="CLOSED")
    if table.state is TableState.REMOVED:
        return _say(said, NextActor.NOBODY, f"table {table.name} has been deleted")
    if not replica.region.table.wants_open:
        return _say(
            said, NextActor.NOBODY, f"table {table.name} is disabled", "", f"rk table enable {table.name}: open it"
        )
    assign = f"rk region assign {said.region_id}: open it"
    return _say(said, NextActor.NOBODY, "an operator has unassigned it", "", assign)


def _why_closed(replica: Replica, server: Server) -> str:
    if not replica.wants_open:
        return "unassigned" if replica.region.table.wants_open else "disabled"
    return "move" if replica.move is not None or not server.draining else "drain"


# --- in transition --------------------------------------------------------------------------------------------------


def _parked(said: Explanation, replica: Replica, transition: TransitionRecord) -> Explanation:
    reason = transition.last_error or "no reason given"
    headline = f"it was tried {transition.attempt} times and is parked: {reason}"
    if transition.damage:
        headline = f"it was closed and parked, because it is damaged: {reason}"
    return _say(
        said,
        NextActor.OPERATOR,
        headline,
        "remove the cause, then have it tried again",
        f"rk region retry {said.region_id}: try again from the beginning",
        f"rk table disable {replica.region.table.record.name}: give the table up for now",
    )


def _closing(
    said: Explanation, replica: Replica, world: ClusterState, config: AssignerConfig, transition: TransitionRecord
) -> Explanation:
    server = world.alive(transition.source)
    if server is None:
        if not replica.wants_open:
            return _say(said, NextActor.MASTER, f"its server {transition.source} died while closing it", "put it down")
        return _unplaced(said, replica, world, f"its server {transition.source} died while closing it")
    said = msgspec.structs.replace(said, server=server.incarnation)
    if server.fencing:
        return _fenced(said, server, f"{server.uuid} did not close it and has been fenced: {server.fencing}")
    said = _until_fenced(said, config, replica.seen_ms)
    order = replica.order
    if order is not None:
        said = msgspec.structs.replace(said, attempt=order.sends)
    said = msgspec.structs.replace(said, attempts_max=0)
    return _say(
        said,
        NextActor.SERVER,
        f"server {server.uuid} is closing it",
        "finish closing it",
        f"kill the process of {server.uuid}: its regions go to other servers at once",
    )


def _opening(
    said: Explanation, replica: Replica, world: ClusterState, config: AssignerConfig, transition: TransitionRecord
) -> Explanation:
    server = world.alive(transition.destination)
    assert server is not None, replica.key
    said = msgspec.structs.replace(
        said,
        server=server.incarnation,
        deadline_ms=replica.seen_ms + config.open_timeout_ms,
        at_deadline=_next_attempt(transition, config),
    )
    headline = f"server {server.uuid} is opening it"
    if not replica.wants_open:
        headline += "; it will be closed once it is open"
    return _say(said, NextActor.SERVER, headline, "finish opening it, or report why not")


def _offline(
    said: Explanation, replica: Replica, world: ClusterState, config: AssignerConfig, transition: TransitionRecord
) -> Explanation:
    server = world.alive(transition.destination)
    assert server is not None, replica.key
    said = msgspec.structs.replace(said, server=server.incarnation)
    if not replica.wants_open:
        return _say(said, NextActor.MASTER, "it is not wanted open any more", "delete the transition")
    if server.fencing:
        return _fenced(said, server, f"its destination {server.uuid} has been fenced: {server.fencing}")
    order = replica.order
    if order is None or order.kind != OPEN or not order.first_sent_ms:
        due_ms = 0 if order is None else order.next_ms
        said = msgspec.structs.replace(said, deadline_ms=due_ms, at_deadline=f"{server.uuid} is told to open it")
        if transition.attempt:
            return _say(said, NextActor.MASTER, f"it failed {transition.attempt} times, there is a pause", "try again")
        step = f"tell {server.uuid}, which is at work on {len(server.busy)} replicas (at most {config.busy_max})"
        return _say(said, NextActor.MASTER, f"it waits for its turn at {server.uuid}", step)
    said = msgspec.structs.replace(
        said,
        deadline_ms=order.first_sent_ms + config.start_timeout_ms,
        at_deadline=_next_attempt(transition, config),
    )
    return _say(said, NextActor.SERVER, f"server {server.uuid} was told to open it", "begin to open it")


def _unplaced(said: Explanation, replica: Replica, world: ClusterState, why: str) -> Explanation:
    """It has no server to go to: is the master about to choose one, or is there none?"""
    said = _with_objections(said, replica, world)
    if len(said.ruled_out) < len(world.servers):
        return _say(said, NextActor.MASTER, why, "choose a server and write it down")
    return _say(
        said, NextActor.OPERATOR, f"{why}; no server may have it", "start or free one", *_make_room(replica, world)
    )


def _fenced(said: Explanation, server: Server, headline: str) -> Explanation:
    until_ms = server.fenced_until_ms
    said = msgspec.structs.replace(
        said, server=server.incarnation, deadline_ms=until_ms or 0, at_deadline="its regions go to other servers"
    )
    return _say(said, NextActor.MASTER, headline, "wait until its lease must have run out, then reassign")


# --- words ----------------------------------------------------------------------------------------------------------


def _say(
    said: Explanation, actor: NextActor, headline: str, step: str = "", *way_out: str, **more: object
) -> Explanation:
    return msgspec.structs.replace(said, actor=actor, headline=headline, step=step, way_out=list(way_out), **more)


def _next_attempt(transition: TransitionRecord, config: AssignerConfig) -> str:
    if transition.attempt + 1 >= config.attempts_max:
        return "it is parked until an operator has it tried again"
    return "another server gets it"


def _until_fenced(said: Explanation, config: AssignerConfig, from_ms: int, *, gives_up: bool = False) -> Explanation:
    """What happens to a close that takes long: a move that never began is given up, else the server is fenced."""
    if gives_up:
        return msgspec.structs.replace(said, at_deadline=f"the move is given up after {config.move_sends_max} asks")
    if not config.fence_after_ms:
        return msgspec.structs.replace(said, at_deadline="it is asked again, for ever: fencing is switched off")
    return msgspec.structs.replace(
        said, deadline_ms=from_ms + config.fence_after_ms, at_deadline="the server is fenced, its regions go elsewhere"
    )


def objections(replica: Replica, world: ClusterState, *, but: str = "") -> dict[str, str]:
    """Server uuid -> why it may not have `replica`; servers that may are left out, `but` is not asked about."""
    peers, _ = world.peers(replica)
    others = (server for server in world.servers.values() if server.uuid != but)
    found = {server.uuid: objection_to(server, replica, peers) for server in others}
    return {uuid: why for uuid, why in found.items() if why}


def _with_objections(said: Explanation, replica: Replica, world: ClusterState, *, but: str = "") -> Explanation:
    against = objections(replica, world, but=but)
    return msgspec.structs.replace(said, ruled_out=[f"{uuid}: {why}" for uuid, why in sorted(against.items())])


def _make_room(replica: Replica, world: ClusterState) -> list[str]:
    """Ways out for a replica that no live server may have."""
    table = replica.region.table.record
    of_group = f" with --group {table.group}" if table.group else ""
    of_kind = "" if kind_name(table.kind) == kind_name(KV) else f" whose opener is of kind {table.kind}"
    ways = [f"rk server run …{of_group}: start a server{of_kind}"]
    ways += [f"rk server undrain {one.uuid}: let it have regions again" for one in world.servers.values() if one.marked]
    ways += [f"rk server unfence {uuid}: let it have regions again" for uuid in sorted(world.bars)]
    return ways
