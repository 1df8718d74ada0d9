"""Replays the whole log of a stopped store node, and looks at the key space after every single command."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Final, NamedTuple

from coord.offline.directory import StoppedDirectory
from coord.offline.verify import Replay, check
from coord.raft.messages import NORMAL
from coord.tree.command import decode_batch
from coord.tree.machine import CommandOutcome, StateMachine
from regions.records.model import RegionRecord, RegionState, TableState
from regions.records.partitioning import check_ranges
from regions.records.znodes import Layout, decode_region, decode_table, decode_transition

#: Faults that are reported.
FAULTS_MAX: Final = 20


class Gap(NamedTuple):
    """A time in which the keys of one daughter had no open region, by the clock of the store's leader."""

    daughter: str
    began_ms: int
    ended_ms: int


class KeySpace:
    """The regions of all tables after each command."""

    def __init__(self, layout: Layout) -> None:
        self._tables, self._regions = f"{layout.root}/tables/".encode(), f"{layout.root}/regions/".encode()
        self._unassigned = f"{layout.root}/unassigned/".encode()
        self._held: defaultdict[str, dict[str, RegionRecord]] = defaultdict(dict)
        #: Time of each region's last CLOSING, and of each region's first OPENED, by id.
        self._closing: dict[str, int] = {}
        self._opened: dict[str, int] = {}
        self._parents: dict[str, tuple[str, ...]] = {}
        #: Number of checks of a table after a change of bounds, and number of all commands.
        self.changes = 0
        self.commands = 0
        self.faults: list[str] = []

    def applied(self, machine: StateMachine, outcome: CommandOutcome, time_ms: int) -> None:
        """Look at what a command has changed."""
        self.commands += 1
        touched: set[str] = set()
        for path in dict.fromkeys(path for _, path, _ in outcome.events):
            node = machine.tree.nodes.get(path)
            if path.startswith(self._regions) and path.count(b"/", len(self._regions)) == 1:
                touched |= self._region(path, None if node is None else node.data)
            elif path.startswith(self._tables):
                touched.add(path[len(self._tables) :].decode())
            elif node is not None and path.startswith(self._unassigned) and path.count(b"/", len(self._unassigned)):
                self._transition(node.data or b"", time_ms)
        for table_id in touched:
            self._check(machine, table_id, outcome.zxid)

    def _region(self, path: bytes, data: bytes | None) -> set[str]:
        """Set a region's record; return its table if the bounds of served regions changed."""
        table_id, _, region_id = path[len(self._regions) :].decode().partition("/")
        held = self._held[table_id]
        before = held.pop(region_id, None)
        record = None if data is None else decode_region(data, region_id)
        if record is not None and not record.is_replaced:
            held[region_id] = record
            self._parents[region_id] = tuple(one.region_id for one in record.parents)
        after = held.get(region_id)
        return {table_id} if _bounds(before) != _bounds(after) else set()

    def _transition(self, data: bytes, time_ms: int) -> None:
        found = decode_transition(data)
        if found.state is RegionState.CLOSING:
            self._closing[found.region_id] = time_ms
        elif found.state is RegionState.OPENED:
            self._opened.setdefault(found.region_id, time_ms)

    def _check(self, machine: StateMachine, table_id: str, zxid: int) -> None:
        node = machine.tree.nodes.get(self._tables + table_id.encode())
        table = None if node is None else decode_table(node.data or b"")
        if table is None or table.state not in (TableState.RUNNING, TableState.ALTERING):
            return
        self.changes += 1
        regions = sorted(self._held[table_id].values(), key=lambda one: one.start_key)
        fault = f"{len(regions)} regions, {table.regions} by the table's record" * (len(regions) != table.regions)
        try:
            check_ranges(regions)
        except ValueError as error:
            fault = str(error)
        if fault and len(self.faults) < FAULTS_MAX:
            self.faults.append(f"zxid {zxid:#x}, table {table.name}: {fault}")

    def gaps(self) -> list[Gap]:
        """Return the times without an open region of all daughters that were opened.

        A tablet's parents are closed after that: the store does not show when they were sealed.
        """
        found = []
        for daughter, parents in self._parents.items():
            closed = [self._closing[one] for one in parents if one in self._closing]
            if closed and daughter in self._opened and min(closed) <= self._opened[daughter]:
                found.append(Gap(daughter, min(closed), self._opened[daughter]))
        return found


def _bounds(record: RegionRecord | None) -> tuple[str, str] | None:
    return None if record is None else (record.start_key, record.end_key)


def replayed(folder: Path, layout: Layout) -> KeySpace:
    """Replay the log in a node's directory, which must begin with the first entry."""
    found = KeySpace(layout)
    with StoppedDirectory(folder) as directory:
        report = check(directory)
        found.faults += report.damage
        if report.log.base_index:
            found.faults.append(f"the log in {folder} begins only after entry {report.log.base_index}")
            return found
        # A replay of its own, because a batch is to be applied command by command.
        replay = Replay(report, None)
        machine = replay.machine
        for entry in report.log.entries:
            if entry.kind != NORMAL:
                replay.apply_other(entry)
                continue
            machine.begin_batch(entry.data)
            time_ms, commands = decode_batch(entry.data)
            for command in commands:
                found.applied(machine, machine.apply(command, time_ms), time_ms)
        if machine.digest() != report.digest:
            found.faults.append(f"the replay leads to digest {machine.digest():016x}, and not {report.digest:016x}")
    return found
