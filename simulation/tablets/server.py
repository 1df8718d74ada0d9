"""One simulated server: its disk, which outlives it, and the shell around its Turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from coord.raft.messages import HardState
from coord.storage.shared.items import Change, RecoveredSlot
from regionserver.tablets.disk.consensus_meta import ConsensusMeta
from regionserver.tablets.disk.files import TabletFiles
from regionserver.tablets.disk.layout import rows_path
from regionserver.tablets.disk.life import DataState, RunState
from regionserver.tablets.disk.startup import RowsFound
from regionserver.tablets.disk.superblock import Superblock, memory_of
from regionserver.tablets.host.requests import TabletAnswer
from regionserver.tablets.host.turn import Turn
from regionserver.tablets.process.files_work import FilesWork
from regionserver.tablets.process.replica import TabletReplica
from simulation.engine.chance import SeededRandom
from simulation.engine.disk import SimDisk, SimFile
from simulation.tablets.storage.log import SimLog, SimSlot
from simulation.tablets.storage.rows import RowsImage, SimRows

#: Run states that each data state of a server without a process stands for.
_AT_REST = {DataState.READY: RunState.ASLEEP, DataState.COPYING: RunState.COPYING}


class SimWaiting(Protocol):
    """An attempt of a client's operation that waits for an answer of a server."""

    key: str
    #: The lowest index that a read may see.
    floor: int

    @property
    def tablet(self) -> str:
        """The tablet."""
        ...

    def answered(self, server: SimServer, answer: TabletAnswer) -> None:
        """Handle the server's answer."""
        ...

    def read(self, value: bytes | None) -> None:
        """Handle the server's answer to a read."""
        ...

    def sealed(self) -> None:
        """Handle the refusal of a read by a sealed tablet."""
        ...

    def reset(self) -> None:
        """Handle the break of the connection to the server."""
        ...


