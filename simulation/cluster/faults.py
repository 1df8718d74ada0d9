"""Faults of a simulated cluster. Each run takes a random part of the kinds; the seed draws times and targets."""

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

#: No machine is down, cut off or frozen for longer than this, in seconds.
SPAN_MAX_S: Final = 10.0


@dataclass(frozen=True)
class Targets:
    """Objects that faults act on."""

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
    """Injects faults until `stop` is called."""

    def __init__(self, timeline: Timeline, targets: Targets) -> None:
        self._targets = targets
        self._chance = timeline.chance
        self._timeline = timeline
        #: Names of the faults of this run, with their actions.
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
        """Return the faults that end the tenure of a live master, by name; only drills that name them use them."""
        return {"end-active-session": self.end_active_session, "vacate-active": self._targets.operator.vacate_active}

    def choose(self, wanted: list[str] | None = None) -> list[str]:
        """Draw a part of the faults for this run, or take the `wanted` ones."""
        every = {**self.all(), **self.depositions()}
        names = wanted if wanted is not None else [name for name in self.all() if self._chance.happens(0.5)]
        rare = {"kill-everything": 0.25, "lose-machine": 0.6}
        names = [name for name in names if wanted is not None or self._chance.happens(rare.get(name, 1.0))]
        self.kinds = [(name, every[name]) for name in names]
        return names

    def start(self) -> None:
        """Schedule the first fault."""
        self._later()

    def stop(self) -> None:
        """Inject no more faults, and repair all cuts, slow links and stopped processes."""
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
        """Return microseconds, short spans more often, and at most `SPAN_MAX_S`."""
        span = low_s + (high_s - low_s) * self._chance.unit() ** 2
        return int(min(span, SPAN_MAX_S) * SECOND)

    # --- targets ------------------------------------------------------------------------------------------------------

    def _some_master(self) -> Machine:
        return self._chance.pick(self._targets.masters)

    def _some_server(self) -> Machine:
        return self._chance.pick(self._targets.servers)

    def _some_machine(self) -> Machine:
        return self._chance.pick(self._targets.machines)

    def active(self) -> MasterMachine | None:
        """Return a master that is active or assumes that it is."""
        active = [one for one in self._targets.masters if one.is_up and one.service.active_master is not None]
        return self._chance.pick(active) if active else None

    # --- processes ----------------------------------------------------------------------------------------------------

    def kill(self, machine: Machine, *, silent: bool = False) -> None:
        """Kill a process (kill -9) and start it some time later, perhaps at once."""
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
        """Kill a process between two sends of one turn or of a few turns."""
        machine = self._some_machine()
        process = machine.process
        if process is not None and not process.is_dead:
            process.sends_left = self._chance.below(30)
            process.on_death.append(lambda: self._timeline.later(self._down(), machine.start))

    def freeze(self, machine: Machine) -> None:
        """Freeze a process for a while, which may be shorter or longer than its session timeout."""
        if machine.process is not None:
            machine.process.freeze(self._span(0.02, 9))

    def restart_in_order(self) -> None:
        """Stop a process with SIGTERM and start it after it has ended."""
        machine = self._some_machine()
        process = machine.process
        if process is not None and not process.is_dead:
            process.on_death.append(lambda: self._timeline.later(self._down(), machine.start))
            machine.stop()

    def kill_everything(self) -> None:
        """Kill all masters and servers at once. The store keeps running."""
        for machine in self._targets.machines:
            self.kill(machine)

    # --- network ------------------------------------------------------------------------------------------------------

    def break_connection(self) -> None:
        """Break one connection. One end notices first."""
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
        """Return the cuts of both directions, or of one."""
        out = {(here, other) for other in there}
        back = {(other, here) for other in there}
        return self._chance.pick((out | back, out, back))

    def cut_from_store(self) -> None:
        """Cut a machine off from some or all store nodes, in both directions or in one."""
        nodes = [node.host for node in self._targets.store.nodes]
        some = nodes if self._chance.happens(0.6) else [self._chance.pick(nodes)]
        self._cut(self._ways(self._some_machine().host, some), self._span(0.1, 8))

    def cut_one_way(self) -> None:
        """Cut a master off from a server, in both directions or in one."""
        one, other = self._some_master().host, self._some_server().host
        self._cut(self._ways(one, [other]), self._span(0.1, 8))

    def isolate(self) -> None:
        """Cut one machine off from all others, including the store's nodes."""
        machine = self._some_machine()
        others = [one.host for one in self._targets.machines if one is not machine]
        others += [node.host for node in self._targets.store.nodes]
        self._cut(self._ways(machine.host, others), self._span(0.1, 8))

    def slow_network(self) -> None:
        """Give delays a heavy tail for a while."""
        network = self._targets.network
        network.heavy = self._chance.pick((0.02, 0.1, 0.3))
        self._timeline.later(self._span(0.5, 6), self._quick_again)

    def _quick_again(self) -> None:
        self._targets.network.heavy = 0.0

    # --- the store ----------------------------------------------------------------------------------------------------

    def store_node_alone(self) -> None:
        """Cut a node off from the leader: its clients read old data, then lose their connections."""
        node = self._chance.pick(self._targets.store.nodes)
        node.cut_off()
        self._timeline.later(self._span(0.1, 5), node.rejoin)

    def store_node_restart(self) -> None:
        """Restart a store node."""
        node = self._chance.pick(self._targets.store.nodes)
        if node.is_up:
            node.restart(self._span(0.05, 3))

    def end_master_session(self) -> None:
        """Expire a live master's session. (A server's session must live as long as its lease.)"""
        observer = self._targets.observer
        sessions = [
            one for one in self._targets.store.truth.sessions.sessions if observer.hosts.get(one, "").startswith("m")
        ]
        if sessions:
            self._targets.store.end_session(self._chance.pick(sessions))

    def end_active_session(self) -> None:
        """Expire the active master's session."""
        session = self._targets.observer.epoch_session
        if session in self._targets.store.truth.sessions.sessions:
            self._targets.store.end_session(session)
