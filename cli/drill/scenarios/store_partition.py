"""Drill: a node of the store is cut off from its peers; the majority continues, and the isolated node must acknowledge
nothing."""

from __future__ import annotations

from typing import Final

from cli.common.errors import NotFoundError
from cli.drill.report import DrillReport, InvariantCheck, check
from cli.drill.run import DEADLINE_S, Drill
from cli.drill.scenarios.cuts import action, cut, heal
from cli.drill.store_nodes import is_serving, leader, leader_but
from cli.drill.writers import Writers

NAME: Final = "store-partition"

#: Duration of the cut, plus a random part of the second value.
CUT_S: Final = 6.0
CUT_MORE_S: Final = 3.0
_WRITES: Final = 100


def run(drill: Drill, node_name: str | None, direction: str) -> DrillReport:
    """Write on both sides, cut, measure, restore the links, read everything from every node, check."""
    before = drill.require_rest(store_nodes=3)
    leading = leader(drill)
    victim = drill.victim = node_name or leading
    drill.action = action(direction, "its peers")
    nodes = {one.name: one for one in drill.local.coord}
    if victim not in nodes:
        raise NotFoundError(f"there is no store node {victim!r}", f"The nodes are {', '.join(nodes)}.")
    node = nodes[victim]
    drill.say(f"at rest: {before.open} regions open; {leading} leads the store")
    majority = ",".join(one.address for one in nodes.values() if one.name != victim)
    writers = Writers(drill, {"any-node": drill.cluster.hosts, "majority": majority, "cut-off": node.address})
    writers.start()
    drill.begin()
    writers.until_acked(_WRITES, "writers did not start")
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
            "from the cut until a node of the majority reports that it leads",
        )
    drill.say(f"{successor} leads the majority")
    drill.phase("apart")
    drill.wait(lambda: not is_serving(node), f"{victim} still reports that it serves")
    drill.figure(
        "until it stopped serving", (drill.now_ms() - cut_ms) / 1000, f"from the cut until {victim} serves nobody"
    )
    writers.until_acked(
        _WRITES, "the majority's writer did not continue", since_ms=cut_ms, names=["majority", "any-node"]
    )
    drill.wait_until(cut_ms + int(1000 * cut_s))
    heal_ms = drill.now_ms()
    drill.phase("healed")
    heal(node)
    drill.say(f"healed after {(heal_ms - cut_ms) / 1000:.1f} s")
    drill.wait(lambda: is_serving(node), f"{victim} did not come back")
    drill.figure("until it serves again", (drill.now_ms() - heal_ms) / 1000, "from healing")
    writers.until_acked(1, f"the writer at {victim} did not continue", since_ms=heal_ms, names=["cut-off"])
    writers.add_gap_figures()
    drill.checks += [_acknowledged_nothing(writers, victim, cut_ms, heal_ms), *writers.check()]
    drill.count_lost_sessions()
    return drill.finish(NAME)


def _acknowledged_nothing(writers: Writers, victim: str, cut_ms: int, heal_ms: int) -> InvariantCheck:
    """Check that the isolated node acknowledged no write: it has no majority."""
    times = writers.each["cut-off"].times_ms
    wrong = [
        f"a write sent {asked - cut_ms} ms after the cut was acknowledged {answered - cut_ms} ms after it"
        for asked, answered in times
        if asked > cut_ms and answered < heal_ms
    ]
    return check(f"{victim} acknowledged nothing while isolated", wrong, f"for {(heal_ms - cut_ms) / 1000:.1f} s")
