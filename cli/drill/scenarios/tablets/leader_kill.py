"""Drill: a region server that leads tablets is killed; other members lead them at once, and nothing moves."""

from __future__ import annotations

from typing import Final, NamedTuple

from cli.common.errors import CliError
from cli.drill.report import DrillReport
from cli.drill.run import Drill
from cli.drill.tablets import leaders, members_on, require_tablets
from regions.records.model import RegionRecord, ServerRecord

NAME: Final = "tablet-leader-kill"

#: Operations of each client before the fault, and after a tablet has a new leader.
OPERATIONS: Final = 20


class LeaderVictim(NamedTuple):
    """A server that leads tablets."""

    record: ServerRecord
    #: Name of its daemon.
    name: str
    #: Tablets that the server leads, and the number of tablets of which it is a member.
    led: frozenset[str]
    members: int

    @property
    def address(self) -> str:
        """Return its address as in the memberships."""
        return f"{self.record.host}:{self.record.port}"


def run(drill: Drill, server_name: str | None, gap_max_s: float) -> DrillReport:
    """Kill a server that leads (a random one unless named), wait for new leaders, restart it, check."""
    victim, others = prepare(drill, server_name)
    drill.strike("no leader")
    killed_ms = drill.kill(victim.name)
    await_new_leaders(drill, victim, others, killed_ms)
    drill.phase("without it")
    drill.await_answers(OPERATIONS, "clients of tablets did not go on")
    drill.wait(
        lambda: drill.membership("server-down", killed_ms, address=victim.address),
        "the store did not notice the server's death",
    )
    drill.phase("back")
    bring_back(drill, victim, killed_ms)
    return drill.finish(NAME, gap_max_s=gap_max_s)


def prepare(drill: Drill, server_name: str | None) -> tuple[LeaderVictim, list[ServerRecord]]:
    """Check the cluster, choose the victim, start the load; return the victim and the other servers."""
    before = drill.require_rest(servers=3)
    tablets = require_tablets(drill.cluster)
    servers = drill.servers()
    victim = choose_leader(drill, servers, tablets, server_name)
    drill.victim = victim.name
    drill.say(
        f"at rest: {len(tablets)} tablets on {before.servers} servers;"
        f" {victim.name} leads {len(victim.led)} of them and is a member of {victim.members}"
    )
    drill.begin()
    drill.await_answers(OPERATIONS, "clients of tablets did not start")
    return victim, [one for one in servers if one.uuid != victim.record.uuid]


def choose_leader(
    drill: Drill, servers: list[ServerRecord], tablets: dict[str, RegionRecord], server_name: str | None
) -> LeaderVictim:
    """Return a random server that leads tablets, or the named one. Raise CliError if it leads none."""
    by_server: dict[str, set[str]] = {}
    for tablet, leader in leaders(servers).items():
        if tablet in tablets:
            by_server.setdefault(leader.server, set()).add(tablet)
    candidates = [drill.names.find(server_name)] if server_name else servers
    leading = sorted((one for one in candidates if by_server.get(one.uuid)), key=lambda one: one.uuid)
    if not leading:
        raise CliError(
            f"{server_name or 'no server'} leads a tablet with several replicas", "`rk tablet list` shows who leads."
        )
    found = drill.rng.choice(leading)
    name = drill.daemon_of(found.host, found.port)
    return LeaderVictim(found, name, frozenset(by_server[found.uuid]), members_on(tablets, found.uuid))


def await_new_leaders(drill: Drill, victim: LeaderVictim, others: list[ServerRecord], since_ms: int) -> None:
    """Wait until other servers lead all tablets of the victim, without asking store or masters."""

    def have_leaders() -> bool:
        found = leaders(others)
        return all(tablet in found for tablet in victim.led)

    drill.wait(have_leaders, f"the tablets of {victim.name} have no new leaders")
    drill.figure(
        "all its tablets led elsewhere", (drill.now_ms() - since_ms) / 1000, "by the answers of the other servers"
    )


def bring_back(drill: Drill, victim: LeaderVictim, since_ms: int) -> None:
    """Start the victim, and wait until all its replicas run."""
    drill.restart(victim.name)
    started_ms = drill.now_ms()
    drill.wait(
        lambda: drill.membership("server-up", since_ms, address=victim.address),
        f"{victim.name} did not register again",
    )
    drill.wait(drill.at_rest, "replicas of tablets did not come back")
    drill.figure("its replicas run again", (drill.now_ms() - started_ms) / 1000, "from the restart; nothing has moved")
