"""The files of a server's tablets: reading them, and carrying out the effects of steps.py.

The only module of the package that touches a disk, and only through `coord.env.Disk`. It belongs to one thread at a
time.

A replaced file is written under a temporary name, synced, and renamed. Files of many tablets are replaced together:
every content is synced, then all names by one sync of the folder.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Final, NamedTuple, Protocol

from twisted.logger import Logger

from coord import kill_points
from coord.env import Disk, DiskFile
from coord.errors import ConfigError, StorageError
from coord.storage.shared.items import Change, Drop, OpenSlot, Position, RecoveredSlot, SlotItems
from regionserver.session.instance import MOVED, Instance
from regionserver.tablets.disk.consensus_meta import ConsensusMeta, decode_meta, encode_meta
from regionserver.tablets.disk.exported_log import encode_log
from regionserver.tablets.disk.instance import DirectorySeen, check_directory, check_tablets
from regionserver.tablets.disk.layout import (
    BLOCKS,
    DATABASE,
    FOLDERS,
    LOG,
    METAS,
    QUARANTINE,
    ROWS,
    SAVED_BLOCK,
    SAVED_LOG,
    STEADY,
    TEMPORARY,
    block_path,
    free_name,
    is_tablet,
    meta_path,
    parse_quarantine_name,
    parse_rows_name,
    parse_unfinished,
    quarantine_path,
)
from regionserver.tablets.disk.sealed import FILE_BYTES_MAX, DamagedFile
from regionserver.tablets.disk.startup import Decision, Found, RowsFound, SlotFound, Unreadable, decide
from regionserver.tablets.disk.steps import (
    BeginSlot,
    CopyFile,
    DropSlot,
    Effect,
    ExportSlot,
    FillSlot,
    MakeFolder,
    MoveFile,
    RemoveFile,
    SlotName,
    WriteBlock,
    WriteMeta,
    unclaimed_slot,
)
from regionserver.tablets.disk.superblock import Superblock, decode_block, encode_block
from regionserver.tablets.disk.syncing import UNSYNCED_MAX, SyncFiles, sync_in_turn

log = Logger()

#: Errors that mean a bad medium. Other errors (no descriptors, no permission) prove nothing about the content.
_MEDIUM_ERRORS: Final = (errno.EIO, errno.EBADMSG, errno.EUCLEAN)


class SlotLog(Protocol):
    """The shared log, as used by the steps."""

    def write(self, changes: Sequence[Change]) -> None:
        """Make the changes durable. Raise StorageError, OSError."""
        ...

    def contents(self, slot: int) -> RecoveredSlot | None:
        """Return the contents of a slot, None for a slot that is not open."""
        ...


#: Returns the state of a tablet's rows: (tablet, generation).
RowsJudge = Callable[[str, int], RowsFound]


class Survey(NamedTuple):
    """The result of a start's survey: tablets, and slots without a known tablet."""

    tablets: list[Found]
    unclaimed: list[SlotName]


