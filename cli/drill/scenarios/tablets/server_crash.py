"""Drill: a region server is killed and stays dead until its members of tablets were replaced on the other servers.

Then the server starts again. It is a member of nothing, so its former replicas leave its disk.
"""

from __future__ import annotations

from typing import Final

from cli.drill.report import DrillReport
from cli.drill.run import Drill
from cli.drill.scenarios.tablets.healing import CopyWatch, await_clean, await_replaced, members_may_change, prepare
from cli.drill.scenarios.tablets.leader_kill import OPERATIONS, await_new_leaders

NAME: Final = "tablet-server-crash"


def run(drill: Drill, server_name: str | None, gap_max_s: float) -> DrillReport:
    """Kill a server that leads (a random one unless named), wait until all is re-replicated, restart it, check."""
    victim, others = prepare(drill, server_name, away=1)
    copies = CopyWatch(drill)
    drill.strike("no leader")
    killed_ms = drill.kill(victim.name)
    await_new_leaders(drill, victim, others, killed_ms)
    drill.phase("re-replicating")
    gone_ms = drill.wait(
        lambda: drill.membership("server-down", killed_ms, address=victim.address),
        "the store did not notice the server's death",
    )
    drill.figure("until noticed", (gone_ms - killed_ms) / 1000, "the session timeout; until the store dropped it")
    await_replaced(drill, [victim.record.uuid], killed_ms, copies)
    drill.await_answers(OPERATIONS, "clients of tablets did not go on")
    drill.phase("back")
    drill.restart(victim.name)
    started_ms = drill.now_ms()
    drill.wait(
        lambda: drill.membership("server-up", started_ms, address=victim.address),
        f"{victim.name} did not register again",
    )
    drill.checks.append(await_clean(drill))
    drill.figure("former replicas gone", (drill.now_ms() - started_ms) / 1000, "from the restart; all HEALTHY")
    drill.await_answers(OPERATIONS, "clients of tablets did not go on")
    # The balancer may have given the server members again by now, under new numbers.
    members_may_change(drill)
    return drill.finish(NAME, gap_max_s=gap_max_s)
