"""Drill: clients create, alter, rename and delete tables while the active master is killed, frozen or deposed (TS-04).

The drill forces one election after the other and starts some operations just before each. At the end the store, the
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
from cli.common.access import is_answering
from cli.common.asking.servers import ask_server
from cli.common.errors import CliError
from cli.drill.report import DrillReport, Figure, InvariantCheck, check, percentile, spread
from cli.drill.run import Drill
from cli.drill.scenarios.ddl_clients import DEADLINE_S, DdlClients
from cli.up.progress import open_words
from coord.rpc.wire import RpcError
from regions import messages
from regions.messages.ddl import DeleteTable
from regions.records.model import ActiveRecord, Incarnation
from regions.records.znodes import decode_region
from simulation.ddl_stress.catalog_snapshot import CatalogCheck, RestingCluster, check_catalog
from simulation.ddl_stress.model import LoggedOperation

NAME: Final = "ddl-storm"

#: A fault comes at a random moment within this time after operations were allowed.
_MOMENT_S: Final = 0.15
#: Time limit after the last election for the catalog to equal the model.
_REST_S: Final = 60.0
#: Interval of progress lines.
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
    """Forces elections, and records how long each took."""

    def __init__(self, drill: Drill) -> None:
        self._drill = drill
        #: Seconds without an active master, for each election.
        self.gaps_s: dict[How, list[float]] = {how: [] for how in How}

    @property
    def count(self) -> int:
        """Return the number of elections."""
        return sum(len(found) for found in self.gaps_s.values())

    def force(self, how: How) -> None:
        """End the active master's leadership, wait for the next master, and restore the former one."""
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
        """Return when a master became active with a later epoch."""
        for one in list(self._drill.follower.memberships):
            if one.what == "active" and one.at_ms >= since_ms and one.epoch > epoch:
                return one.at_ms
        return None

    def _has_standby(self, active: ActiveRecord) -> bool:
        """Return True if another master answers. The registration of a killed master outlives its process."""
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
    """Kills region servers during the drill, one at a time. The others must open, alter and close the tablets."""

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
        """Start the dead server."""
        drill, name = self._drill, self._dead
        if name:
            # `rk up` restarts a server only after it has noticed the end.
            drill.wait(lambda: not drill.daemons()[name].pid, f"{name} did not die")
            drill.restart(name, is_quiet=True)
            self._dead = ""


def run(drill: Drill, elections: int, operations: int, client_count: int, server_crashes: int = 0) -> DrillReport:
    """Run operations and elections, wait until all is at rest, compare, and delete the tables."""
    before = drill.require_rest(masters=2)
    drill.victim = "the active master"
    known = {one.table_id for one in drill.cluster.tables()}
    drill.say(f"at rest: {open_words(before)} open on {before.servers} servers, epoch {before.epoch}")
    drill.begin()
    prefix = f"ddl-storm-{drill.now_ms():x}"
    masters = [one.address for one in drill.local.masters]
    clients = DdlClients(client_count, masters, DrillDice(drill.seed), prefix, drill.wake)
    drill.at_end(lambda: _delete_tables(drill, prefix))
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
    _delete_tables(drill, prefix)
    return drill.finish(NAME, new_epoch_after=before.epoch + elections - 1)


def _force_elections(
    drill: Drill, clients: DdlClients, forced: Elections, crashes: Crashes, elections: int, operations: int
) -> None:
    """Force the elections, each with its share of the operations.

    All but the last few operations of a share must have finished before the next election.
    """
    shown_s = time.monotonic()
    granted = 0
    for number in range(elections):
        share = operations * (number + 1) // elections - granted
        granted += share
        clients.allowance.grant(share)
        time.sleep(_MOMENT_S * drill.rng.random())
        # Each way at least once if there are enough elections.
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
    """Wait until nothing moves and the catalog equals the model; return the findings then, or after the time limit."""
    drill.await_rest()
    began_s = time.monotonic()
    while True:
        findings = check_catalog(clients.log, read_cluster(drill).without(known))
        late = time.monotonic() - began_s > _REST_S
        if late or not any(one.breaches for one in findings):
            return findings
        if not any(one.breaches for one in findings[3:]):
            return findings  # contradictory results do not disappear by waiting
        time.sleep(0.5)


def read_cluster(drill: Drill) -> RestingCluster:
    """Read the state from the store, the active master and every server."""
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
    """Return counts of operations by kind and result and of elections by kind, and durations of operations."""
    operations = clients.log.entries
    counts = Counter((one.operation.kind.value, one.outcome.label) for one in operations)
    found = [
        Figure(
            "elections", forced.count, "", ", ".join(f"{len(one)} {how.value}" for how, one in forced.gaps_s.items())
        ),
        Figure("operations", len(operations), "", f"of {len(clients.log.histories())} tables"),
    ]
    found += [Figure(f"{kind}: {word}", count, "", "") for (kind, word), count in sorted(counts.items())]
    retried = sum(count > 1 for count in clients.attempts.values())
    found.append(Figure("retried", retried, "", "operations whose first attempt had no definite result"))
    answered = [one for one in operations if not one.is_unanswered]
    waits = [one.ended - one.asked for one in answered]
    longest: LoggedOperation | None = max(answered, key=lambda one: one.ended - one.asked, default=None)
    found += [
        Figure("operation, median", round(percentile(waits, 0.5), 3), "s", "from the first attempt to the result"),
        Figure("operation, p99", round(percentile(waits, 0.99), 3), "s", ""),
        Figure("longest wait", round(max(waits, default=0.0), 3), "s", "" if longest is None else str(longest)),
    ]
    return found


def _delete_tables(drill: Drill, prefix: str) -> None:
    """Delete the remaining tables. Their records stay, like those of every deleted table (MD-06)."""
    listed = drill.cluster.ask_master(messages.ListTables(), messages.Tables).tables
    left = [one.table for one in listed if one.table.name.startswith(prefix)]
    if left:
        drill.say(f"deleting {output.count(len(left), 'table')}")
    for table in left:
        request = DeleteTable(table.table_id, request_id=f"{prefix}.{table.table_id}", wait_ms=30_000)
        drill.cluster.ask_master(request, messages.Tables)
