"""A server's tablets on a disk whose power can be cut at every step.

`SimDisk` loses any part of the unsynced data, and tears writes. `cut_everywhere` repeats a piece of work with a power
cut before and after each operation on the disk, and yields the disk for the next start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from coord.storage.records import HardStateItem, LogItem
from coord.storage.shared.items import BEGINNING, Change, Drop, OpenSlot, Position, RecoveredSlot, SlotError, SlotItems
from coord.storage.shared.log import open_shared_log
from coord.storage.shared.recovery import recover
from regionserver.tablets.disk.files import TabletFiles
from regionserver.tablets.disk.joined import StartingSlots
from regionserver.tablets.disk.layout import DATABASE, STEADY, TEMPORARY, rows_path
from regionserver.tablets.disk.startup import Decision, RowsFound
from regionserver.tablets.disk.steps import creation
from simulation.engine.chance import SeededRandom
from simulation.engine.disk import SimDisk
from tests.unit.regionserver.tablets.disk.examples import SERVER, TABLET, meta, ready

#: The content of the tablet's rows in the tests.
ROWS: Final = b"rows " * 300
STEADY_POINT: Final = b"steady point"


class PowerCut(Exception):  # noqa: N818
    """Raised when the power fails."""


class SlotStore:
    """Slots that are durable when `write` returns: the shared log without its bytes. It survives its server."""

    def __init__(self) -> None:
        self.slots: dict[int, RecoveredSlot] = {}
        self.step: Callable[[], None] = lambda: None

    def write(self, changes: Sequence[Change]) -> None:
        self.step()
        for change in changes:
            self._apply(change)
        self.step()

    def contents(self, slot: int) -> RecoveredSlot | None:
        return self.slots.get(slot)

    def _apply(self, change: Change) -> None:
        if isinstance(change, OpenSlot):
            assert change.slot not in self.slots, f"slot {change.slot} is used twice"
            self.slots[change.slot] = slot_with(
                change.tablet, change.number, change.generation, change.term, change.vote, [], floor=change.floor
            )
            return
        found = self.slots.get(change.slot)
        if found is None or found.generation != change.generation:
            raise SlotError(change.slot, f"generation {change.generation} does not live")
        if isinstance(change, Drop):
            del self.slots[change.slot]
        elif isinstance(change, SlotItems):
            state = change.hard_state or found.hard_state
            entries = [LogItem(e.term, e.index, e.kind, e.data) for e in change.entries]
            self.slots[change.slot] = slot_with(
                found.tablet, found.number, found.generation, state.term, state.vote, [*found.entries, *entries],
                floor=found.floor,
            )  # fmt: skip
        else:
            raise AssertionError(f"not modelled: {change}")


def slot_with(
    tablet: str,
    number: int,
    generation: int,
    term: int,
    vote: int,
    entries: list[LogItem],
    damage: str | None = None,
    floor: Position = BEGINNING,
) -> RecoveredSlot:
    last = Position(entries[-1].index, entries[-1].term) if entries else floor
    hard_state = HardStateItem(term, vote)
    return RecoveredSlot(tablet, number, generation, hard_state, floor, last, damage, lambda: list(entries))


class Server:
    """A disk with its slots, over any number of starts."""

    def __init__(self, seed: int) -> None:
        self.disk = SimDisk("data", SeededRandom(seed), lambda: 0)
        self.slots = self.open_slots()
        self.files = TabletFiles(self.disk, self.slots)
        self.files.prepare()

    def open_slots(self) -> SlotStore | StartingSlots:
        """Return the shared log of a new server."""
        return SlotStore()

    def lives(self) -> None:
        """Create member 2 of the tablet, and let it write entries and rows."""
        block = ready()
        self.files.carry_out(creation(block, meta()))
        assert block.slot is not None
        entries = [LogItem(1 + index // 10, index, 0, b"entry %d" % index) for index in range(1, 31)]
        self.slots.write([SlotItems(block.slot, block.generation, HardStateItem(5, 2), entries)])
        self.write_rows(block.generation)

    def write_rows(self, generation: int) -> None:
        """Write rows and their steady point, which is written under a temporary name first."""
        self.write(rows_path(TABLET, generation, DATABASE), ROWS)
        point = rows_path(TABLET, generation, STEADY)
        folder, _, name = point.rpartition("/")
        temporary = f"{folder}/{TEMPORARY}{name}"
        self.write(temporary, STEADY_POINT)
        self.disk.rename(temporary, point)
        self.disk.sync_folder(folder)

    def write(self, path: str, content: bytes) -> None:
        file = self.disk.open(path, create=path not in self.disk.files)
        file.truncate(0)
        file.write_at(0, content)
        file.sync()
        self.disk.sync_folder(path.rpartition("/")[0])

    def start(self) -> list[Decision]:
        """Start a server on the present disk."""
        return TabletFiles(self.disk, self.slots).start(self.live(), self.judge, SERVER, 9000)

    def live(self) -> dict[int, RecoveredSlot]:
        """Return the live slots."""
        assert isinstance(self.slots, SlotStore)
        return dict(self.slots.slots)

    def judge(self, tablet: str, generation: int) -> RowsFound:
        """Judge rows: changed ones are damaged."""
        content = self.disk.files[rows_path(tablet, generation)].content
        return RowsFound(generation, "" if bytes(content) == ROWS else f"{len(content)} bytes of rows")

    def contents(self) -> dict[str, bytes]:
        """Return every file."""
        return {path: bytes(file.content) for path, file in self.disk.files.items()}

    def cut_power_after(self, steps: int) -> None:
        """Let the step after `steps` more raise PowerCut."""
        left = steps

        def step() -> None:
            nonlocal left
            if left == 0:
                raise PowerCut
            left -= 1

        self.disk.step = step
        if isinstance(self.slots, SlotStore):
            self.slots.step = step

    def process_is_gone(self) -> None:
        """Continue after the death of only the process: its writes exist, but a power cut may still lose them."""
        self.disk.step = lambda: None
        if isinstance(self.slots, SlotStore):
            self.slots.step = lambda: None

    def power_is_back(self) -> None:
        self.process_is_gone()
        self.disk.power_cut()


class LogServer(Server):
    """A server with the real shared log."""

    def open_slots(self) -> StartingSlots:
        self._log, found = open_shared_log(self.disk)
        self._live = found.slots
        return StartingSlots(self._log)

    def start(self) -> list[Decision]:
        self.slots = self.open_slots()
        self.files = TabletFiles(self.disk, self.slots)
        return self.files.start(self._live, self.judge, SERVER, 9000)

    def live(self) -> dict[int, RecoveredSlot]:
        found = recover(self.disk).slots
        assert not [slot.damage for slot in found.values() if slot.damage]
        return found


def cut_everywhere(
    prepare: Callable[[Server], None],
    work: Callable[[Server], None],
    *,
    seeds: int = 6,
    kind: type[Server] = Server,
    is_kill: bool = False,
) -> Iterator[tuple[Server, str, bool]]:
    """Yield the server after a power cut at each step of `work`, the place of the cut, and whether the work had ended.

    `is_kill`: the process is killed there, and the power stays on.
    """
    for seed in range(seeds):
        steps = 0
        while True:
            server = kind(seed * 1000 + steps)
            prepare(server)
            server.cut_power_after(steps)
            try:
                work(server)
                done = True
            except PowerCut:
                done = False
            if is_kill:
                server.process_is_gone()
            else:
                server.power_is_back()
            yield server, f"seed {seed}, cut after {steps} steps", done
            if done:
                break
            steps += 1
        assert steps > 3, "the work has no steps"
