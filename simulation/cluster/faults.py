"""What goes wrong, and when: every run takes a part of these, so that some stay away; the seed draws the rest."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from simulation.checks.observer import Observer
from simulation.cluster.machines import Machine, MasterMachine, ServerMachine
from simulation.cluster.operator import Operator
from simulation.cluster.store import SimulatedStore
from simulation.engine.network import Network
from simulation.engine.timeline import SECOND, Timeline

#: Nothing stays down, cut or frozen for longer than this, in seconds.
SPAN_MAX_S: Final = 10.0


@dataclass(frozen=True)
class Targets:
    """What faults happen to."""

    network: Network
    store: SimulatedStore
    observer: Observer
    operator: Operator
    masters: list[MasterMachine]
    servers: list[ServerMachine]

    @property
    def machines(self) -> list[Machine]:
        """Masters, then servers."""
        return [*self.masters, *self.servers]


class Faults:
    """Makes trouble until it is told to stop."""

    def __init__(self, timeline: Timeline, targets: Targets) -> None:
        self._targets = targets
        self._chance = timeline.chance
        self._timeline = timeline
        #: Names of what may happen, with weights.
        self.kinds: list[tuple[str, Callable[[], None]]] = []
        self.pause_s = 1.0
        self._is_over = False

    def all(self) -> dict[str, Callable[[], None]]:
        """Every fault by name."""
        return {
            "kill-master": lambda: self.kill(self._some_master()),
            "kill-active": lambda: self.kill(self.active() or self._some_master()),
            "kill-server": lambda: self.kill(self._some_server()),
            "kill-while-sending": self.kill_while_sending,
            "lose-machine": lambda: self.kill(self._some_machine(), silent=True),
            "freeze-server": lambda: self.freeze(self._some_server()),
            "freeze-active": lambda: self.freeze(self.active() or self._some_master()),
            "restart-in-order": self.restart_in_order,
            "break-connection": self.break_connection,
            "cut-from-store": self.cut_from_store,
            "cut-one-way": self.cut_one_way,
            "isolate": self.isolate,
            "slow-network": self.slow_network,
            "store-pause": lambda: self._targets.store.pause(self._span(0.05, 4)),
            "store-leader": lambda: self._targets.store.change_leader(self._span(0.2, 3)),
            "store-node-alone": self.store_node_alone,
            "store-node-restart": self.store_node_restart,
            "master-session-ends": self.end_master_session,
            "kill-everything": self.kill_everything,
        }

    def depositions(self) -> dict[str, Callable[[], None]]:
        """What takes the reign from a master that lives, by name; only on demand."""
        return {"end-active-session": self.end_active_session, "vacate-active": self._targets.operator.vacate_active}

    def choose(self, wanted: list[str] | None = None) -> list[str]:
        """Take a part of the faults for this run, or those that are wanted."""
        every = {**self.all(), **self.depositions()}
        names = wanted if wanted is not None else [name for name in self.all() if self._chance.happens(0.5)]
        rare = {"kill-everything": 0.25, "lose-machine": 0.6}
        names = [name for name in names if wanted is not None or self._chance.happens(rare.get(name, 1.0))]
        self.kinds = [(name, every[name]) for name in names]
        return names

    def start(self) -> None:
        """Begin."""
        self._later()

    def stop(self) -> None:
        """No more; what is cut, slow or down is for the world to heal."""
        self._is_over = True

    def _later(self) -> None:
        pause = -self.pause_s * math.log(1 - self._chance.unit())
        self._timeline.later(min(pause, 4 * self.pause_s) * SECOND, self._next)

    def _next(self) -> None:
        if self._is_over:
            return
        if self.kinds:
            name, fault = self._chance.pick(self.kinds)
            self._timeline.note(f"fault: {name}")
            self._targets.observer.count(f"fault {name}")
            fault()
        self._later()

    def _span(self, low_s: float, high_s: float) -> int:
        """Microseconds, short ones more often, and not beyond the end of the faults by much."""
        span = low_s + (high_s - low_s) * self._chance.unit() ** 2
        return int(min(span, SPAN_MAX_S) * SECOND)

    # --- whom ---------------------------------------------------------------------------------------------------------

    def _some_master(self) -> Machine:
        return self._chance.pick(self._targets.masters)

    def _some_server(self) -> Machine:
        return self._chance.pick(self._targets.servers)

    def _some_machine(self) -> Machine:
        return self._chance.pick(self._targets.machines)

    def active(self) -> MasterMachine | None:
        """A master that reigns, or believes so."""
        reigning = [one for one in self._targets.masters if one.is_up and one.service.active_master is not None]
        return self._chance.pick(reigning) if reigning else None

    # --- processes ----------------------------------------------------------------------------------------------------

    def kill(self, machine: Machine, *, silent: bool = False) -> None:
        """kill -9, and a start some time later, perhaps at once."""
        if machine.process is None or machine.process.is_dead:
            machine.start()
            return
        machine.process.kill(silent=silent)
        self._timeline.later(self._down(), machine.start)

    def _down(self) -> int:
        if self._chance.happens(0.3):
            return self._chance.below(100_000)
        return self._span(0.1, SPAN_MAX_S)

    def kill_while_sending(self) -> None:
        """Die between two sends of one turn, or of a few turns."""
        machine = self._some_machine()
        process = machine.process
        if process is not None and not process.is_dead:
            process.sends_left = self._chance.below(30)
            process.on_death.append(lambda: self._timeline.later(self._down(), machine.start))

    def freeze(self, machine: Machine) -> None:
        """Stop a process for a while: shorter than its session lives, or longer."""
        if machine.process is not None:
            machine.process.freeze(self._span(0.02, 9))

    def restart_in_order(self) -> None:
        """SIGTERM, and a start when it has ended."""
        machine = self._some_machine()
        process = machine.process
        if process is not None and not process.is_dead:
            process.on_death.append(lambda: self._timeline.later(self._down(), machine.start))
            machine.stop()

    def kill_everything(self) -> None:
        """All masters and servers at once; the store lives on."""
        for machine in self._targets.machines:
            self.kill(machine)

    # --- network ------------------------------------------------------------------------------------------------------

    def break_connection(self) -> None:
        """One connection, at one end first."""
        network = self._targets.network
        ends = [end for end in network.ends if not end.is_closed]
        if ends:
            network.break_connection(self._chance.pick(ends))

    def _cut(self, cuts: set[tuple[str, str]], span_us: int) -> None:
        network = self._targets.network
        self._timeline.note(f"cut {' '.join(f'{a}>{b}' for a, b in sorted(cuts))} for {span_us} us")
        network.cuts |= cuts
        self._timeline.later(span_us, network.uncut, cuts)

    def _ways(self, here: str, there: list[str]) -> set[tuple[str, str]]:
        """Both directions, or one."""
        out = {(here, other) for other in there}
        back = {(other, here) for other in there}
        return self._chance.pick((out | back, out, back))

    def cut_from_store(self) -> None:
        """A machine and some or all store nodes hear each other no more, or only one way."""
        nodes = [node.host for node in self._targets.store.nodes]
        some = nodes if self._chance.happens(0.6) else [self._chance.pick(nodes)]
        self._cut(self._ways(self._some_machine().host, some), self._span(0.1, 8))

    def cut_one_way(self) -> None:
        """Between two machines."""
        one, other = self._some_master().host, self._some_server().host
        self._cut(self._ways(one, [other]), self._span(0.1, 8))

    def isolate(self) -> None:
        """One machine from all others, the store's nodes too."""
        machine = self._some_machine()
        others = [one.host for one in self._targets.machines if one is not machine]
        others += [node.host for node in self._targets.store.nodes]
        self._cut(self._ways(machine.host, others), self._span(0.1, 8))

    def slow_network(self) -> None:
        """Delays with a heavy tail, for a while."""
        network = self._targets.network
        network.heavy = self._chance.pick((0.02, 0.1, 0.3))
        self._timeline.later(self._span(0.5, 6), self._quick_again)

    def _quick_again(self) -> None:
        self._targets.network.heavy = 0.0

    # --- the store ----------------------------------------------------------------------------------------------------

    def store_node_alone(self) -> None:
        """A node without the leader: its clients see old data, then lose it."""
        node = self._chance.pick(self._targets.store.nodes)
        node.cut_off()
        self._timeline.later(self._span(0.1, 5), node.rejoin)

    def store_node_restart(self) -> None:
        """A node ends and starts again."""
        node = self._chance.pick(self._targets.store.nodes)
        if node.is_up:
            node.restart(self._span(0.05, 3))

    def end_master_session(self) -> None:
        """The store ends a master's session although it lives. (A server's must live as long as its lease.)"""
        observer = self._targets.observer
        sessions = [
            one for one in self._targets.store.truth.sessions.sessions if observer.hosts.get(one, "").startswith("m")
        ]
        if sessions:
            self._targets.store.end_session(self._chance.pick(sessions))

    def end_active_session(self) -> None:
        """The same for the master that reigns."""
        session = self._targets.observer.reigning
        if session in self._targets.store.truth.sessions.sessions:
            self._targets.store.end_session(session)
