"""A store in memory that audits every change of a transition, like an auditor that misses none.

The history that masters write is compared with these changes: every step once, in order, with its cause.
"""

from __future__ import annotations

from typing import Any

from regions.diagnose.invariants import Audit, Rule
from regions.records.alarms import Alarm
from regions.records.model import RegionState, TransitionRecord
from regions.records.replica_key import parse_replica_key
from regions.records.znodes import decode_region, decode_server, decode_table, decode_transition
from regions.transitions.observed import ObservedTransition
from regions.transitions.steps import server_of
from simulation.checks.history import HistoryCheck
from tests.unit.master.active_fixture import LAYOUT, LossyStore


class TabletAudit:
    """The audit of a cluster over all its masters."""

    def __init__(self) -> None:
        self.audit = Audit()
        self.alarms: list[Alarm] = []
        self.now_ms = 1_000_000
        self._zxid = 0
        #: Version and creation of each transition at its last audit.
        self._known: dict[str, tuple[int, int]] = {}
        self._records: dict[str, bytes] = {}
        self._epochs: dict[int, int] = {}
        #: Differences that `history` has found between every step and the history below /history.
        self.wrong: list[str] = []
        self.history = HistoryCheck(self.wrong.append)
        self._steps: dict[str, bytes] = {}
        self._segments: dict[str, bytes] = {}

    def look(self, nodes: dict[str, tuple[bytes, int, int]], *, by_server: bool) -> None:
        """Audit the changes since the last call: one step of each transition, by a server or by a master."""
        self._zxid += 1
        self._look_at_history(nodes, by_server=by_server)
        self._look_at_records(nodes)
        _, epoch, _ = nodes[LAYOUT.epoch]
        self.alarms += self.audit.epoch(epoch, self._epochs.setdefault(epoch, self._zxid), self.now_ms)
        present: dict[str, tuple[int, int]] = {}
        for path, (data, version, _) in nodes.items():
            if LAYOUT.parse_transition(path) is None:
                continue
            _, czxid = self._known.get(path, (version, self._zxid))
            present[path] = (version, czxid)
            if self._known.get(path) != present[path]:
                key = path.rpartition("/")[2]
                record = decode_transition(data)
                self._see(ObservedTransition(self.now_ms, key, record, version, czxid, self._zxid), nodes)
        for path in self._known.keys() - present.keys():
            key = path.rpartition("/")[2]
            region_id, number = parse_replica_key(key)
            gone = TransitionRecord(region_id, region_id.rpartition(".")[0], number, RegionState.OPENED)
            version = self._known[path][0]
            self._see(ObservedTransition(self.now_ms, key, gone, version, exists=False), nodes)
        self._known = present

    def _look_at_history(self, nodes: dict[str, tuple[bytes, int, int]], *, by_server: bool) -> None:
        steps = {path: node[0] for path, node in nodes.items() if LAYOUT.parse_transition(path) is not None}
        changed = [path for path in steps.keys() | self._steps.keys() if steps.get(path) != self._steps.get(path)]
        for path in changed:
            old, new = (
                decode_transition(data) if (data := known.get(path)) else None for known in (self._steps, steps)
            )
            server = server_of(new) if by_server and new is not None else None
            uuid = "" if server is None else server.uuid
            self.history.committed(path.rpartition("/")[2], old, new, uuid, nodes[LAYOUT.epoch][1])
        below = f"{LAYOUT.history}/"
        segments = {path[len(below) :]: node[0] for path, node in nodes.items() if path.startswith(below)}
        names = sorted(segments.keys() ^ self._segments.keys())
        self.history.segments_changed([(name, segments.get(name)) for name in names])
        for path in changed:
            self.history.check_kept(path.rpartition("/")[2], steps.get(path), nodes[path][1] if path in nodes else -1)
        self._steps, self._segments = steps, segments

    def _look_at_records(self, nodes: dict[str, tuple[bytes, int, int]]) -> None:
        kept = {path: node[0] for path, node in nodes.items() if path.startswith((LAYOUT.servers, LAYOUT.tables))}
        for path in self._records.keys() | kept.keys():
            data, uuid = kept.get(path), path.rpartition("/")[2]
            if self._records.get(path) == data or path in (LAYOUT.servers, LAYOUT.tables):
                continue
            if path.startswith(LAYOUT.servers):
                self.audit.server(uuid, decode_server(data) if data else None)
            else:
                self.audit.table(uuid, decode_table(data) if data else None, self.now_ms)
        self._records = kept

    def _see(self, observed: ObservedTransition, nodes: dict[str, tuple[bytes, int, int]]) -> None:
        for alarm in self.audit.see(observed):
            region_id, number = parse_replica_key(alarm.key)
            node = nodes.get(LAYOUT.region(region_id.rpartition(".")[0], region_id))
            region = None if node is None else decode_region(node[0])
            excused = region is not None and (region.unassigned or region.is_replaced or region.member(number) is None)
            if alarm.rule != Rule.VANISHED or not excused:
                self.alarms.append(alarm)

    def time_passes(self, seconds: float) -> None:
        """Check for transitions that stand still."""
        self.now_ms += int(seconds * 1000)
        self.alarms += self.audit.tick(self.now_ms)


class AuditedStore(LossyStore):
    """See the module docstring."""

    def __init__(self, audit: TabletAudit) -> None:
        super().__init__()
        self.audit = audit

    def _multi(self, operations: list[Any]) -> list[Any]:
        try:
            return super()._multi(operations)
        finally:
            self._look()

    def change(self, path: str, data: bytes = b"") -> None:
        super().change(path, data)
        self._look(by_server=True)

    def drop(self, path: str) -> None:
        super().drop(path)
        self._look()

    def _look(self, *, by_server: bool = False) -> None:
        if LAYOUT.epoch in self.nodes:
            self.audit.look(self.nodes, by_server=by_server)
