"""Drill: a region server is frozen for longer than its lease, then continues: it must not serve its former regions.

During the freeze, reads and writes that name the server's openings are sent for each of its regions; they wait in its
socket buffer. When the server continues, it finds them before it notices the passed time. It must reject every request,
and none of the rows may ever appear.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from cli.drill.probes import ANSWERED, Probes, ProbeTarget
from cli.drill.report import DrillReport, Figure, InvariantCheck, check, spread
from cli.drill.run import Drill
from cli.drill.scenarios.server_crash import choose, wait_reopened
from cli.up.progress import open_words
from coord.rpc.wire import Code
from regions.records.model import ServerRecord
from regionserver.request_gate import Place

NAME: Final = "server-freeze"

#: The server stays frozen for a random time up to this after its regions are open elsewhere.
_FROZEN_MORE_S: Final = 2.0
_PROBE_TIMEOUT_S: Final = 60.0


def run(drill: Drill, server_name: str | None) -> DrillReport:
    """Freeze the server, wait until its regions are elsewhere, continue it, check its replies."""
    before = drill.require_rest(servers=2)
    victim, regions = choose(drill, server_name)
    name = drill.victim = drill.daemon_of(victim.host, victim.port)
    drill.action = "was frozen with SIGSTOP, longer than its lease"
    drill.say(f"at rest: {open_words(before)} open on {before.servers} servers, {len(regions)} of them on {name}")
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
        drill.say(f"sent {name} {2 * len(probes.targets)} requests that name its old openings; they wait in its socket")
    until_ms = drill.now_ms() + int(1000 * _FROZEN_MORE_S * drill.rng.random())
    drill.wait_until(until_ms)
    drill.phase("awake")
    awake_ms = drill.unfreeze(name)
    drill.figures.append(Figure("frozen", round((awake_ms - frozen_ms) / 1000, 3), "s", "from SIGSTOP to SIGCONT"))
    outcomes = probes.answers(_PROBE_TIMEOUT_S)
    drill.wait(lambda: drill.membership("server-up", awake_ms, address=address), f"{name} did not register again")
    drill.figure("until it registered again", (drill.now_ms() - awake_ms) / 1000, "from SIGCONT, with a new start code")
    drill.checks += _check_rejections(drill, probes.targets, outcomes, name)
    lost = [(at_ms - frozen_ms) / 1000 for at_ms in reopened.values()]
    drill.figures += spread("region not open", lost, "from the freeze to OPENED elsewhere, each region of the victim")
    return drill.finish(NAME)


def _targets(drill: Drill, victim: ServerRecord) -> list[ProbeTarget]:
    """Return the victim's regions with rows, and requests as a client with the present locations would send."""
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


def _check_rejections(
    drill: Drill, targets: list[ProbeTarget], outcomes: list[tuple[str, str, str]], name: str
) -> list[InvariantCheck]:
    """Check that no request for the old openings was answered, and that none of their rows exists."""
    if not targets or drill.traffic is None:
        drill.notes.append("the victim had no region with rows: no requests were sent to it")
        return []
    served = [f"{name} answered a {kind} of {region}" for kind, region, word in outcomes if word == ANSWERED]
    silent = [f"{name} never answered a {kind} of {region}" for kind, region, word in outcomes if word == Code.TIMEOUT]
    words = Counter(word for _, _, word in outcomes)
    detail = ", ".join(f"{count} x {word}" for word, count in words.most_common())
    drill.say(f"replies of {name} to requests for its old openings: {detail}")
    appeared = [
        f"{one.region.region_id}: a write to the frozen server exists"
        for one in targets
        if drill.traffic.client.get(one.table, one.key) is not None
    ]
    return [
        check("nothing was served from the old lease", served + silent, f"{len(outcomes)} requests: {detail}"),
        check("no rejected write appeared", appeared, f"{len(targets)} regions read at their new owners"),
    ]
