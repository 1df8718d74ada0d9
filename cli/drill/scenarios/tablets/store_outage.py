"""Drill: store and masters are killed, then a server that leads tablets; clients of tablets notice only the server's
death.

The server is started again while store and masters are away: its replicas must come back from its own disk and from
the other members alone.
"""

from __future__ import annotations

from typing import Final

from cli.common.asking.servers import ask_server
from cli.drill.report import DrillReport, Figure
from cli.drill.run import Drill
from cli.drill.scenarios.tablets.leader_kill import (
    OPERATIONS,
    LeaderVictim,
    await_new_leaders,
    prepare,
)
from cli.drill.store_nodes import leader_but
from coord.rpc.wire import RpcError
from regions.messages import ReplicaList, ShowReplicas
from regions.messages.heartbeat import TAKES_PART

NAME: Final = "store-outage"

_ASK_TIMEOUT_S: Final = 1.0


def run(drill: Drill, server_name: str | None, outage_s: float, gap_max_s: float) -> DrillReport:
    """Kill store and masters, kill a leader, restart it, wait, start store and masters, check."""
    victim, others = prepare(drill, server_name)
    former = drill.status()
    away = [one.name for one in (*drill.local.coord, *drill.local.masters)]
    drill.victim = f"store, masters and {victim.name}"
    drill.action = "were killed with SIGKILL"
    drill.strike("no store")
    began_ms = drill.now_ms()
    for name in away:
        drill.kill(name, is_quiet=True)
    drill.say(f"killed {', '.join(away)} (SIGKILL)")
    drill.await_answers(OPERATIONS, "clients of tablets did not go on without the store")
    drill.phase("no leader")
    killed_ms = drill.kill(victim.name)
    await_new_leaders(drill, victim, others, killed_ms)
    drill.await_answers(OPERATIONS, "clients of tablets did not go on without their leader")
    drill.phase("back")
    drill.restart(victim.name)
    started_ms = drill.now_ms()
    drill.wait(lambda: _runs_again(victim), f"the replicas of {victim.name} did not come back without the store")
    drill.figure("its replicas run again", (drill.now_ms() - started_ms) / 1000, "from the restart, without the store")
    drill.wait_until(began_ms + int(1000 * outage_s), outage_s + 30)
    drill.await_answers(OPERATIONS, "clients of tablets did not go on")
    drill.phase("store")
    for name in away:
        drill.restart(name, is_quiet=True)
    over_ms = drill.now_ms()
    drill.figures.append(Figure("no store and no master", (over_ms - began_ms) / 1000, "s", "until all were started"))
    drill.say(f"started {', '.join(away)} again after {(over_ms - began_ms) / 1000:.1f} s")
    if drill.local.coord:
        drill.wait(lambda: leader_but(drill, ""), "the store elected no leader")
    drill.wait(drill.status, "no master became active")
    drill.phase("rest")
    drill.wait(
        lambda: drill.membership("server-up", killed_ms, address=victim.address),
        f"{victim.name} did not register again",
    )
    drill.await_rest()
    return drill.finish(NAME, new_epoch_after=None if former is None else former.epoch, gap_max_s=gap_max_s)


def _runs_again(victim: LeaderVictim) -> bool:
    """Return True if all replicas of the restarted server run, according to its own answer."""
    try:
        found = ask_server(victim.record, ShowReplicas(), ReplicaList, _ASK_TIMEOUT_S)
    except RpcError:
        return False
    return sum(one.report.state in TAKES_PART for one in found.replicas) >= victim.members
