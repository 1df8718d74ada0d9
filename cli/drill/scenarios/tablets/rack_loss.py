"""Drill: all servers of one rack are killed at once, and started again.

Before the kill the drill prints the tablets that the other racks will serve, and the tablets that will have no
majority. Afterwards it compares this forecast with the answers to clients. It starts the servers again before their
members are given up.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from cli.common import output
from cli.common.errors import CliError, NotFoundError
from cli.drill.freezing.forecast import checks
from cli.drill.replacing.losses import Loss, answered_within, compare, loss_of
from cli.drill.report import DrillReport, Figure
from cli.drill.run import Drill
from cli.drill.scenarios.tablets.healing import (
    CopyWatch,
    await_clean,
    members_may_change,
    require_replicated,
)
from cli.drill.scenarios.tablets.leader_kill import OPERATIONS
from cli.drill.tablets import leaders
from regions.records.model import ServerRecord

NAME: Final = "tablet-rack-loss"

#: The rack is gone for this time after the other servers lead, and for a random time up to the second value longer.
GONE_S: Final = 2.0
GONE_MORE_S: Final = 3.0


class Rack(NamedTuple):
    """A rack: its servers, and the names of their daemons."""

    name: str
    servers: list[ServerRecord]
    daemons: list[str]

    @property
    def uuids(self) -> frozenset[str]:
        """Return the uuids of the rack's servers."""
        return frozenset(one.uuid for one in self.servers)


def run(drill: Drill, rack_name: str | None, gap_max_s: float) -> DrillReport:
    """Forecast, kill all servers of a rack (a random one unless named), watch, start them again, compare, check."""
    tablets = require_replicated(drill, away=0)
    rack = choose(drill, rack_name)
    others = [one for one in drill.servers() if one.uuid not in rack.uuids]
    loss = loss_of(tablets, rack.uuids)
    drill.victim = rack.name
    drill.action = f"({', '.join(rack.daemons)}) was killed with SIGKILL"
    drill.arguments = f" --rack {rack.name}" if rack_name else ""
    drill.say(f"at rest: {len(tablets)} tablets on {len(others) + len(rack.servers)} servers")
    drill.say(forecast_words(rack, loss))
    drill.begin()
    drill.await_answers(OPERATIONS, "clients of tablets did not start")
    copies = CopyWatch(drill)
    drill.strike("no leader")
    for name in rack.daemons:
        drill.kill(name, is_quiet=True)
    killed_ms = drill.now_ms()
    drill.say(f"killed {', '.join(rack.daemons)} (SIGKILL)")
    drill.wait(lambda: not any(drill.daemons()[name].pid for name in rack.daemons), "servers of the rack did not end")
    since = _clocks(drill)
    drill.wait(lambda: loss.served <= leaders(others).keys(), "tablets with a majority have no leader")
    if loss.served:
        drill.figure("all others led", (drill.now_ms() - killed_ms) / 1000, "tablets with a majority, by the servers")
    drill.phase("without the rack")
    if not loss.lost:
        drill.await_answers(OPERATIONS, "clients of tablets did not go on")
    drill.wait_until(drill.now_ms() + round(1000 * (GONE_S + GONE_MORE_S * drill.rng.random())))
    _await_each(drill, loss, since)
    answered = _answered(drill, since)
    drill.phase("back")
    back_ms = drill.now_ms()
    for name in rack.daemons:
        drill.restart(name, is_quiet=True)
    gone_s = (back_ms - killed_ms) / 1000
    drill.figures.append(Figure("rack gone", round(gone_s, 3), "s", "until its servers were started"))
    drill.say(f"started {', '.join(rack.daemons)} again after {gone_s:.1f} s")
    drill.checks.append(await_clean(drill))
    drill.figure("all HEALTHY again", (drill.now_ms() - back_ms) / 1000, "from the start of its servers")
    drill.await_answers(OPERATIONS, "clients of tablets did not go on")
    drill.figures += copies.figures()
    drill.forecast = compare(loss, answered, gone_s)
    drill.checks += checks(drill.forecast)
    members_may_change(drill)
    # Requests to tablets without a majority fail as forecast, so their failures do not break the verdict.
    return drill.finish(NAME, gap_max_s=None if loss.lost else gap_max_s)


def choose(drill: Drill, rack_name: str | None) -> Rack:
    """Return the rack: a random one with servers that take tablets, unless named. Raise CliError."""
    racks: dict[str, list[ServerRecord]] = {}
    for one in drill.servers():
        racks.setdefault(one.rack, []).append(one)
    if len(racks) < 2:
        raise CliError("all servers are in one rack: no server would be left", "Start a cluster with --racks 3.")
    if rack_name is not None and rack_name not in racks:
        raise NotFoundError(f"there is no rack {rack_name!r}", f"Racks: {', '.join(sorted(racks))}.")
    name = rack_name or drill.rng.choice(sorted(racks))
    servers = sorted(racks[name], key=lambda one: one.port)
    return Rack(name, servers, [drill.daemon_of(one.host, one.port) for one in servers])


def forecast_words(rack: Rack, loss: Loss) -> str:
    """Return the forecast as one line for people."""
    words = (
        f"forecast without {rack.name} ({', '.join(rack.daemons)}): {output.count(len(loss.hit), 'tablet')} lose"
        f" members there; the others serve {len(loss.served)}"
    )
    if not loss.lost:
        return f"{words}, which are all"
    named = ", ".join(sorted(loss.lost)[:3]) + (", …" if len(loss.lost) > 3 else "")
    return f"{words}; {len(loss.lost)} are without a majority until the rack is back: {named}"


def _clocks(drill: Drill) -> dict[str, float]:
    """Return the clock of each load."""
    return drill.traffic.now_s() if drill.traffic is not None else {}


def _answered(drill: Drill, since: dict[str, float]) -> set[str] | None:
    """Return the tablets with an operation that began and was answered after that time; None without clients."""
    if drill.traffic is None or not drill.traffic.is_running:
        return None
    now = drill.traffic.now_s()
    found: set[str] = set()
    for table, operations in drill.traffic.operations().items():
        found |= answered_within(operations, since[table], now[table])
    return found & drill.tablets.keys()


def _await_each(drill: Drill, loss: Loss, since: dict[str, float]) -> None:
    """Wait until a client of each tablet with a majority was answered."""
    if drill.traffic is not None and drill.traffic.is_running:
        drill.wait(lambda: loss.served <= (_answered(drill, since) or set()), "clients of tablets did not go on")
