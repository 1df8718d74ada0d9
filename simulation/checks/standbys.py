"""Are standbys what they say they are? Held against the store's truth whenever one answers a read or takes over.

A mirror that claims to hold everything up to some zxid must have, of each znode whose last change is not younger, that
very version, and nothing that was deleted by then. The claim is the proof of an answer's age, or, at a takeover, the
write of the new reign's epoch. Ages are held against the time at which the question was asked, by the clock of the
machine that counted them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any, Final

from coord.tree.machine import CommandOutcome, StateMachine
from coord.wire.records import EVENT_DELETED
from master.standby.watcher import StoreWatcher, Warm
from regions.cluster.state import ClusterState
from regions.cluster.validation import validate
from regions.messages.staleness import AsOf, Bound
from regions.records.model import TabletState
from regions.records.replica_key import replica_key
from regions.records.znodes import Layout, decode_region, decode_table
from simulation.checks.observer import Observer
from simulation.engine.process import Process
from simulation.engine.timeline import Timeline

#: Readings of a process's clock are whole milliseconds.
ROUNDING_US: Final = 2_000
_ENDED: Final = (TabletState.DELETED, TabletState.REPLACED)


class Standbys:
    """Knows when what was committed, and checks claims."""

    def __init__(self, timeline: Timeline, layout: Layout, observer: Observer) -> None:
        self._timeline = timeline
        self._layout = layout
        self._violated = observer.violated
        self._count = observer.count
        self.truth = StateMachine()
        self._times: list[int] = []
        self._zxids: list[int] = []
        self._deleted: dict[str, int] = {}
        #: Zxid of the write of each epoch.
        self._epochs: dict[int, int] = {}

    def committed(self, machine: StateMachine, outcome: CommandOutcome) -> None:
        """The store has performed a command."""
        self.truth = machine
        if not outcome.events:
            return
        self._times.append(self._timeline.now)
        self._zxids.append(outcome.zxid)
        for event_type, path, _ in outcome.events:
            if event_type == EVENT_DELETED:
                self._deleted[path.decode()] = outcome.zxid
        node = machine.tree.nodes.get(self._layout.epoch.encode())
        if node is not None:
            self._epochs.setdefault(node.version, outcome.zxid)

    def _zxid_at(self, time_us: float) -> int:
        at = bisect_right(self._times, time_us)
        return self._zxids[at - 1] if at else 0

    # --- claims -------------------------------------------------------------------------------------------------------

    def took_over(self, who: str, epoch: int, warm: Warm) -> None:
        """MF-11: a warm takeover knows what a load after the epoch's write would have found."""
        self._count("warm takeovers")
        self._check(f"{who}, active under epoch {epoch} with its mirror,", warm.world, self._epochs.get(epoch, 0))

    def answered(self, process: Process, as_of: AsOf, asked_us: int, world: ClusterState) -> None:
        """FW-01: an answer is as old as it says."""
        self._count("answers of standbys")
        who = f"{process.name}, which answers as of zxid {as_of.zxid},"
        self._check(who, world, as_of.zxid)
        held = asked_us - as_of.stale_ms * 1_000 / process.rate - ROUNDING_US
        if as_of.zxid < self._zxid_at(held):
            self._violated(f"FW-01: {who} says that it is {as_of.stale_ms} ms old: {self._zxid_at(held)} is older")

    def _check(self, who: str, world: ClusterState, zxid: int) -> None:
        try:
            validate(world)
        except AssertionError as error:
            self._violated(f"invariant of {who}: {error}")
        known = dict(self._held(world))
        for path, version in self._stored(world, zxid):
            if known.get(path) != version:
                self._violated(f"FW-01: {who} has version {known.get(path)} of {path}; there is {version}")
        for path in known:
            if path.encode() not in self.truth.tree.nodes and self._deleted.get(path, 0) <= zxid:
                self._violated(f"FW-01: {who} has {path}, which was deleted in {self._deleted.get(path)}")

    def _held(self, world: ClusterState) -> Iterator[tuple[str, int]]:
        layout = self._layout
        for table_id, table in world.tables.items():
            yield layout.table(table_id), table.version
        for region_id, region in world.regions.items():
            yield layout.region(region.record.table_id, region_id), region.version
        for replica in world.rit():
            yield layout.transition(replica.region.record.region_id, replica.number), replica.version

    def _stored(self, world: ClusterState, zxid: int) -> Iterator[tuple[str, int]]:
        """What must be known: of the znodes that have not changed since, those that a load takes notice of."""
        layout, nodes = self._layout, self.truth.tree.nodes
        tables = {}
        for raw, node in nodes.items():
            path = raw.decode()
            parent, _, name = path.rpartition("/")
            if parent == layout.tables and not decode_table(node.data or b"").finished_ms:
                tables[name] = node.mzxid <= zxid
                if node.mzxid <= zxid:
                    yield path, node.version
        for raw, node in nodes.items():
            path = raw.decode()
            if node.mzxid > zxid or path.count("/") < 4:
                continue
            if path.startswith(f"{layout.regions}/"):
                region = decode_region(node.data or b"")
                if tables.get(region.table_id) and region.state not in _ENDED:
                    yield path, node.version
            elif (found := layout.parse_transition(path)) and replica_key(*found) in world.replicas:
                yield path, node.version


class ObservedWatcher(StoreWatcher):
    """A feed whose claims are checked when they are made."""

    standbys: Standbys
    process: Process
    epoch: Callable[[], int]

    async def hand_over(self) -> Warm | None:
        """See Feed.hand_over."""
        warm = await super().hand_over()
        if warm is not None:
            self.standbys.took_over(self.process.name, self.epoch(), warm)
        return warm

    async def prove(self, bound: Bound, asked_ms: int) -> AsOf | None:
        """See Feed.prove."""
        asked_us = self.process.timeline.now
        as_of = await super().prove(bound, asked_ms)
        if as_of is not None and self.mirror is not None:
            self.standbys.answered(self.process, as_of, asked_us, self.mirror.world)
        return as_of


def observed(standbys: Standbys, process: Process, epoch: Callable[[], int], *arguments: Any) -> ObservedWatcher:
    """A feed as the service makes it, under observation."""
    watcher = ObservedWatcher(*arguments)
    watcher.standbys, watcher.process, watcher.epoch = standbys, process, epoch
    return watcher
