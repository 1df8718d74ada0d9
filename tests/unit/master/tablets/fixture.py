"""One active master and scripted servers that take tablets, on a store in memory. Every change of the store is
audited."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from coord.client.session import SessionState
from regions.messages.ddl import CreateTable
from regions.records.formats import TABLETS
from regions.records.model import ClusterRecord, RegionRecord, TransitionRecord
from regions.records.znodes import decode_region, decode_transition, encode
from tests.support.tablet_servers import ScriptedServers
from tests.unit.master.active_fixture import LAYOUT, Bench, LossyStore
from tests.unit.master.tablets.audited import AuditedStore, TabletAudit

#: Turns of the reactor in which everything happens that needs no time to pass.
TURNS = 60


def empty_cluster(in_force: int = TABLETS, *, is_audited: bool = True) -> LossyStore:
    """Return a store with a cluster that has neither servers nor tables."""
    store = AuditedStore(TabletAudit()) if is_audited else LossyStore()
    for path in ("/rk", *LAYOUT.parents()):
        store.put(path)
    store.put(LAYOUT.epoch, b"", 4)
    store.put(LAYOUT.cluster, encode(ClusterRecord("c", in_force)))
    return store


class TabletBench:
    """See the module docstring."""

    def __init__(self, folder: Path, servers: int = 3, store: LossyStore | None = None) -> None:
        self.folder = folder
        self.store = store or empty_cluster()
        self.servers = ScriptedServers(self.store, LAYOUT, servers)
        self.servers.register()
        self.bench = self._lead(Bench(folder, store=self.store))

    def _lead(self, bench: Bench) -> Bench:
        """Let the master's orders reach the scripted servers."""
        active_master = bench.active_master
        assert active_master is not None
        for dispatcher in (active_master.keeper._dispatcher, active_master.dispatcher):
            dispatcher._client = self.servers.client  # type: ignore[method-assign, assignment]
        return bench

    @property
    def active_master(self) -> Any:
        assert self.bench.active_master is not None
        return self.bench.active_master

    def fail_over(self, *, start: bool = False) -> None:
        """Kill the active master; the next one takes over in another session. `start`: all servers start again in
        between."""
        former = self.bench
        assert former.active_master is not None
        former.store.become(SessionState.EXPIRED)
        former.store.waiting.clear()
        store = AuditedStore(former.store.audit) if isinstance(former.store, AuditedStore) else LossyStore()
        store.nodes = former.store.nodes
        data, version, owner = store.nodes[LAYOUT.epoch]
        store.put(LAYOUT.epoch, data, version + 1, owner)
        self.store = self.servers.store = store
        self.servers.new_master()
        for uuid in self.servers.servers if start else ():
            self.servers.start(uuid)
        self.bench = self._lead(Bench(self.folder, store=store, epoch=version + 1))

    def turn(self, count: int = TURNS, seconds: float = 0.0) -> None:
        """Let that many turns pass, with heartbeats."""
        for _ in range(count):
            self.servers.beat(self.active_master.reported)
            self.bench.go_on(seconds)
            if isinstance(self.store, AuditedStore):
                self.store.audit.time_passes(seconds)
                assert (self.store.audit.alarms, self.store.audit.wrong) == ([], [])

    def until(self, holds: Callable[[], bool], seconds: float = 0.5, turns: int = 400) -> None:
        """Let time pass until `holds()`."""
        for _ in range(turns):
            if holds():
                return
            self.turn(1, seconds)
        raise AssertionError(f"did not come about: {self.states()}, {self.transitions()}")

    def create(self, name: str = "x", regions: int = 1, **more: Any) -> Any:
        """Create a table of tablets."""
        splits = [f"k{number:05d}" for number in range(1, regions)]
        return self.bench.ask(CreateTable(name, splits, replication=3, **more))

    def table_id(self, name: str = "x") -> str:
        return self.store.nodes[LAYOUT.name(name)][0].decode()

    def regions(self) -> list[RegionRecord]:
        """Return all regions' records in the store."""
        prefix = f"{LAYOUT.regions}/"
        below = [path for path in self.store.nodes if path.startswith(prefix)]
        return [decode_region(self.store.nodes[path][0]) for path in sorted(below) if "/" in path[len(prefix) :]]

    def states(self) -> list[str]:
        return [region.state.value for region in self.regions()]

    def transitions(self) -> list[TransitionRecord]:
        """Return all transitions in the store."""
        return [
            decode_transition(node[0])
            for path, node in self.store.nodes.items()
            if LAYOUT.parse_transition(path) is not None
        ]

    def is_running(self) -> bool:
        """Return True if every region is RUNNING or replaced, and no transition is left."""
        return set(self.states()) <= {"RUNNING", "REPLACED"} and not self.transitions()
