"""One of a thousand servers with a million regions dies: the time that the master's own code takes to decide.

There is no process, store or network. The assigner receives the events that a master would pass to it, and its writes
and messages are answered at once. So the seconds are those of the master's decisions only:

    answer       from the event until every region of the dead server has its new place, to be written in the store
    orders       the writes are done; the orders to open are ready to be sent
    the rest     answers of servers, steps OPENING and OPENED as they show in the store, the end of each transition

Neither Spark nor a bulk plan takes part.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec

from benchmarks.plan.report import Row
from benchmarks.plan.running import machine
from regions.assign.assigner import Assigner
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.entities import Replica
from regions.messages import OrderOutcome, OrderResult
from regions.records.model import RegionRecord, RegionState, ReplicaLocation, ServerRecord, TableRecord

REGIONS: Final = 1_000_000
SERVERS: Final = 1_000
TABLES: Final = 10


def loaded(regions: int, servers: int) -> Assigner:
    """Return an assigner whose regions are all open, dealt to the servers in turn."""
    assigner = Assigner(epoch=1)
    names = [f"server-{i:05d}" for i in range(servers)]
    assigner.load(
        [(TableRecord(f"table{i}", f"table{i}", regions=regions // TABLES), 0) for i in range(TABLES)],
        (
            (RegionRecord(f"table{i % TABLES}", f"{i:032x}", replicas=(ReplicaLocation(0, names[i % servers], 1),)), 0)
            for i in range(regions)
        ),
        [ServerRecord(name, f"host{i}", 1, 1, f"rack{i // 40}") for i, name in enumerate(names)],
        [],
        [],
        0,
    )
    assigner.begin(0)
    assert not assigner.take(0), "all regions are open: there is nothing to do"
    return assigner


class Death:
    """Seconds of each part, and the resulting placement."""

    def __init__(self, assigner: Assigner, uuid: str) -> None:
        self.assigner = assigner
        self.victims: list[Replica] = list(assigner.world.servers[uuid].open.values())
        self.seconds: dict[str, float] = {}
        writes = self._timed("answer", lambda: assigner.handle(ev.ServerDown(uuid), 1))
        self.placed = {one.key: one.record for one in writes if isinstance(one, fx.WriteOffline)}
        done = [ev.WriteDone(key, 0) for key in self.placed]
        orders = self._timed("orders", lambda: self._feed(done))
        self._timed("the rest", lambda: self._carry_out([one for one in orders if isinstance(one, fx.SendOpen)]))

    def _timed(self, name: str, action: Callable[[], None]) -> list[fx.Effect]:
        """Run the action and take the assigner's effects. Note the seconds of both together."""
        start = time.perf_counter()
        action()
        effects = self.assigner.take(1)
        self.seconds[name] = time.perf_counter() - start
        return effects

    def _feed(self, events: list[ev.WriteDone]) -> None:
        for event in events:
            self.assigner.handle(event, 1)

    def _carry_out(self, batches: list[fx.SendOpen]) -> None:
        """Simulate the servers: accept the orders and open. Simulate the store: report each step, delete ended
        transitions."""
        for batch in batches:
            results = [
                OrderResult(one.transition.region_id, one.transition.replica, OrderOutcome.STARTED)
                for one in batch.orders
            ]
            self.assigner.handle(ev.OrdersAnswered(batch.batch, results), 1)
            for order in batch.orders:
                for version, state in ((1, RegionState.OPENING), (2, RegionState.OPENED)):
                    step = msgspec.structs.replace(order.transition, state=state)
                    event = ev.TransitionRead(step.key, step, version)
                    self.assigner.handle(event, 1)
        deletes = [one for one in self.assigner.take(1) if isinstance(one, fx.DeleteTransition)]
        self._feed([ev.WriteDone(one.key) for one in deletes])

    @property
    def spread(self) -> int:
        """Return the replicas of the fullest server minus those of the emptiest."""
        loads = [server.load for server in self.assigner.world.servers.values()]
        return max(loads) - min(loads)

    @property
    def closed(self) -> int:
        """Return how many replicas of the dead server are not open elsewhere now."""
        return sum(1 for one in self.victims if one.open_on is None or one.transition is not None)


def measure(note: Callable[[Row], None], say: Callable[[str], None]) -> None:
    """Measure one death."""
    say(f"dead-server: {REGIONS:,} regions on {SERVERS:,} servers come into the master's memory")
    start = time.perf_counter()
    assigner = loaded(REGIONS, SERVERS)
    say(f"dead-server: loaded in {time.perf_counter() - start:.1f} s")
    before = machine()
    death = Death(assigner, "server-00500")
    note(
        Row(
            size="1m",
            scenario="dead-server",
            engine="assigner",
            date=time.strftime("%Y-%m-%d %H:%M"),
            load=before["load"],
            cores=before["cores"],
            seconds=round(sum(death.seconds.values()), 3),
            figures={
                "regions of the dead": len(death.victims),
                **{f"{name}, s": round(seconds, 3) for name, seconds in death.seconds.items()},
                "not open again": death.closed,
                "max-min": death.spread,
            },
        )
    )