class TabletFiles:
    """The files of the tablets in one data directory."""

    def __init__(self, disk: Disk, slots: SlotLog, sync_files: SyncFiles = sync_in_turn) -> None:
        """`sync_files` makes files durable that were written together."""
        self._disk = disk
        self._slots = slots
        self._sync_files = sync_files

    # --- what is there ---

    def prepare(self) -> None:
        """Make the folders that are missing."""
        for folder in FOLDERS:
            self._disk.make_folder(folder)

    def admit(self, instance: Instance) -> None:
        """Raise ConfigError unless the directory matches its identity. Call this before `prepare`."""
        inode, noted = instance.inode(), instance.noted_inode
        self.check(str(instance.directory), inode, noted, is_accepted=instance.is_accepted_here())

    def check(self, path: str, inode: int, noted_inode: int | None, *, is_accepted: bool) -> None:
        """Raise ConfigError unless the directory matches an identity with this inode of the lock file."""
        missing = [folder for folder in (BLOCKS, METAS, LOG, ROWS) if self._is_missing(folder)]
        segments = len([name for name in self._names(LOG) if name.endswith(".log")])
        blocks = len(self._tablets_in(BLOCKS))
        check_directory(DirectorySeen(path, inode, noted_inode, is_accepted, missing, blocks, segments), MOVED)

    def survey(self, slots: dict[int, RecoveredSlot], judge: RowsJudge) -> Survey:
        """Return the files found of each tablet. Change nothing.

        Args:
            slots: The slots of the shared log.
            judge: Returns whether rows can be used.

        Raises:
            NewerFormat: A newer build has written a file. Every file is read before this returns.
            ConfigError: A file cannot be read, for a reason unrelated to its content.
        """
        blocks = {name: self.read_block(name) for name in self._tablets_in(BLOCKS)}
        metas = {name: self.read_meta(name) for name in self._tablets_in(METAS)}
        rows: dict[str, list[RowsFound]] = {}
        parsed = [one for one in map(parse_rows_name, self._names(ROWS)) if one is not None]
        # A steady point without rows shows that the rows are lost.
        for tablet, generation in sorted({one[:2] for one in parsed if one.suffix in (DATABASE, STEADY)}):
            rows.setdefault(tablet, []).append(judge(tablet, generation))
        unfinished: dict[str, list[int]] = {}
        for one in map(parse_unfinished, self._names(ROWS)):
            if one is not None:
                unfinished.setdefault(one.tablet, []).append(one.generation)
        quarantined: dict[str, list[int]] = {}
        for name in self._names(QUARANTINE):
            former = parse_quarantine_name(name)
            if former is not None:
                quarantined.setdefault(former[0], []).append(former[1])
        owned, unclaimed = _claim(slots, blocks)
        return Survey(
            [
                Found(
                    tablet,
                    blocks.get(tablet),
                    metas.get(tablet),
                    owned.get(tablet, []),
                    sorted(rows.get(tablet, [])),
                    sorted(quarantined.get(tablet, [])),
                    sorted(unfinished.get(tablet, [])),
                )
                for tablet in sorted(blocks.keys() | metas.keys() | rows.keys() | owned.keys() | unfinished.keys())
            ],
            unclaimed,
        )

    def start(self, slots: dict[int, RecoveredSlot], judge: RowsJudge, server: str, at_ms: int) -> list[Decision]:
        """Bring every tablet into a legal state, and return the decisions.

        Args:
            slots: The slots of the shared log.
            judge: Returns whether rows can be used.
            server: This server's uuid.
            at_ms: Now.

        Raises:
            NewerFormat: A newer build has written a file; nothing was changed.
            ConfigError: A file cannot be read, or the files belong to another server; nothing was changed.
            StorageError: The shared log cannot be written.
            OSError: A file cannot be written.
        """
        found = self.survey(slots, judge)
        check_tablets(self._disk.where("").rstrip("/"), server, found.tablets)
        self._remove_temporaries()
        # The former process may have died after a rename, before it synced the folder. Sync it now: steps that follow
        # from the read files must not be more durable than these files.
        for folder in FOLDERS:
            self._disk.sync_folder(folder)
        decisions = [decide(one, server, at_ms) for one in found.tablets]
        for decision in decisions:
            if decision.story:
                log.error(
                    "tablet {tablet} is {run}: {story}", tablet=decision.tablet, run=decision.run, story=decision.story
                )
            self.carry_out(decision.effects)
        for slot in found.unclaimed:
            log.error("slot {slot} of the shared log is damaged and no tablet claims it: set aside", slot=slot.slot)
            self.carry_out(unclaimed_slot(slot))
        return decisions

    def former_generations(self) -> dict[str, int]:
        """Return the highest generation of each tablet in the quarantine."""
        found: dict[str, int] = {}
        for former in map(parse_quarantine_name, self._names(QUARANTINE)):
            if former is not None:
                tablet, generation = former
                found[tablet] = max(found.get(tablet, 0), generation)
        return found

    def had_replica(self, tablet: str) -> bool:
        """Return True if the quarantine has the superblock or the log of a former replica of the tablet.

        A creation that was cut short leaves neither.
        """
        generations = range(1, self.former_generations().get(tablet, 0) + 1)
        folders = (self._names(quarantine_path(tablet, one)) for one in generations)
        return any(SAVED_BLOCK in names or SAVED_LOG in names for names in folders)

    def has_block(self, tablet: str) -> bool:
        """Return True if the tablet has a superblock."""
        return self._exists(block_path(tablet))

    def read_block(self, tablet: str) -> Superblock | Unreadable:
        """Return the superblock of a tablet that has one. Raise NewerFormat, ConfigError."""
        path = block_path(tablet)
        try:
            return decode_block(self._read(path), tablet, self._disk.where(path))
        except DamagedFile as error:
            return Unreadable(error.why)

    def read_meta(self, tablet: str) -> ConsensusMeta | Unreadable:
        """Return the consensus metadata of a tablet that has them. Raise NewerFormat, ConfigError."""
        path = meta_path(tablet)
        try:
            return decode_meta(self._read(path), tablet, self._disk.where(path))
        except DamagedFile as error:
            return Unreadable(error.why)

    def _remove_temporaries(self) -> None:
        """Remove the unfinished files of an earlier process. In ROWS these are steady points."""
        former = [name for name in self._names(QUARANTINE) if not name.startswith(TEMPORARY)]
        for folder in (BLOCKS, METAS, ROWS, *(f"{QUARANTINE}/{name}" for name in former)):
            for name in self._names(folder):
                if name.startswith(TEMPORARY):
                    self._disk.remove(f"{folder}/{name}")

    def _tablets_in(self, folder: str) -> list[str]:
        return [name for name in self._names(folder) if is_tablet(name)]

    def _is_missing(self, folder: str) -> bool:
        try:
            self._disk.names(folder)
        except (FileNotFoundError, NotADirectoryError):
            return True
        return False

    def _names(self, folder: str) -> list[str]:
        try:
            return self._disk.names(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _read(self, path: str) -> bytes:
        """Return the content of a small file. Raise DamagedFile, ConfigError."""
        where = self._disk.where(path)
        try:
            file = self._disk.open(path)
            try:
                return file.read_at(0, FILE_BYTES_MAX + 1)
            finally:
                file.close()
        except OSError as error:
            if error.errno in _MEDIUM_ERRORS:
                raise DamagedFile(where, f"it cannot be read ({error.strerror})") from error
            # Treating this as damage would burn the number of an intact replica.
            raise ConfigError(f"{where} cannot be read: {error.strerror}; nothing was changed") from error

    # --- effects ---

    def carry_out(self, effects: Iterable[Effect]) -> None:
        """Carry effects out in order, each durable before the next. Raise StorageError, OSError."""
        for effect in effects:
            self._carry_out_together([effect])
            if kill_points.is_wanted():
                kill_points.reached(kill_points.point_of(effect))

    def carry_out_together(self, plans: Sequence[Sequence[Effect]]) -> None:
        """Carry out the plans of several tablets in step: the first effect of all plans, then the second.

        Writes of one kind share their syncs. Raise StorageError, OSError: then every plan has been carried out up to
        some effect.
        """
        for step in zip_longest(*plans):
            effects = [effect for effect in step if effect is not None]
            self._carry_out_together(effects)
            if kill_points.is_wanted():
                for point in dict.fromkeys(map(kill_points.point_of, effects)):
                    kill_points.reached(point)

    def _carry_out_together(self, effects: Sequence[Effect]) -> None:
        """Carry out effects of different tablets, in any order."""
        contents: dict[str, dict[str, bytes]] = {}
        changes: list[Change] = []
        for effect in effects:
            match effect:
                case WriteBlock(block):
                    contents.setdefault(BLOCKS, {})[block.tablet] = encode_block(block)
                case WriteMeta(meta):
                    contents.setdefault(METAS, {})[meta.tablet] = encode_meta(meta)
                case BeginSlot(slot, generation, tablet, number, term, vote, floor_index, floor_term):
                    floor = Position(floor_index, floor_term)
                    changes.append(OpenSlot(slot, generation, tablet, number, term, vote, floor))
                case FillSlot(slot, generation, entries):
                    changes.append(SlotItems(slot, generation, None, entries))
                case DropSlot(slot, generation):
                    if self._slots.contents(slot) is not None:
                        changes.append(Drop(slot, generation))
                case MakeFolder(path):
                    self._disk.make_folder(path)
                case CopyFile(source, target):
                    self._copy(source, target)
                case MoveFile(source, target):
                    self._move(source, target)
                case RemoveFile(path):
                    self._remove(path)
                case ExportSlot(slot, target):
                    self._export(slot, target)
        for folder, files in contents.items():
            self._replace(folder, files)
        if changes:
            self._slots.write(changes)

    def _replace(self, folder: str, files: dict[str, bytes]) -> None:
        """Replace files of one folder, each atomically. No name points to content that is not durable."""
        names = list(files)
        for at in range(0, len(names), UNSYNCED_MAX):
            self._write_temporaries(folder, {name: files[name] for name in names[at : at + UNSYNCED_MAX]})
        for name in names:
            self._disk.rename(f"{folder}/{TEMPORARY}{name}", f"{folder}/{name}")
        self._disk.sync_folder(folder)

    def _write_temporaries(self, folder: str, files: dict[str, bytes]) -> None:
        """Write files under their temporary names, and sync them together."""
        written: list[DiskFile] = []
        try:
            for name, content in files.items():
                written.append(self._new_temporary(folder, name))
                written[-1].write_at(0, content)
            self._sync_files(written)
        finally:
            for file in written:
                file.close()

    def _write_temporary(self, folder: str, name: str, parts: Iterable[bytes]) -> None:
        """Write and sync a file under its temporary name."""
        file = self._new_temporary(folder, name)
        try:
            offset = 0
            for part in parts:
                file.write_at(offset, part)
                offset += len(part)
            file.sync()
        finally:
            file.close()

    def _new_temporary(self, folder: str, name: str) -> DiskFile:
        path = f"{folder}/{TEMPORARY}{name}"
        try:
            return self._disk.open(path, create=True)
        except FileExistsError:
            self._disk.remove(path)
            return self._disk.open(path, create=True)

    def _copy(self, source: str, target: str) -> None:
        if not self._exists(source):
            return
        try:
            file = self._disk.open(source)
            try:
                content = file.read_at(0, file.size())
            finally:
                file.close()
        except OSError as error:
            # An unreadable file cannot be kept.
            log.warn("{path} cannot be read and is not copied: {error}", path=self._disk.where(source), error=error)
            return
        folder, _, name = target.rpartition("/")
        self._write_temporary(folder, name, [content])
        self._disk.rename(f"{folder}/{TEMPORARY}{name}", target)
        self._disk.sync_folder(folder)

    def _move(self, source: str, target: str) -> None:
        if not self._exists(source):
            return
        free = free_name(target, self._exists)
        self._disk.rename(source, free)
        for path in (free, source):
            self._disk.sync_folder(path.rpartition("/")[0])

    def _remove(self, path: str) -> None:
        if self._exists(path):
            self._disk.remove(path)
            self._disk.sync_folder(path.rpartition("/")[0])

    def _export(self, slot: int, target: str) -> None:
        contents = self._slots.contents(slot)
        if contents is None:
            return
        try:
            entries = contents.entries
        except (StorageError, OSError) as error:
            # A slot with damage must not stop the server. Its segments stay as long as another slot needs them.
            log.error("slot {slot} cannot be exported, its entries are lost: {error}", slot=slot, error=error)
            entries = []
        folder, _, name = target.rpartition("/")
        parts = encode_log(contents.hard_state, contents.floor, contents.last, entries)
        self._write_temporary(folder, name, parts)
        self._disk.rename(f"{folder}/{TEMPORARY}{name}", target)
        self._disk.sync_folder(folder)

    def _exists(self, path: str) -> bool:
        """Return True if the file exists. Listing its folder would take time in proportion to the number of tablets."""
        try:
            self._disk.open(path).close()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            # The file exists, but its medium cannot read it. This must not stop the start of the other tablets.
            if error.errno not in _MEDIUM_ERRORS:
                raise
        return True


def _claim(
    slots: dict[int, RecoveredSlot], blocks: dict[str, Superblock | Unreadable]
) -> tuple[dict[str, list[SlotFound]], list[SlotName]]:
    """Return the slots of each tablet, and the slots without a known tablet."""
    named = {block.slot: tablet for tablet, block in blocks.items() if isinstance(block, Superblock)}
    owned: dict[str, list[SlotFound]] = {}
    unclaimed = []
    for number, slot in sorted(slots.items()):
        found = SlotFound(
            number,
            slot.tablet,
            slot.number,
            slot.generation,
            slot.hard_state.term,
            slot.hard_state.vote,
            slot.floor.index,
            slot.last.term,
            slot.last.index,
            slot.damage,
        )
        tablet = slot.tablet or named.get(number, "")
        if is_tablet(tablet):
            owned.setdefault(tablet, []).append(found)
        else:
            unclaimed.append(found.name)
    return owned, unclaimed
