"""Compare the claims of standby masters with the store, whenever a standby answers a read or takes over.

A mirror that claims to be complete up to a zxid must satisfy two conditions:

- it has every znode that has not changed since that zxid, in its current version;
- it has no znode that was deleted at or before that zxid.

The zxid of a read is the proof of the answer's age. The zxid of a takeover is the write of the new epoch. Ages count
from the time of the request, by the clock of the standby's machine.
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

#: Process clocks are read in whole milliseconds.
ROUNDING_US: Final = 2_000
_ENDED: Final = (TabletState.DELETED, TabletState.REPLACED)


class Standbys:
    """Records when each zxid was committed and checks claims of standbys."""

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
        """Record a command that the store has applied."""
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
        """Check that a warm takeover has everything that a load after the write of the epoch would find (MF-11)."""
        self._count("warm takeovers")
        self._check(f"{who}, active under epoch {epoch} with its mirror,", warm.world, self._epochs.get(epoch, 0))

    def answered(self, process: Process, as_of: AsOf, asked_us: int, state: ClusterState) -> None:
        """Check that an answer is at most as old as it claims (FW-01)."""
        self._count("answers of standbys")
        who = f"{process.name}, which answers as of zxid {as_of.zxid},"
        self._check(who, state, as_of.zxid)
        held = asked_us - as_of.stale_ms * 1_000 / process.rate - ROUNDING_US
        if as_of.zxid < self._zxid_at(held):
            self._violated(
                f"FW-01: {who} claims an age of {as_of.stale_ms} ms, but zxid {self._zxid_at(held)} is older"
            )

    def _check(self, who: str, state: ClusterState, zxid: int) -> None:
        try:
            validate(state)
        except AssertionError as error:
            self._violated(f"invariant of {who}: {error}")
        known = dict(self._held(state))
        for path, version in self._stored(state, zxid):
            if known.get(path) != version:
                self._violated(f"FW-01: {who} has version {known.get(path)} of {path}; the store has {version}")
        for path in known:
            if path.encode() not in self.truth.tree.nodes and self._deleted.get(path, 0) <= zxid:
                self._violated(f"FW-01: {who} has {path}, which was deleted in {self._deleted.get(path)}")

    def _held(self, state: ClusterState) -> Iterator[tuple[str, int]]:
        layout = self._layout
        for table_id, table in state.tables.items():
            yield layout.table(table_id), table.version
        for region_id, region in state.regions.items():
            yield layout.region(region.record.table_id, region_id), region.version
        for replica in state.rit():
            yield layout.transition(replica.region.record.region_id, replica.number), replica.version

    def _stored(self, state: ClusterState, zxid: int) -> Iterator[tuple[str, int]]:
        """Return the znodes that must be known: unchanged since `zxid`, and of a kind that a load reads."""
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
            elif (found := layout.parse_transition(path)) and replica_key(*found) in state.replicas:
                yield path, node.version


class ObservedWatcher(StoreWatcher):
    """A store watcher whose claims are checked at once."""

    standbys: Standbys
    process: Process
    epoch: Callable[[], int]

    async def hand_over(self) -> Warm | None:
        """See StoreWatcher.hand_over."""
        warm = await super().hand_over()
        if warm is not None:
            self.standbys.took_over(self.process.name, self.epoch(), warm)
        return warm

    async def prove(self, bound: Bound, asked_ms: int) -> AsOf | None:
        """See StoreWatcher.prove."""
        asked_us = self.process.timeline.now
        as_of = await super().prove(bound, asked_ms)
        if as_of is not None and self.mirror is not None:
            self.standbys.answered(self.process, as_of, asked_us, self.mirror.world)
        return as_of


def observed(standbys: Standbys, process: Process, epoch: Callable[[], int], *arguments: Any) -> ObservedWatcher:
    """Return a store watcher as the service makes it, with checked claims."""
    watcher = ObservedWatcher(*arguments)
    watcher.standbys, watcher.process, watcher.epoch = standbys, process, epoch
    return watcher
