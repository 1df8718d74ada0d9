"""One simulated cluster and one run: build from a seed, inject faults, repair, check the recovery."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from coord.tree.machine import CommandOutcome, StateMachine
from regions.cluster.limits import AssignerConfig
from regions.messages import ListOpen
from regions.messages.heartbeat import OPEN
from regions.records.acts.resharding import ReshardingState
from regions.records.model import Incarnation, PlanState
from regions.records.replica_key import replica_key
from regions.records.znodes import Layout
from simulation.checks.alarms import Alarms
from simulation.checks.observer import Observer
from simulation.checks.standbys import Standbys
from simulation.cluster.faults import Faults, Targets
from simulation.cluster.machines import Machine, MasterMachine, ServerMachine, Setting
from simulation.cluster.operator import Operator
from simulation.cluster.region_work import Key, Opener
from simulation.cluster.store import SimulatedStore
from simulation.engine.chance import SeededRandom
from simulation.engine.history import Violation
from simulation.engine.network import Network
from simulation.engine.process import Process
from simulation.engine.timeline import SECOND, Timeline

#: Interval at which the recovery is checked, and the number of consecutive checks that must succeed.
POLL_US: Final = 250_000
STEADY_POLLS: Final = 8
#: Time that a cluster may take to come up before the faults begin.
UP_WITHIN_S: Final = 60


class Options(msgspec.Struct, frozen=True, omit_defaults=True):
    """Parameters of a run. They and the code decide everything that happens."""

    seed: int
    drill: str = "random"
    #: 0: drawn from the seed.
    regions: int = 0
    servers: int = 0
    masters: int = 0
    store_nodes: int = 0
    #: Duration of the faults in seconds.
    duration_s: float = 15.0


class SimulatedCluster:
    """A cluster: a store, masters, servers, an operator, faults, and an observer."""

    def __init__(self, options: Options) -> None:
        self.options = options
        timeline = self.timeline = Timeline(SeededRandom(f"regionkeeper {options.seed}"))
        chance = timeline.chance
        self.layout = Layout()
        self.network = Network(timeline)
        self.observer = Observer(timeline, self.layout)
        nodes = options.store_nodes or chance.pick((1, 1, 2, 3))
        self.standbys = Standbys(timeline, self.layout, self.observer)
        self.alarms = Alarms(self.layout, self.observer, self._is_served)
        self.store = SimulatedStore(timeline, self.network, nodes, self._committed)
        setting = self.setting = Setting(timeline, self.network, self.store, self.layout.root)
        setting.violated = self.observer.violated
        setting.rows_removed = self.observer.rows_removed
        setting.regions_removed = self.observer.regions_removed
        setting.standbys = self.standbys
        masters = options.masters or chance.pick((1, 2, 2, 3))
        servers = options.servers or chance.pick((2, 3, 4, 5))
        self.masters = [MasterMachine(setting, f"m{number}", self._rate()) for number in range(masters)]
        self.servers = [ServerMachine(setting, f"s{number}", self._rate()) for number in range(servers)]
        for number, server in enumerate(self.servers):
            server.rack = f"rack{number % 3}"
        self.machines: list[Machine] = [*self.masters, *self.servers]
        desk = Process(timeline, self.network, "op", 1, 1.0)
        self.operator = Operator(desk, self.layout, self.store.address, self.observer, self.masters, self.servers)
        targets = Targets(self.network, self.store, self.observer, self.operator, self.masters, self.servers)
        self.faults = Faults(timeline, targets)
        self._draw_settings(servers)
        #: Regions of the first table.
        self.regions = options.regions or chance.pick((1, 4, 9, 16))
        timeline.after = self._after_event
        self.recovered_s = -1.0
        #: Checks that run when everything is repaired and at rest.
        self.at_rest: list[Callable[[], None]] = []
        #: Why the cluster does not count as recovered.
        self.missing = ""

    def _committed(self, machine: StateMachine, outcome: CommandOutcome) -> None:
        self.standbys.committed(machine, outcome)
        self.observer.committed(machine, outcome)
        self.alarms.committed(machine, outcome)

    def _is_served(self, key: Key) -> bool:
        """Return True if a registered server that runs has the replica open."""
        servers = [self.server_of(opener) for opener in self.setting.open_replicas.open.get(key, ())]
        alive = self.observer.shadow.is_alive
        return any(one is not None and alive(Incarnation(one.uuid, one.start_code)) for one in servers)

    def _rate(self) -> float:
        chance = self.timeline.chance
        return chance.pick((1.0, 1.0, chance.between(0.7, 1.3)))

    def _draw_settings(self, servers: int) -> None:
        chance, setting = self.timeline.chance, self.setting
        setting.session_timeout_ms = chance.pick((1_500, 3_000, 3_000, 6_000))
        setting.master_timeout_ms = chance.pick((1_000, 3_000, 3_000))
        setting.min_servers = chance.pick((1, 1, max(1, servers - 1)))
        if chance.happens(0.7):
            slots = chance.pick((3, 800))
            setting.limits = AssignerConfig(
                start_timeout_ms=chance.pick((2_000, 5_000, 10_000)),
                open_timeout_ms=chance.pick((3_000, 8_000, 15_000)),
                resend_ms=chance.pick((500, 1_500, 3_000)),
                resend_max_ms=5_000,
                retry_base_ms=chance.pick((50, 300)),
                retry_max_ms=3_000,
                attempts_max=chance.pick((2, 8)),
                batch_max=min(slots, chance.pick((3, 200))),
                busy_max=slots,
                closes_max=chance.pick((1, 200)),
                bulk_min=chance.pick((2, 8, 1_000)),
            )

    # --- a run --------------------------------------------------------------------------------------------------------

    def run(self, script: Callable[[SimulatedCluster], None]) -> None:
        """Run the script, repair everything, await the recovery and check the end state. Raise Violation."""
        self.operator.start()
        for machine in self.machines:
            self.timeline.later(self.timeline.chance.below(2 * SECOND), machine.start)
        script(self)
        self.heal()
        self.await_recovery()
        for check in self.at_rest:
            check()
        self.observer.check_all()

    def run_for(self, seconds: float) -> None:
        """Advance the time. Raise Violation."""
        self.timeline.run_until(self.timeline.now + int(seconds * SECOND))
        self._raise_if_violated()

    def _raise_if_violated(self) -> None:
        if self.observer.violations:
            raise Violation(self.observer.violations[0])

    def heal(self) -> None:
        """Repair the network and the store, start every process, and stop all faults."""
        self.timeline.note("repaired")
        self.faults.stop()
        self.setting.work.until = self.timeline.now
        self.setting.work.poisoned = []
        self.setting.work.deadly = []
        self.network.heavy = 0.0
        self.network.heal()
        for node in self.store.nodes:
            node.rejoin()
        for machine in self.machines:
            process = machine.process
            if process is not None:
                process.sends_left = None
            machine.start()

    @property
    def recovery_limit_s(self) -> float:
        """Return the time that a repaired cluster may take: every limit of the masters twice, and one minute."""
        limits = self.setting.limits
        bounds = (limits.start_timeout_ms, limits.open_timeout_ms, limits.resend_max_ms, limits.retry_max_ms)
        return 60 + 2 * sum(bounds) / 1000

    def await_recovery(self) -> None:
        """Wait until the cluster is as requested and stays so. Raise Violation if this takes too long."""
        began = self.timeline.now
        steady = 0
        while steady < STEADY_POLLS:
            self.run_for(POLL_US / SECOND)
            self.missing = self.why_not_recovered()
            steady = 0 if self.missing else steady + 1
            if self.missing:
                for machine in self.machines:
                    machine.start()
                if self.operator.is_idle:
                    self.operator.retry_parked()
            if self.timeline.now - began > self.recovery_limit_s * SECOND:
                self.observer.violated(f"liveness: {self.recovery_limit_s:.0f} s after the last fault {self.missing}")
        self.recovered_s = (self.timeline.now - began) / SECOND - STEADY_POLLS * POLL_US / SECOND

    # --- what must hold -----------------------------------------------------------------------------------------------

    def server_of(self, opener: Opener) -> ServerMachine | None:
        """Return the machine whose current process has this opener, or None."""
        for server in self.servers:
            if server.is_up and server.opener is opener:
                return server
        return None

    def _is_reported(self, server: ServerMachine, key: Key) -> bool:
        """Return True if the server itself reports the replica as open."""
        found = server.service.dispatch(ListOpen("", 0))
        return any((one.region_id, one.replica) == key and one.state == "OPEN" for one in found.replicas)

    def _serves(self, server: ServerMachine, key: Key) -> bool:
        """Return True if the server serves a replica that it has open.

        With locks a replica is served as soon as it is open, without locks once the server reports the replica as OPEN.
        """
        return server.may_serve() and (self.setting.work.locks or self._is_reported(server, key))

    def _after_event(self) -> None:
        """Check the invariants after every event: between servers, and inside each server and each master."""
        self._check_owners()
        if self.observer.has_resharded:
            self._check_parents()
        for server in self.servers:
            if server.is_up:
                try:
                    server.service.validate()
                except AssertionError as error:
                    self.observer.violated(f"{server.host}: {error}")
        for master in self.masters:
            if master.process is not None:
                master.validate()

    def _check_parents(self) -> None:
        """Check that no server serves a region while another serves one that was split or merged into it (X11)."""
        openers = self.setting.open_replicas.open
        for region in self.observer.shadow.regions.values():
            if region.is_replaced or not region.parents or not openers.get((region.region_id, 0)):
                continue
            for parent in region.parents:
                for opener in openers.get((parent.region_id, 0), ()):
                    server = self.server_of(opener)
                    if server is not None and self._serves(server, (parent.region_id, 0)):
                        text = f"{server.host} serves {parent.region_id}, and {region.region_id} is open"
                        self.observer.violated(text)

    def _check_owners(self) -> None:
        """Check that at most one server serves a replica."""
        contended = self.setting.open_replicas.contended
        if not contended:
            return
        for key in contended:
            serving = []
            for opener in self.setting.open_replicas.open[key]:
                server = self.server_of(opener)
                if server is not None and self._serves(server, key):
                    serving.append(server.host)
            if len(serving) > 1:
                self.observer.violated(f"two servers serve {replica_key(*key)}: {' and '.join(serving)}")

    def why_not_recovered(self) -> str:
        """Return a description of the first difference from the requested state, or "" if there is none."""
        shadow = self.observer.shadow
        active = [
            one
            for one in self.masters
            if one.is_up and one.service.active_master is not None and one.service.active_master.is_open
        ]
        if len(active) != 1:
            return f"{len(active)} masters are active"
        if not self.operator.is_idle:
            return "the operator waits for an answer"
        for key, record in shadow.transitions.items():
            state = f"{record.state.value}, parked" if record.parked else record.state.value
            return f"{key} is {state}: {record.last_error or 'no error'}"
        for region_id, work in shadow.reshardings.items():
            if work.state is not ReshardingState.CLEANING or shadow.wants_open(work.table_id):
                return f"the split or merge of {region_id} is {work.state.value}"
        for plan in shadow.plans.values():
            if plan.state in (PlanState.PLANNING, PlanState.APPLYING):
                return f"plan {plan.plan_id} is {plan.state.value}"
        for server in self.servers:
            if not server.is_up or not shadow.is_alive(server.incarnation):
                return f"{server.uuid} is not registered"
        wanted: dict[Key, Incarnation] = {}
        for region in shadow.regions.values():
            table = shadow.tables.get(region.table_id)
            if table is None:
                return f"region {region.region_id} has no table"
            if not shadow.wants_region(region.region_id):
                continue
            for number in range(table.replication):
                home = region.location(number).incarnation
                if home is None or not shadow.is_alive(home):
                    return f"{replica_key(region.region_id, number)} is not open: the store names {home}"
                wanted[region.region_id, number] = home
        return self._why_not_as_stored(wanted) or self._why_not_drained(wanted) or self._why_not_reported(active[0])

    def _why_not_as_stored(self, wanted: dict[Key, Incarnation]) -> str:
        """Compare the store with the replicas that the servers have open."""
        for server in self.servers:
            opened = [key for key, openers in self.setting.open_replicas.open.items() if server.opener in openers]
            for key in opened:
                if wanted.get(key) != server.incarnation:
                    return f"{replica_key(*key)} is open on {server.host}, the store names {wanted.get(key)}"
            for key, home in wanted.items():
                if home == server.incarnation and not (key in opened and self._is_reported(server, key)):
                    return f"{replica_key(*key)} is not open on {server.host}, which the store names"
            if not server.may_serve():
                return f"{server.host} does not serve"
        return ""

    def _why_not_reported(self, leader: MasterMachine) -> str:
        """Compare the servers' reports with their replicas; every master must receive every heartbeat (HB-03,
        HB-10)."""
        reports = leader.service.active_master.reports if leader.service.active_master is not None else None
        for server in self.servers:
            for master in self.masters:
                service = master.service
                if not master.is_up or not service.heartbeats.roster.is_recent(server.incarnation, service.now_ms()):
                    return f"{master.host} receives no heartbeats from {server.host}"
            holding = None if reports is None else reports.holding(server.incarnation)
            if holding is None or not holding.is_complete:
                return f"{server.host} has not sent {leader.host} a complete report"
            found = server.service.dispatch(ListOpen("", 0))
            serves = {
                replica_key(one.region_id, one.replica): one.schema_version
                for one in found.replicas
                if one.state == OPEN
            }
            if holding.versions != serves:
                return f"{server.host} serves {serves}, but reported {holding.versions} to {leader.host}"
        return ""

    def _why_not_drained(self, wanted: dict[Key, Incarnation]) -> str:
        shadow = self.observer.shadow
        places = sum(server.uuid not in shadow.draining for server in self.servers)
        for key, home in wanted.items():
            replication = shadow.tables[shadow.regions[key[0]].table_id].replication
            if home.uuid in shadow.draining and places >= replication:
                return f"{replica_key(*key)} is on {home.uuid}, which is draining"
            if home.uuid in shadow.bars:
                return f"{replica_key(*key)} is on {home.uuid}, which is fenced and must get no regions"
        return ""
