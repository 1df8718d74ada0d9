"""Drill: every store node, master and region server is restarted in turn, gracefully; clients notice only moves."""

from __future__ import annotations

import signal
from typing import Final

from cli.common.access import is_answering
from cli.common.local import Daemon
from cli.drill.report import DrillReport, Figure, InvariantCheck, check, spread
from cli.drill.run import Drill
from cli.drill.store_nodes import is_serving
from cli.drill.target.moves import outages
from cli.drill.traffic import rejected_at_rest
from cli.drill.writers import Writers
from cli.up.progress import open_words

NAME: Final = "rolling-restart"

_CLEAN: Final = "exit status 0"


def run(drill: Drill) -> DrillReport:
    """Restart one daemon after the other: SIGTERM, wait for its end, start, wait until it serves again."""
    before = drill.require_rest(servers=2)
    rest_ms = drill.now_ms()
    drill.victim = "every daemon"
    drill.action = "was restarted in turn"
    drill.say(f"at rest: {open_words(before)} open on {before.servers} servers")
    writers = Writers(drill, {"any-node": drill.cluster.hosts}) if drill.local.coord else None
    if writers is not None:
        writers.start()
    drill.begin()
    began_ms = drill.now_ms()
    unclean: list[str] = []
    phases = (("store", drill.local.coord), ("masters", drill.local.masters), ("servers", drill.local.servers))
    for number, (phase, daemons) in enumerate(phases):
        order = list(daemons)
        drill.rng.shuffle(order)
        if number == 0:
            drill.strike(phase)
        else:
            drill.phase(phase)
        for one in order:
            unclean += _restart(drill, one)
    drill.phase("rest")
    drill.await_rest()
    if writers is not None:
        writers.add_gap_figures()
        drill.checks += writers.check()
    times = outages(drill.changes_since(began_ms))
    if times or not drill.tablets:
        drill.figures += spread("region not open", times, "CLOSING to OPENED, each move of each region")
    drill.figures.append(Figure("moves", len(times), "", "each server's shared regions go to others before it stops"))
    drill.checks.append(check("every daemon stopped in order", unclean, f"{len(drill.local.daemons())} daemons"))
    drill.checks += _only_moves(drill, rest_ms)
    return drill.finish(NAME)


def _restart(drill: Drill, one: Daemon) -> list[str]:
    """Restart one daemon; return the fault of its end, or ""."""
    term_ms = drill.kill(one.name, signal.SIGTERM)
    drill.wait(lambda: not drill.daemons()[one.name].pid, f"{one.name} did not stop")
    status = drill.daemons()[one.name].status
    stopped_ms = drill.now_ms()
    drill.restart(one.name, is_quiet=True)
    if one.role == "store":
        drill.wait(lambda: is_serving(one), f"{one.name} did not come back")
    elif one.role == "master":
        drill.wait(
            lambda: (
                is_answering(one.address) and any(f"{m.host}:{m.port}" == one.address for m in drill.cluster.masters())
            ),
            f"{one.name} did not come back",
        )
    else:
        drill.wait(
            lambda: drill.membership("server-up", stopped_ms, address=one.address), f"{one.name} did not register again"
        )
    drill.wait(drill.at_rest, "regions did not come to rest")
    down_s, stop_s = (drill.now_ms() - stopped_ms) / 1000, (stopped_ms - term_ms) / 1000
    drill.say(f"{one.name} stopped in {stop_s:.2f} s ({status}), back after {down_s:.2f} s")
    return [] if status == _CLEAN else [f"{one.name} ended with {status}"]


def _only_moves(drill: Drill, rest_ms: int) -> list[InvariantCheck]:
    """Check that regions rejected their clients only during their own moves.

    `rest_ms`: time without moves, before the load began. The balancer may move regions while the load warms up.
    """
    traffic = drill.traffic
    if traffic is None or not traffic.is_running:
        return []
    moves = drill.moves(rest_ms)
    refused: list[str] = []
    slow = 0
    count = 0
    for table, operations in traffic.operations().items():
        if traffic.tables.regions[table][0].is_tablet:
            continue  # leadership is handed over: no region moves, and `finish` shows the gaps
        offset_s = drill.now_ms() / 1000 - traffic.now_s()[table]
        mine, mine_slow = rejected_at_rest(operations, moves, offset_s)
        refused += mine
        slow += mine_slow
        count += len(operations)
    if slow:
        drill.notes.append(f"{slow} of {count} requests took longer than half a second outside of moves")
    if not count:
        return []
    return [
        check("no outage but a region's own move", refused, f"{count} requests, {sum(map(len, moves.values()))} moves")
    ]
