"""Drill: every process is killed, and all are started again; every acknowledged write must exist."""

from __future__ import annotations

import threading
from typing import Final

from cli.common.access import is_answering
from cli.drill.report import DrillReport
from cli.drill.run import Drill
from cli.drill.store_nodes import leader_but
from cli.drill.writers import Writers
from cli.up.progress import open_words
from regions import messages

NAME: Final = "kill-everything"

_WRITES: Final = 100
#: All daemons are down for a random time up to this.
DOWN_MORE_S: Final = 2.0


def run(drill: Drill) -> DrillReport:
    """Write, kill everything, start everything, wait until all regions are open, check."""
    before = drill.require_rest(servers=1)
    drill.victim = "every daemon"
    former = {one.uuid: one.start_code for one in drill.servers()}
    drill.say(f"at rest: {open_words(before)} open on {before.servers} servers, epoch {before.epoch}")
    writers = Writers(drill, {"any-node": drill.cluster.hosts}) if drill.local.coord else None
    if writers is not None:
        writers.start()
    drill.begin()
    if writers is not None:
        writers.until_acked(_WRITES, "writers did not start")
    names = [one.name for one in drill.local.daemons()]
    drill.rng.shuffle(names)
    drill.strike("down")
    killed_ms = drill.now_ms()
    for name in names:
        drill.kill(name, is_quiet=True)
    drill.say(f"killed all {len(names)} (SIGKILL) within {(drill.now_ms() - killed_ms) / 1000:.2f} s")
    threading.Event().wait(DOWN_MORE_S * drill.rng.random())
    drill.phase("store")
    drill.rng.shuffle(names)
    started_ms = drill.now_ms()
    for name in names:
        drill.restart(name, is_quiet=True)
    drill.say(f"started all again: {', '.join(names)}")
    _wait_store(drill, started_ms)
    drill.phase("master")
    active = drill.wait(lambda: _new_master(drill, before.epoch), "no master became active")
    drill.figure(
        "active master", (drill.now_ms() - started_ms) / 1000, "from the start; includes the former master's session"
    )
    drill.say(f"epoch {active.epoch}")
    drill.phase("regions")
    drill.wait(lambda: _all_new(drill, former), "the region servers did not register again")
    drill.wait(drill.at_rest, "regions did not come to rest")
    drill.figure("all regions OPENED", (drill.now_ms() - started_ms) / 1000, "from the start")
    drill.await_rest()
    drill.figure("everything answers", (drill.now_ms() - killed_ms) / 1000, "from the first kill")
    if writers is not None:
        writers.until_acked(_WRITES, "writers did not continue", since_ms=started_ms)
        writers.add_gap_figures()
        drill.checks += writers.check()
    return drill.finish(NAME, new_epoch_after=before.epoch)


def _wait_store(drill: Drill, started_ms: int) -> None:
    if drill.local.coord:
        drill.wait(lambda: leader_but(drill, ""), "the store elected no leader")
        drill.figure("store has a leader", (drill.now_ms() - started_ms) / 1000, "from the start")
    else:
        drill.wait(
            lambda: any(is_answering(host) for host in drill.local.store.split(",")), "the store does not answer"
        )


def _new_master(drill: Drill, epoch: int) -> messages.MasterStatus | None:
    found = drill.status()
    return found if found is not None and found.role == "active" and found.epoch > epoch else None


def _all_new(drill: Drill, former: dict[str, int]) -> bool:
    """Return True if every server has registered again. An old registration lives as long as its session."""
    now = {one.uuid: one.start_code for one in drill.servers()}
    return len(now) == len(drill.local.servers) and all(now.get(uuid, 0) > code for uuid, code in former.items())
