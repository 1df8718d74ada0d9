"""Drill: a node of the store is cut off from its peers; the majority goes on, the node alone acknowledges nothing."""

from __future__ import annotations

from typing import Final

from cli.common.errors import UsageFaultError
from cli.drill.report import DrillReport, InvariantCheck, check
from cli.drill.run import DEADLINE_S, Drill
from cli.drill.store_nodes import cut, heal, is_serving, leader, leader_but
from cli.drill.writers import Writers

NAME: Final = "store-partition"

#: The cut lasts so long, and up to so much more, as the seed says.
CUT_S: Final = 6.0
CUT_MORE_S: Final = 3.0
_WRITES: Final = 100
_ACTIONS: Final = {
    "both": "was cut off from its peers",
    "out": "sent nothing that reached its peers",
    "in": "heard nothing from its peers",
}


def run(drill: Drill, node_name: str | None, direction: str) -> DrillReport:
    """Write on both sides, cut, measure, heal, read everything from every node, check."""
    before = drill.require_rest(store_nodes=3)
    leading = leader(drill)
    victim = drill.victim = node_name or leading
    drill.action = _ACTIONS[direction]
    nodes = {one.name: one for one in drill.local.coord}
    if victim not in nodes:
        raise UsageFaultError(f"there is no store node {victim!r}", f"There are {', '.join(nodes)}.")
    node = nodes[victim]
    drill.say(f"at rest: {before.open} regions open; {leading} leads the store")
    majority = ",".join(one.address for one in nodes.values() if one.name != victim)
    writers = Writers(drill, {"any-node": drill.cluster.hosts, "majority": majority, "cut-off": node.address})
    writers.start()
    drill.begin()
    writers.until_acked(_WRITES, "writers did not get going")
    cut_s = CUT_S + CUT_MORE_S * drill.rng.random()
    drill.at_end(lambda: heal(node))
    drill.strike("cut, no leader" if victim == leading else "cut")
    cut(node, direction, DEADLINE_S)
    cut_ms = drill.now_ms()
    drill.say(f"cut {victim} off from its peers (direction: {direction}); its clients still reach it")
    successor = drill.wait(lambda: leader_but(drill, victim), "the majority has no leader")
    if victim == leading:
        drill.figure(
            "no leader seen",
            (drill.now_ms() - cut_ms) / 1000,
            "from the cut until a node of the majority says it leads",
        )
    drill.say(f"{successor} leads the majority")
    drill.phase("apart")
    drill.wait(lambda: not is_serving(node), f"{victim} alone still says that it serves")
    drill.figure("until it gave up", (drill.now_ms() - cut_ms) / 1000, f"from the cut until {victim} serves nobody")
    writers.until_acked(_WRITES, "the majority's writer did not go on", since_ms=cut_ms, names=["majority", "any-node"])
    drill.wait(lambda: drill.now_ms() - cut_ms >= 1000 * cut_s, "time stands still")
    heal_ms = drill.now_ms()
    drill.phase("healed")
    heal(node)
    drill.say(f"healed after {(heal_ms - cut_ms) / 1000:.1f} s")
    drill.wait(lambda: is_serving(node), f"{victim} did not come back")
    drill.figure("until it serves again", (drill.now_ms() - heal_ms) / 1000, "from healing")
    writers.until_acked(1, f"the writer at {victim} did not go on", since_ms=heal_ms, names=["cut-off"])
    writers.say_gaps()
    drill.checks += [_acknowledged_nothing(writers, victim, cut_ms, heal_ms), *writers.check()]
    drill.count_lost_sessions()
    return drill.finish(NAME)


def _acknowledged_nothing(writers: Writers, victim: str, cut_ms: int, heal_ms: int) -> InvariantCheck:
    """Whoever is alone has no majority, so whatever it acknowledged would be a lie."""
    times = writers.each["cut-off"].times_ms
    lies = [
        f"a write asked for {asked - cut_ms} ms after the cut was acknowledged {answered - cut_ms} ms after it"
        for asked, answered in times
        if asked > cut_ms and answered < heal_ms
    ]
    return check(f"{victim} alone acknowledged nothing", lies, f"for {(heal_ms - cut_ms) / 1000:.1f} s")
