"""Drill: a region server that leads tablets is frozen; other members lead after one election timeout.

A frozen server closes no connection, so its followers must notice the silence. When the server continues, it is still
the leader of an old term: the histories of the rows show whether a client could read or write there.
"""

from __future__ import annotations

from typing import Final

from cli.drill.report import DrillReport, Figure
from cli.drill.run import Drill
from cli.drill.scenarios.tablets.leader_kill import OPERATIONS, await_new_leaders, prepare

NAME: Final = "tablet-freeze"

#: The server stays frozen for a random time up to this after other servers lead its tablets.
FROZEN_MORE_S: Final = 3.0


def run(drill: Drill, server_name: str | None, gap_max_s: float) -> DrillReport:
    """Freeze a server that leads (a random one unless named), wait for new leaders, continue it, check."""
    victim, others = prepare(drill, server_name)
    drill.action = "was frozen with SIGSTOP"
    drill.strike("no leader")
    frozen_ms = drill.freeze(victim.name)
    await_new_leaders(drill, victim, others, frozen_ms)
    drill.phase("without it")
    drill.await_answers(OPERATIONS, "clients of tablets did not go on")
    until_ms = drill.now_ms() + int(1000 * FROZEN_MORE_S * drill.rng.random())
    drill.wait_until(until_ms)
    drill.phase("awake")
    awake_ms = drill.unfreeze(victim.name)
    drill.figures.append(Figure("frozen", round((awake_ms - frozen_ms) / 1000, 3), "s", "from SIGSTOP to SIGCONT"))
    drill.await_answers(OPERATIONS, "clients of tablets did not go on")
    drill.await_rest()
    return drill.finish(NAME, gap_max_s=gap_max_s)
