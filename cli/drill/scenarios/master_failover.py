"""Drill: the active master is killed while regions move."""

from __future__ import annotations

from typing import Any, Final

from twisted.internet.defer import DeferredList

from cli.common.errors import CliError
from cli.drill.report import DrillReport, spread
from cli.drill.run import Drill
from cli.drill.target.moves import outages
from cli.up.progress import open_words
from coord.rpc.client import RpcClient
from regions import messages
from regions.records.model import ActiveRecord

NAME: Final = "master-failover"

_MOVES_TIMEOUT_S: Final = 20.0


def run(drill: Drill, moves: int | None) -> DrillReport:
    """Move regions, kill the master, measure, restart it, check."""
    before = drill.require_rest(masters=2)
    active = drill.cluster.active()
    if active is None:
        raise CliError("no master is active")
    victim = drill.victim = drill.daemon_of(active.host, active.port)
    former = {(one.host, one.port): one.start_code for one in drill.cluster.masters()}
    drill.say(
        f"at rest: {open_words(before)} open on {before.servers} servers; {victim} is active, epoch {before.epoch}"
    )
    wanted = min(moves or before.replicas, before.replicas)
    drill.begin()
    drill.strike("moves")
    began_ms = drill.now_ms()
    ordered = _order_moves(drill, active, wanted)
    if ordered:
        # At the first observed step, which is some milliseconds old; a move takes no longer.
        drill.wait(lambda: drill.changes_since(began_ms), "regions did not begin to move")
    else:
        drill.notes.append("no region can move: tablets stay with their members")
    drill.phase("no master")
    killed_ms = drill.kill(victim)
    left = len(drill.follower.history.in_transition)
    drill.say(f"{victim} left {left} regions in transition")
    if ordered and not left:
        drill.notes.append(
            "no region was in transition when the master died: the moves were faster; try a larger --moves"
        )
    _measure(drill, active, killed_ms)
    drill.phase("back")
    drill.restart(victim)
    drill.wait(
        lambda: any(
            (one.host, one.port) == (active.host, active.port) and one.start_code > former[one.host, one.port]
            for one in drill.cluster.masters()
        ),
        f"{victim} did not come back as a standby",
    )
    drill.say(f"{victim} is back as a standby")
    drill.figures += spread(
        "region not open", outages(drill.changes_since(began_ms)), "CLOSING to OPENED, each moved region"
    )
    return drill.finish(NAME, new_epoch_after=before.epoch)


def _order_moves(drill: Drill, active: ActiveRecord, count: int) -> int:
    """Send `count` moves, each to the next server of a ring, pipelined on one connection, without waiting.

    Return the number of moves. Tablets are not moved.
    """
    servers = sorted(one.uuid for one in drill.servers())
    following = dict(zip(servers, [*servers[1:], servers[0]], strict=True))
    moves: list[messages.MoveRegion] = []
    for status in (one for one in drill.all_regions() if not one.region.is_tablet):
        for replica in status.replicas:
            if replica.server is not None and len(moves) < count:
                target = following.get(replica.server.uuid, servers[0])
                moves.append(messages.MoveRegion(status.region.region_id, replica.replica, target))
    drill.say(f"ordering {len(moves)} moves, each to the next server")
    drill.reactor.reactor.callFromThread(_send, drill.reactor.reactor, active, moves)
    return len(moves)


def _send(reactor: Any, active: ActiveRecord, moves: list[messages.MoveRegion]) -> None:
    client = RpcClient(reactor, active.host, active.port)
    calls = [client.call(move, _MOVES_TIMEOUT_S, expect=messages.Accepted) for move in moves]
    # The master's death leaves calls unanswered on purpose, so their failures are ignored.
    DeferredList(calls, consumeErrors=True).addCallback(lambda _: client.close())


def _measure(drill: Drill, active: ActiveRecord, killed_ms: int) -> None:
    gone_ms = drill.wait(
        lambda: drill.membership("no-active", killed_ms), "the store did not notice the master's death"
    )
    drill.say(f"its znode /active was gone after {(gone_ms - killed_ms) / 1000:.2f} s")
    next_ms = drill.wait(
        lambda: drill.membership("active", killed_ms, not_uuid=active.uuid), "no other master became active"
    )
    successor = drill.cluster.active()
    name = drill.daemon_of(successor.host, successor.port) if successor is not None else "another master"
    drill.say(f"{name} is active")
    drill.phase("finishing")
    drill.figure("no active master", (next_ms - killed_ms) / 1000, "from the kill to the next active master")
    drill.figure(
        "of that, until noticed",
        (gone_ms - killed_ms) / 1000,
        "until /active was gone: its port was closed, or its session had expired",
    )
    drill.wait(drill.at_rest, "regions did not come to rest")
    ends = [change.at_ms for change in drill.changes_since(killed_ms) if change.after in ("OPENED", "")]
    last_ms = max([*ends, next_ms])
    drill.figure("all regions OPENED", (last_ms - killed_ms) / 1000, "from the kill to the last transition's end")
    drill.figure(
        "of that, by the new master", (last_ms - next_ms) / 1000, "from becoming active to the last transition's end"
    )
