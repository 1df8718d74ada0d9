"""Drill: clients create, alter, rename and delete tables while the active master is killed, frozen or deposed (TS-04).

The drill forces one election after the other and starts some operations just before each. In the end the store, the
active master and the region servers must have exactly the tables that the acknowledged operations make.
"""

from __future__ import annotations

import enum
import random
import time
from collections import Counter
from functools import partial
from typing import Final

from kazoo.exceptions import NoNodeError

from cli.common import output
from cli.common.connect import ask_server, is_answering
from cli.common.errors import CliError
from cli.drill.report import DrillReport, Figure, InvariantCheck, check, percentile, spread
from cli.drill.run import Drill
from cli.drill.scenarios.ddl_clients import DEADLINE_S, DdlClients
from coord.rpc.wire import RpcError
from regions import messages
from regions.messages.ddl import DeleteTable
from regions.records.model import ActiveRecord, Incarnation
from regions.records.znodes import decode_region
from simulation.ddl_stress.catalog_snapshot import CatalogCheck, RestingCluster, check_catalog
from simulation.ddl_stress.model import LoggedOperation

NAME: Final = "ddl-storm"

#: A strike comes at a random moment of so long after operations were let loose.
_MOMENT_S: Final = 0.15
#: How long after the last election the catalogue may still differ from the model.
_REST_S: Final = 60.0
#: A line of progress this often.
_SAY_EVERY_S: Final = 5.0


class How(enum.StrEnum):
    """Ways in which the active master loses leadership."""

    KILL = "killed"
    FREEZE = "frozen"
    DEPOSE = "deposed"