class SimServer:
    """A server. `turn` is None while its process is down."""

    def __init__(self, name: str, log: SimLog, chance: SeededRandom, now: Callable[[], int]) -> None:
        self.name = name
        self.log = log
        #: Contents of the small files. Of the files of rows only their names; their contents are in `_images`.
        self.disk = SimDisk(name, chance, now)
        self._images: dict[SimFile, SimRows] = {}
        self.files = TabletFiles(self.disk, _SlotsNow(self))
        self.work = FilesWork(self.files, _SlotsNow(self), name)  # type: ignore[arg-type]
        #: The tablets that the disk has, as superblocks say; while the process runs also their run states.
        self.holdings: dict[str, TabletReplica] = {}
        self.turn: Turn | None = None
        #: Number of starts, and start code. Events of an earlier start are dropped.
        self.life = 0
        #: The next slot that a copy takes.
        self.next_slot = 1
        self.tick_us = 50_000
        self.sync_us = 1000.0
        self.apply_us = 300.0
        self.paused_until = 0
        #: Tablets whose code raises until the process is started again.
        self.broken: set[str] = set()
        self.is_pump_planned = False
        self.is_syncing = False
        #: Requests that wait for an answer of this process: request -> the client's attempt.
        self.requests: dict[int, SimWaiting] = {}

    def turn_now(self) -> Turn:
        """Return the turn of a server that is up."""
        assert self.turn is not None, f"{self.name} is down"
        return self.turn

    # --- replicas -----------------------------------------------------------------------------------------------------

    def running(self, tablet: str) -> TabletReplica | None:
        """Return a replica that takes part in its group, or will when the process starts."""
        found = self.holdings.get(tablet)
        if found is None or found.run not in (RunState.ASLEEP, RunState.RUNNING) or self.rows_of(tablet).is_damaged:
            return None
        return None if self.log.slots[found.slot].damage else found

    def slot_of(self, tablet: str, number: int) -> SimSlot | None:
        """Return the slot of a member here, even one that was dropped or lost.

        A deletion first writes the superblock without the slot, then drops the slot. A process may die in between.
        """
        found = self.holdings.get(tablet)
        if found is not None and found.number == number and found.block.slot is not None:
            return self.log.slots[found.block.slot]
        undropped = (one for one in self.log.slots.values() if (one.tablet, one.number) == (tablet, number))
        return next(undropped, self.log.former.get((tablet, number)))

    def promises_of(self, tablet: str, number: int) -> HardState:
        """Return the durable term and vote of a member."""
        found = self.holdings.get(tablet)
        if found is not None and found.number == number and found.block.slot is None:
            memory = memory_of(found.block, found.meta)
            if memory is not None:
                return HardState(memory.term, memory.vote)
        slot = self.slot_of(tablet, number)
        return HardState(0, 0) if slot is None else slot.hard_state

    def reload(self) -> None:
        """Read the superblocks anew, while no process runs: they may have changed in the last moment."""
        self.holdings = {}
        for tablet in self.disk.names("tablet-meta"):
            if self.files.has_block(tablet) and not tablet.startswith("."):
                block = self.files.read_block(tablet)
                if isinstance(block, Superblock):
                    self.holdings[tablet] = TabletReplica(block, self.read_meta(tablet), run_at_rest(block))

    def read_meta(self, tablet: str) -> ConsensusMeta | None:
        """Return the consensus metadata of a tablet, None if there are no readable ones."""
        _, meta = self.work.read(tablet)
        return meta if isinstance(meta, ConsensusMeta) else None

    # --- rows ---------------------------------------------------------------------------------------------------------

    def rows_of(self, tablet: str) -> SimRows:
        """Return the rows of a READY replica."""
        block = self.holdings[tablet].block
        return self._images[self.disk.files[rows_path(tablet, block.generation)]]

    def make_rows(self, tablet: str, generation: int, rows: SimRows) -> str:
        """Make the file of rows, which is not durable yet. Return its path."""
        path = rows_path(tablet, generation)
        if path in self.disk.files:
            self.disk.remove(path)
        self._images[self.disk.open(path, create=True)] = rows
        return path

    def make_heir(self, path: str) -> SimRows:
        """Make the file of a daughter that is prepared, in place of a former one. Return its rows."""
        if path in self.disk.files:
            self.disk.remove(path)
        rows = self._images[self.disk.open(path, create=True)] = SimRows(RowsImage())
        return rows

    def rename_heir(self, path: str, tablet: str, generation: int) -> None:
        """Turn the file of a prepared daughter into the file of its rows, and make it durable."""
        named = rows_path(tablet, generation)
        if named in self.disk.files:
            self.disk.remove(named)
        self.disk.rename(path, named)
        rows = self._images[self.disk.files[named]]
        rows.steady = rows.now.copy()
        self.sync_rows(named)

    def remove_rows(self, tablet: str, generation: int) -> None:
        """Remove rows that no superblock names."""
        path = rows_path(tablet, generation)
        if path in self.disk.files:
            self.disk.remove(path)

    def sync_rows(self, path: str) -> None:
        """Make a file of rows and its name durable."""
        self.disk.files[path].sync()
        self.disk.sync_folder("data")
        self._images[self.disk.files[path]].is_synced = True

    def judge(self, tablet: str, generation: int) -> RowsFound:
        """Return the findings of a start about the rows (`files.RowsJudge`)."""
        rows = self._images[self.disk.files[rows_path(tablet, generation)]]
        return RowsFound(generation, "a row is damaged" if rows.is_damaged else "")

    # --- death --------------------------------------------------------------------------------------------------------

    def power_cut(self) -> None:
        """Cut the power: unsynced files and rows are lost."""
        self.disk.power_cut()
        for rows in self._images.values():
            rows.power_cut()

    def lose_disk(self) -> None:
        """Replace the disk by an empty one."""
        self.log.lose()
        self.disk = SimDisk(self.name, self.disk.chance, self.disk.now)
        self._images = {}
        self.files = TabletFiles(self.disk, _SlotsNow(self))
        self.work = FilesWork(self.files, _SlotsNow(self), self.name)  # type: ignore[arg-type]
        self.holdings = {}


class _SlotsNow:
    """The log as steps on files use it (`files.SlotLog`): a crash can come before and after each write."""

    def __init__(self, server: SimServer) -> None:
        self._server = server

    def write(self, changes: Sequence[Change]) -> None:
        self._server.disk.step()
        self._server.log.write_now(changes)
        self._server.disk.step()

    def contents(self, slot: int) -> RecoveredSlot | None:
        return self._server.log.contents(slot)


def run_at_rest(block: Superblock) -> RunState:
    """Return the run state with which a superblock begins."""
    if block.data_state is DataState.DELETED:
        return RunState.LOST if block.is_lost else RunState.TOMBSTONE
    return _AT_REST[block.data_state]
