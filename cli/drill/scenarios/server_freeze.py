"""Drill: a region server is frozen for longer than its lease, and goes on: it must not serve what it no longer has.

While it is frozen, requests that name its own openings are sent to it, reads and writes for each of its regions; they
wait in its socket buffer. When it goes on it believes for a moment that no time has passed and finds them there. Every
one must be refused, and none of the rows may ever appear.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from cli.drill.probes import ANSWERED, Probes, ProbeTarget
from cli.drill.report import DrillReport, Figure, InvariantCheck, check, spread
from cli.drill.run import Drill
from cli.drill.scenarios.server_crash import choose, wait_reopened
from coord.rpc.wire import Code
from regions.records.model import ServerRecord
from regionserver.request_gate import Place

NAME: Final = "server-freeze"

#: It stays frozen for up to so long after its regions are open elsewhere, as the seed says.
_FROZEN_MORE_S: Final = 2.0
_PROBE_TIMEOUT_S: Final = 60.0


def run(drill: Drill, server_name: str | None) -> DrillReport:
    """Freeze the server, wait until its regions are elsewhere, let it go on, check what it does."""
    before = drill.require_rest(servers=2)
    victim, regions = choose(drill, server_name)
    name = drill.victim = drill.daemon_of(victim.host, victim.port)
    drill.action = "was frozen with SIGSTOP, longer than its lease"
    drill.say(f"at rest: {before.open} regions open on {before.servers} servers, {len(regions)} of them on {name}")
    drill.begin()
    probes = Probes(victim, _targets(drill, victim))
    drill.at_end(probes.close)
    address = f"{victim.host}:{victim.port}"
    drill.strike("unnoticed")
    frozen_ms = drill.freeze(name)
    gone_ms = drill.wait(
        lambda: drill.membership("server-down", frozen_ms, address=address), "the store did not notice the freeze"
    )
    drill.figure(
        "until noticed", (gone_ms - frozen_ms) / 1000, "the session timeout; until the store dropped the server"
    )
    drill.phase("reopening")
    reopened = wait_reopened(drill, victim, regions, frozen_ms)
    last_ms = max(reopened.values(), default=gone_ms)
    drill.figure(
        "all its regions OPENED", (last_ms - frozen_ms) / 1000, "from the freeze to the last one open elsewhere"
    )
    drill.phase("frozen on")
    probes.send()
    if probes.targets:
        drill.say(f"sent it {2 * len(probes.targets)} requests that name its old openings; they wait for it")
    until_ms = drill.now_ms() + int(1000 * _FROZEN_MORE_S * drill.rng.random())
    drill.wait(lambda: drill.now_ms() >= until_ms, "time stands still")
    drill.phase("awake")
    awake_ms = drill.unfreeze(name)
    drill.figures.append(Figure("frozen", round((awake_ms - frozen_ms) / 1000, 3), "s", "from SIGSTOP to SIGCONT"))
    outcomes = probes.answers(_PROBE_TIMEOUT_S)
    drill.wait(lambda: drill.membership("server-up", awake_ms, address=address), f"{name} did not register again")
    drill.figure("until it joined again", (drill.now_ms() - awake_ms) / 1000, "from SIGCONT, under a new start code")
    drill.checks += _check_refusals(drill, probes.targets, outcomes, name)
    lost = [(at_ms - frozen_ms) / 1000 for at_ms in reopened.values()]
    drill.figures += spread("region not open", lost, "from the freeze to OPENED elsewhere, each region of the victim")
    return drill.finish(NAME)


def _targets(drill: Drill, victim: ServerRecord) -> list[ProbeTarget]:
    """The victim's regions that keep rows, and what a client that knows them now would ask for."""
    traffic = drill.traffic
    if traffic is None:
        return []
    found = []
    for table in traffic.tables.regions:
        for region in traffic.locator.regions(table) or []:
            place = Place.of(region)
            if place is not None and (place.server, place.start_code) == (victim.uuid, victim.start_code):
                found.append(ProbeTarget(table, region, place))
    return found


def _check_refusals(
    drill: Drill, targets: list[ProbeTarget], outcomes: list[tuple[str, str, str]], name: str
) -> list[InvariantCheck]:
    """No request of the old openings was answered, and no row of theirs is there."""
    if not targets or drill.traffic is None:
        drill.notes.append("the victim had no region with rows: nothing was asked of it")
        return []
    served = [f"{name} answered a {kind} of {region}" for kind, region, word in outcomes if word == ANSWERED]
    silent = [f"{name} never answered a {kind} of {region}" for kind, region, word in outcomes if word == Code.TIMEOUT]
    words = Counter(word for _, _, word in outcomes)
    detail = ", ".join(f"{count} x {word}" for word, count in words.most_common())
    drill.say(f"what {name} said to requests for its old openings: {detail}")
    appeared = [
        f"{one.region.region_id}: a write to the frozen server is there"
        for one in targets
        if drill.traffic.client.get(one.table, one.key) is not None
    ]
    return [
        check("nothing was served from the old lease", served + silent, f"{len(outcomes)} requests: {detail}"),
        check("no refused write appeared", appeared, f"{len(targets)} regions read at their new owners"),
    ]