class DrillDice:
    """`simulation.ddl_stress.operations.RandomSource` of the drill's seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, bound: int) -> int:
        """See RandomSource."""
        return self._random.randrange(bound)


class Elections:
    """Forces them, and notes how long each took."""

    def __init__(self, drill: Drill) -> None:
        self._drill = drill
        #: Seconds without an active master, each time.
        self.gaps_s: dict[How, list[float]] = {how: [] for how in How}

    @property
    def count(self) -> int:
        """Return the number of elections."""
        return sum(len(found) for found in self.gaps_s.values())

    def force(self, how: How) -> None:
        """Take the place from the active master, wait for the next one, and bring the former one back."""
        drill = self._drill
        active = drill.wait(drill.cluster.active, "no master is active")
        drill.wait(lambda: self._has_standby(active), "there is no standby master")
        name = drill.daemon_of(active.host, active.port)
        began_ms = drill.now_ms()
        if how is How.KILL:
            drill.kill(name, is_quiet=True)
        elif how is How.FREEZE:
            drill.freeze(name, is_quiet=True)
        else:
            self._vacate()
        try:
            next_ms = drill.wait(lambda: self._taken_over_ms(began_ms, active.epoch), f"no master follows {name}")
        finally:
            if how is How.KILL:
                drill.restart(name, is_quiet=True)
            elif how is How.FREEZE:
                drill.unfreeze(name, is_quiet=True)
        self.gaps_s[how].append((next_ms - began_ms) / 1000)

    def _taken_over_ms(self, since_ms: int, epoch: int) -> int | None:
        """Return when a master became active under a later epoch."""
        for one in list(self._drill.follower.memberships):
            if one.what == "active" and one.at_ms >= since_ms and one.epoch > epoch:
                return one.at_ms
        return None

    def _has_standby(self, active: ActiveRecord) -> bool:
        """Return whether another master answers. The registration of a killed master outlives its process."""
        others = [one for one in self._drill.cluster.masters() if one.uuid != active.uuid]
        return any(is_answering(f"{one.host}:{one.port}") for one in others)

    def _vacate(self) -> None:
        """Delete `/active` while its master runs: that master stays active until its watch fires."""
        cluster = self._drill.cluster
        try:
            cluster.client.delete(cluster.layout.active)
        except NoNodeError:
            return


class Crashes:
    """Region servers that are killed meanwhile, one at a time. The others must open, alter and close the tablets."""

    def __init__(self, drill: Drill, wanted: int, elections: int) -> None:
        self._drill = drill
        self._wanted = wanted
        self._elections = elections
        self._dead = ""
        self.count = 0

    def strike(self, number: int) -> None:
        """Kill a server if one is due: the crashes are spread evenly over the elections, counted from 0."""
        drill = self._drill
        if self.count >= self._wanted * (number + 1) // self._elections:
            return
        running = drill.daemons()
        names = [one.name for one in drill.local.servers if running[one.name].pid]
        if len(names) > 1:
            self._dead = drill.rng.choice(names)
            drill.kill(self._dead, is_quiet=True)
            self.count += 1

    def bring_back(self) -> None:
        """Start the dead one again."""
        drill, name = self._drill, self._dead
        if name:
            # `rk up` starts only what it has seen end.
            drill.wait(lambda: not drill.daemons()[name].pid, f"{name} did not die")
            drill.restart(name, is_quiet=True)
            self._dead = ""


def run(drill: Drill, elections: int, operations: int, client_count: int, server_crashes: int = 0) -> DrillReport:
    """Do it, wait until all is at rest, compare, and take the tables away."""
    before = drill.require_rest(masters=2)
    drill.victim = "the active master"
    known = {one.table_id for one in drill.cluster.tables()}
    drill.say(f"at rest: {before.open} regions open on {before.servers} servers, epoch {before.epoch}")
    drill.begin()
    prefix = f"ddl-storm-{drill.now_ms():x}"
    masters = [one.address for one in drill.local.masters]
    clients = DdlClients(client_count, masters, DrillDice(drill.seed), prefix, drill.news)
    drill.at_end(lambda: _take_away(drill, prefix))
    drill.at_end(clients.give_up)
    drill.strike("operations")
    clients.start()
    forced = Elections(drill)
    crashes = Crashes(drill, min(server_crashes, elections), elections)
    _force_elections(drill, clients, forced, crashes, elections, operations)
    clients.stop()
    if clients.faults:
        raise CliError(f"a client of the drill failed: {clients.faults[0]!r}")
    for how, gaps in forced.gaps_s.items():
        drill.figures += spread(f"no active master, {how.value}", gaps, f"{len(gaps)} times") if gaps else []
    drill.action = f"lost its place {forced.count} times"
    drill.phase("rest")
    findings = _at_rest(drill, clients, known)
    drill.figures += _figures(clients, forced)
    if crashes.count:
        drill.figures.append(Figure("region servers killed", crashes.count, "", "one at a time"))
    drill.checks += [_as_check(one) for one in findings]
    _take_away(drill, prefix)
    return drill.finish(NAME, new_epoch_after=before.epoch + elections - 1)


def _force_elections(
    drill: Drill, clients: DdlClients, forced: Elections, crashes: Crashes, elections: int, operations: int
) -> None:
    """Elections one after the other, each with its share of the operations; all but the last few of which have ended
    before the next one."""
    shown_s = time.monotonic()
    granted = 0
    for number in range(elections):
        share = operations * (number + 1) // elections - granted
        granted += share
        clients.allowance.grant(share)
        time.sleep(_MOMENT_S * drill.rng.random())
        # Each way at least once, as far as there are so many.
        how = list(How)[number] if number < len(How) else drill.rng.choice(list(How))
        crashes.strike(number)
        forced.force(how)
        crashes.bring_back()
        due = granted - clients.count
        drill.wait(partial(clients.has_done, due), "operations do not end", DEADLINE_S + 10)
        if time.monotonic() - shown_s > _SAY_EVERY_S or number + 1 == elections:
            shown_s = time.monotonic()
            drill.say(f"{forced.count} of {elections} elections, {clients.done} of {operations} operations")
    drill.wait(clients.is_idle, "operations did not end", DEADLINE_S + 10)
    drill.say(f"{forced.count} elections, {clients.done} operations")


def _at_rest(drill: Drill, clients: DdlClients, known: set[str]) -> list[CatalogCheck]:
    """Wait until nothing moves and the catalogue is what it must be; what is found then, or when the time is over."""
    drill.settle()
    began_s = time.monotonic()
    while True:
        findings = check_catalog(clients.log, read_cluster(drill).without(known))
        late = time.monotonic() - began_s > _REST_S
        if late or not any(one.breaches for one in findings):
            return findings
        if not any(one.breaches for one in findings[3:]):
            return findings  # what was told will not become right by waiting
        time.sleep(0.5)


def read_cluster(drill: Drill) -> RestingCluster:
    """Ask the store, the active master and every server."""
    cluster = drill.cluster
    tables = cluster.tables()
    regions = []
    for table_id in cluster.children(cluster.layout.regions):
        folder = cluster.layout.table_regions(table_id)
        regions += [decode_region(data, f"{folder}/{name}") for name, data in cluster.get_all(folder).items()]
    names = {name: data.decode() for name, data in cluster.get_all(cluster.layout.names).items()}
    answered = cluster.ask_master(messages.ListTables(), messages.Tables).tables
    hosted: dict[str, list[messages.HostedReplica] | None] = {}
    for server in cluster.servers():
        try:
            found = ask_server(server, messages.ListOpen(server.uuid), messages.OpenList)
        except RpcError:
            hosted[str(server.incarnation)] = None
        else:
            hosted[str(Incarnation(found.uuid, found.start_code))] = found.replicas
    transitions = [path.rpartition("/")[2] for path in cluster.transitions_left()]
    return RestingCluster(tables, names, regions, transitions, [one.table for one in answered], hosted)


def _as_check(finding: CatalogCheck) -> InvariantCheck:
    return check(finding.what, finding.breaches, finding.detail)


def _figures(clients: DdlClients, forced: Elections) -> list[Figure]:
    """Counts of operations by kind and result, of elections by kind, and how long the operations took."""
    operations = clients.log.entries
    counts = Counter((one.operation.kind.value, one.outcome.label) for one in operations)
    found = [
        Figure(
            "elections", forced.count, "", ", ".join(f"{len(one)} {how.value}" for how, one in forced.gaps_s.items())
        ),
        Figure("operations", len(operations), "", f"of {len(clients.log.histories())} tables"),
    ]
    found += [Figure(f"{kind}: {word}", count, "", "") for (kind, word), count in sorted(counts.items())]
    again = sum(count > 1 for count in clients.attempts.values())
    found.append(Figure("asked more than once", again, "", "operations whose first attempt brought no definite result"))
    answered = [one for one in operations if not one.is_unanswered]
    waits = [one.ended - one.asked for one in answered]
    longest: LoggedOperation | None = max(answered, key=lambda one: one.ended - one.asked, default=None)
    found += [
        Figure("operation, median", round(percentile(waits, 0.5), 3), "s", "from the first attempt to the result"),
        Figure("operation, p99", round(percentile(waits, 0.99), 3), "s", ""),
        Figure("longest wait", round(max(waits, default=0.0), 3), "s", "" if longest is None else str(longest)),
    ]
    return found


def _take_away(drill: Drill, prefix: str) -> None:
    """Delete the tables that are left. Their records stay, as those of every deleted table do (MD-06)."""
    listed = drill.cluster.ask_master(messages.ListTables(), messages.Tables).tables
    left = [one.table for one in listed if one.table.name.startswith(prefix)]
    if left:
        drill.say(f"deleting {output.count(len(left), 'table')}")
    for table in left:
        request = DeleteTable(table.table_id, request_id=f"{prefix}.{table.table_id}", wait_ms=30_000)
        drill.cluster.ask_master(request, messages.Tables)
