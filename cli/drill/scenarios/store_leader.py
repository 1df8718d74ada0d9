"""Drill: the store's leader is killed during writes; every acknowledged write must exist on every node afterwards."""

from __future__ import annotations

from typing import Final

from cli.drill.report import DrillReport
from cli.drill.run import Drill
from cli.drill.store_nodes import is_serving, leader, leader_but
from cli.drill.writers import Writers

NAME: Final = "store-leader"

#: Acknowledged writes required of every writer before the kill, and again after it.
_WRITES: Final = 100


def run(drill: Drill) -> DrillReport:
    """Write, kill the leader, measure, restart the node, read everything from every node, check."""
    before = drill.require_rest(store_nodes=3)
    victim = drill.victim = leader(drill)
    node = drill.local.daemon(victim)
    drill.say(f"at rest: {before.open} regions open; {victim} leads the store")
    others = ",".join(one.address for one in drill.local.coord if one.name != victim)
    writers = Writers(drill, {"any-node": drill.cluster.hosts, "followers": others})
    writers.start()
    drill.begin()
    writers.until_acked(_WRITES, "writers did not start")
    drill.strike("no leader")
    killed_ms = drill.kill(victim)
    successor = drill.wait(lambda: leader_but(drill, victim), "the store elected no other leader")
    drill.figure(
        "no leader seen", (drill.now_ms() - killed_ms) / 1000, "from the kill until another node reports that it leads"
    )
    drill.say(f"{successor} leads the store")
    drill.phase("writing on")
    writers.until_acked(_WRITES, "writers did not continue", since_ms=killed_ms)
    writers.add_gap_figures()
    drill.phase("back")
    drill.restart(victim)
    drill.wait(lambda: is_serving(node), f"{victim} did not come back")
    drill.say(f"{victim} is back")
    drill.checks += writers.check()
    drill.count_lost_sessions()
    return drill.finish(NAME)
