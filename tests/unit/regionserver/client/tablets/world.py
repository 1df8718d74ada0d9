"""A simulated tablet with its servers, for the client's calls: leaders die, freeze and change; messages come late.

The rows and results of writes are those of the product (`WriterResults`); consensus is a list. An entry that its leader
could not commit before it lost its leadership is lost or committed later, at random.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from coord.rpc.wire import Code, RpcError
from regions.records.members import Member
from regions.records.model import RegionRecord, TableRecord
from regionserver.client.tablets.context import TabletContext
from regionserver.client.tablets.exchange import Received
from regionserver.tablets.commands import CONDITION_FAILED, DONE, CompareAndSet, KvCommand, WriteOutcome
from regionserver.tablets.messages import (
    NO_REPLICA,
    OUTCOME_UNKNOWN,
    REPLICA_FAILED,
    KnownLeader,
    LeaderElsewhere,
    Leaders,
    TabletLeader,
    TabletRead,
    TabletValues,
    TabletWrite,
    TabletWritten,
    WhoLeads,
)
from regionserver.tablets.writers import Totals, WriterResults
from tests.unit.regionserver.tablets.test_writers import START_MS, DictStore

TABLET = "t1.1"
SERVERS = ("s1", "s2", "s3")
REGION = RegionRecord(
    "t1", TABLET, members=tuple(Member(number, server) for number, server in enumerate(SERVERS, 1)), next_number=4
)


@dataclass
class Server:
    """One server: its view of the leadership, and the messages that wait while it is frozen."""

    name: str
    is_up: bool = True
    is_frozen: bool = False
    belief: tuple[int, str] | None = None
    waiting: list[Callable[[], None]] = field(default_factory=list)
    skew_ms: int = 0


class World:
    """Servers, the tablet, and a clock that moves when the client waits."""

    def __init__(self, seed: int, *, faults: float = 1.0) -> None:
        self.rng = random.Random(seed)
        self.faults = faults
        self.now_s = 100.0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.count = 0
        self.servers = {name: Server(name) for name in SERVERS}
        self.leader: str | None = "s1"
        self.term = 1
        for server in self.servers.values():
            server.belief = (1, "s1")
        self.store = DictStore()
        self.totals = Totals(START_MS)
        self.rows: dict[str, bytes | None] = {}
        self.index = 0
        #: Values of the row, the latest last.
        self.versions: list[bytes | None] = [None]
        #: Number of times that each operation was carried out, by its value.
        self.done: Counter[bytes] = Counter()
        self.sent: Counter[str] = Counter()
        #: The time at which a leader could be asked again after the latest fault.
        self.elected_s = 0.0
        self.leap_ms = 0

    # --- time ---

    def at(self, in_s: float, what: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (self.now_s + in_s, self.count, what))

    def run_until(self, until_s: float, is_enough: Callable[[], bool] = lambda: False) -> None:
        """Run events in order; move the clock."""
        while not is_enough() and self.events and self.events[0][0] <= until_s:
            self.now_s, _, what = heapq.heappop(self.events)
            what()
        if not is_enough():
            self.now_s = max(self.now_s, until_s)

    # --- faults ---

    def lose_leader(self, how: str) -> None:
        """Kill or freeze the leader, or make it transfer its leadership; another server is elected soon."""
        gone = self.leader
        if gone is None:
            return
        self.leader = None
        server = self.servers[gone]
        if how == "kill":
            server.is_up = False
            self.at(self.rng.uniform(0.1, 4), lambda: self.restart(gone))
        elif how == "freeze":
            server.is_frozen = True
            self.at(self.rng.uniform(0.5, 4), lambda: self.thaw(gone))
        wait_s = self.rng.uniform(0.7, 1.0) if how == "freeze" else self.rng.uniform(0.05, 0.2)
        self.at(wait_s, self.elect)

    def elect(self) -> None:
        live = [one for one in self.servers.values() if one.is_up and not one.is_frozen]
        if self.leader is not None:
            return
        if len(live) < 2:
            self.at(0.1, self.elect)
            return
        self.term += self.rng.randint(1, 3)
        self.leader = self.rng.choice(live).name
        self.elected_s = self.now_s
        for server in live:
            self.believe(server, self.term, self.leader, 0 if server.name == self.leader else self.rng.uniform(0, 0.05))

    def believe(self, server: Server, term: int, leader: str, in_s: float) -> None:
        def adopt() -> None:
            if server.belief is None or server.belief[0] < term:
                server.belief = term, leader

        self.at(in_s, adopt)

    def restart(self, name: str) -> None:
        self.servers[name].is_up = True
        self.servers[name].belief = None
        if self.leader is not None:
            self.believe(self.servers[name], self.term, self.leader, 0.1)

    def thaw(self, name: str) -> None:
        server = self.servers[name]
        server.is_frozen = False
        if self.leader is not None:
            self.believe(server, self.term, self.leader, 0.05)
        waiting, server.waiting = server.waiting, []
        for what in waiting:
            what()

    # --- the tablet ---

    def time_ms(self, server: Server) -> int:
        return max(self.totals.clock_ms, START_MS + self.leap_ms + int(self.now_s * 1000) + server.skew_ms)

    def commit(self, request: TabletWrite, time_ms: int) -> WriteOutcome:
        """Apply the entry of a write."""
        self.index += 1
        command: KvCommand = request.command(time_ms)
        results = WriterResults(self.store, self.totals)
        outcome = results.check(command, self.term, self.index)
        if outcome is None:
            (one,) = command.operations
            is_held = not isinstance(one, CompareAndSet) or self.rows.get(one.key) == one.expected
            outcome = WriteOutcome(DONE if is_held else CONDITION_FAILED, self.term, self.index, -1 if is_held else 0)
            if is_held:
                self.rows[one.key] = one.value  # type: ignore[union-attr]
                self.versions.append(one.value)  # type: ignore[union-attr]
                self.done[one.value] += 1  # type: ignore[union-attr, index]
            results.keep(command, outcome)
        results.flush()
        return outcome

    # --- servers ---

    def view(self, server: Server) -> KnownLeader:
        if server.belief is None:
            return KnownLeader(TABLET, self.rng.choice((0, 1)))
        term, name = server.belief
        return KnownLeader(TABLET, term, TabletLeader(SERVERS.index(name) + 1, name, name, 1))

    def receive(self, server: Server, message: Any, answer: Callable[[Any], None]) -> None:
        """Answer a message, now or later."""
        if not server.is_up:
            return
        if server.is_frozen:
            server.waiting.append(lambda: self.receive(server, message, answer))
            return
        if isinstance(message, WhoLeads):
            answer(Leaders([self.view(server)], self.time_ms(server)))
            return
        if self.rng.random() < 0.03 * self.faults:
            codes = (Code.BUSY, NO_REPLICA, Code.UNSUPPORTED, REPLICA_FAILED)
            answer(RpcError(self.rng.choice(codes), "by chance"))
        elif self.leader != server.name:
            answer(LeaderElsewhere(self.view(server), self.time_ms(server)))
        elif isinstance(message, TabletRead):
            answer(TabletValues([self.rows.get(key) for key in message.keys], self.index, self.time_ms(server)))
        else:
            self.propose(server, message, answer)

    def propose(self, server: Server, message: TabletWrite, answer: Callable[[Any], None]) -> None:
        term, time_ms = self.term, self.time_ms(server)

        def committed() -> None:
            if self.leader == server.name and self.term == term:
                outcome = self.commit(message, time_ms)
                if self.rng.random() < 0.05 * self.faults:
                    answer(RpcError(self.rng.choice((Code.INTERNAL, REPLICA_FAILED)), "after it was done"))
                else:
                    answer(TabletWritten(outcome, self.time_ms(server)))
                return
            if self.rng.random() < 0.5:
                self.at(self.rng.uniform(0, 1), lambda: self.commit(message, time_ms) and None)
            self.receive_unknown(server, answer)

        self.at(self.rng.uniform(0.001, 0.2 if self.rng.random() < 0.2 * self.faults else 0.02), committed)

    def receive_unknown(self, server: Server, answer: Callable[[Any], None]) -> None:
        if server.is_frozen:
            server.waiting.append(lambda: answer(RpcError(OUTCOME_UNKNOWN, "leadership ended")))
        elif server.is_up:
            answer(RpcError(OUTCOME_UNKNOWN, "leadership ended"))


class SimulatedExchange:
    """`Exchange` in the world: messages take time, connections break, and messages arrive after that."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.arrived: list[Received] = []
        self.out: set[Any] = set()

    def start(self, key: Any, address: tuple[str, int], message: Any, replies: Any) -> None:
        del replies
        world = self.world
        server = world.servers[address[0]]
        self.out.add(key)
        world.sent[key.kind.name] += 1

        def arrive(result: Any) -> None:
            if key in self.out:
                self.out.discard(key)
                is_error = isinstance(result, RpcError)
                self.arrived.append(Received(key, None if is_error else result, result if is_error else None))

        def answer(result: Any) -> None:
            world.at(world.rng.uniform(0.0001, 0.002), lambda: arrive(result))

        if not server.is_up:
            world.at(0.0002, lambda: arrive(RpcError(Code.UNREACHABLE, "refused")))
            return
        is_late = world.rng.random() < 0.05 * world.faults
        latency_s = world.rng.uniform(0.3, 5) if is_late else world.rng.uniform(0.0001, 0.002)
        world.at(latency_s, lambda: world.receive(server, message, answer))
        if world.rng.random() < 0.05 * world.faults:
            lost = RpcError(Code.CONNECTION_LOST, "reset")
            world.at(world.rng.uniform(0, 0.01), lambda: arrive(lost))
        self._watch(server, arrive)

    def _watch(self, server: Server, arrive: Callable[[Any], None]) -> None:
        """Break the connection when the server dies."""

        def look() -> None:
            if not server.is_up:
                arrive(RpcError(Code.CONNECTION_LOST, "the server died"))
            elif self.out:
                self.world.at(0.005, look)

        self.world.at(0.005, look)

    def wait(self, timeout_s: float) -> list[Received]:
        self.world.run_until(self.world.now_s + max(timeout_s, 0.0001), lambda: bool(self.arrived))
        found, self.arrived = self.arrived, []
        return found

    def close(self) -> None:
        self.out.clear()


class Records:
    """The store of the world: it has the record, or is unreachable."""

    cluster_id = "c1"

    def __init__(self) -> None:
        self.is_away = False

    def refresh(self, table: str, region_id: str, *, until_s: float) -> RegionRecord:
        del table, region_id, until_s
        return REGION

    def refresh_table(self, table: str, *, until_s: float) -> TableRecord:
        del until_s
        return TableRecord(table, table)

    def servers(self, uuids: Any, *, until_s: float) -> list[Any]:
        del uuids, until_s
        return []


class SimulatedContext(TabletContext):
    """The context of calls in the world."""

    def __init__(self, world: World) -> None:
        super().__init__(Records(), lambda _: None, lambda: world.now_s, world.rng.random)  # type: ignore[arg-type]
        self.world = world
        for name in SERVERS:
            self.hints.set_address(name, (name, 1))

    def exchange(self) -> Any:
        return SimulatedExchange(self.world)
