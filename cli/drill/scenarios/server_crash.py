"""Drill: a region server is killed; its shared regions reopen elsewhere, its tablets are led elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cli.common import output
from cli.common.asking.servers import ask_server
from cli.common.errors import CliError
from cli.drill.report import DrillReport, spread
from cli.drill.run import Drill
from cli.drill.tablets import leaders, members_on, running_tablets
from cli.up.progress import open_words
from coord.rpc.wire import RpcError
from regions import messages
from regions.records.model import ServerRecord
from regions.records.replica_key import replica_key
from regions.transitions.observed import NONE, Change

NAME: Final = "server-crash"


def run(drill: Drill, server_name: str | None) -> DrillReport:
    """Kill the server (a random one unless named), measure, restart it, check."""
    before = drill.require_rest(servers=2)
    victim, regions = choose(drill, server_name)
    name = drill.victim = drill.daemon_of(victim.host, victim.port)
    others = [one for one in drill.servers() if one.uuid != victim.uuid]
    members = members_on(running_tablets(drill.cluster), victim.uuid)
    held = [output.count(len(regions), "shared region")] if regions or not members else []
    held += [f"{output.count(members, 'replica')} of tablets"] if members else []
    drill.say(f"at rest: {open_words(before)} open on {before.servers} servers; {name} has {' and '.join(held)}")
    drill.begin()
    drill.strike("unnoticed")
    killed_ms = drill.kill(name)
    address = f"{victim.host}:{victim.port}"
    _wait_led(drill, others, killed_ms)
    gone_ms = drill.wait(
        lambda: drill.membership("server-down", killed_ms, address=address),
        "the store did not notice the server's death",
    )
    drill.figure(
        "until noticed", (gone_ms - killed_ms) / 1000, "the session timeout; until the store dropped the server"
    )
    drill.phase("reopening")
    reopened = wait_reopened(drill, victim, regions, killed_ms)
    if reopened:
        last_ms = max(reopened.values())
        drill.figure(
            "all its regions OPENED", (last_ms - killed_ms) / 1000, "from the kill to the last region open elsewhere"
        )
        drill.figure(
            "of that, reassigning", (last_ms - gone_ms) / 1000, "from the notice to the last region open elsewhere"
        )
    drill.wait(lambda: drill.at_rest(members), "regions did not come to rest")
    drill.phase("back")
    drill.restart(name)
    drill.wait(lambda: drill.membership("server-up", killed_ms, address=address), f"{name} did not register again")
    drill.say(f"{name} is back; nothing moves back to it, and replicas of tablets have stayed there")
    if reopened:
        lost = [(at_ms - killed_ms) / 1000 for at_ms in reopened.values()]
        drill.figures += spread("region not open", lost, "from the kill to OPENED, each region of the victim")
    return drill.finish(NAME)


def _wait_led(drill: Drill, others: list[ServerRecord], since_ms: int) -> None:
    """Wait until the other servers lead every tablet; none of them moves."""
    if drill.tablets:
        drill.wait(lambda: drill.tablets.keys() <= leaders(others).keys(), "tablets have no leader")
        drill.figure("all tablets led elsewhere", (drill.now_ms() - since_ms) / 1000, "by the other servers' answers")


def choose(drill: Drill, wanted: str | None) -> tuple[ServerRecord, set[str]]:
    """Return the victim and its open replicas by its own list: a random server with replicas, unless one is named."""
    candidates = [drill.names.find(wanted)] if wanted else drill.servers()
    held: list[tuple[ServerRecord, set[str]]] = []
    for server in candidates:
        try:
            found = ask_server(server, messages.ListOpen(server.uuid), messages.OpenList)
        except RpcError as error:
            raise CliError(f"server {server.host}:{server.port} does not answer: {error.message}") from error
        keys: set[str] = {replica_key(one.region_id, one.replica) for one in found.replicas}
        held.append((server, keys))
    return drill.rng.choice([one for one in held if one[1]] or held)


def wait_reopened(drill: Drill, victim: ServerRecord, regions: set[str], since_ms: int) -> dict[str, int]:
    """Wait until each of `regions` was OPENED on another server; return the times."""
    if not regions:
        drill.notes.append("the victim had no shared region open: nothing moved")
        return {}
    drill.wait(lambda: _all_reopened(drill, victim, regions, since_ms) is not None, "its regions did not reopen")
    return _all_reopened(drill, victim, regions, since_ms) or {}


def _all_reopened(drill: Drill, victim: ServerRecord, regions: set[str], since_ms: int) -> dict[str, int] | None:
    """Return when each of `regions` that the fault hit was OPENED on another server, or None until all were."""
    hit = regions - left_before(drill.changes_since(0), victim, since_ms)
    opened: dict[str, int] = {}
    for change in drill.changes_since(since_ms):
        if change.key not in hit:
            continue
        elsewhere = change.record.destination != victim.incarnation
        # The transition ended without an observed OPENED: the step was too quick to be read, and the region is open by
        # now.
        if change.after == NONE or (change.after == "OPENED" and elsewhere):
            opened.setdefault(change.key, change.at_ms)
    return opened if len(opened) == len(hit) else None


def left_before(changes: Iterable[Change], victim: ServerRecord, since_ms: int) -> set[str]:
    """Return the replicas that had left `victim` before the fault, for example because the balancer moved them."""
    last = {change.key: change for change in changes if change.at_ms < since_ms}
    return {
        key
        for key, change in last.items()
        if change.after in ("OPENED", NONE) and change.record.destination != victim.incarnation
    }
