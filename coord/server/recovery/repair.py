"""Repair of a node with damaged files, in a store whose other nodes have the whole state.

The lost entries or votes may have been part of a majority. So a repaired node starts as a node that lost its disk
(`coord.server.membership.joining`): it does not count until the leader has made it a learner and then a voter again.
Its new memory is on the disk before any file is moved, so a crash in between is harmless.

Damaged files are moved to the folder `damaged`, not removed: if other disks turn out to be worse, they may be the best
copy. While that folder exists no second repair begins: a disk that damages its files again must be replaced. (An
interrupted repair is completed.) Readable snapshots stay in place.

A store of one node has no other copy, and a lost vote harms no other node. There, damage that the newest valid snapshot
covers is skipped (`coord.storage.covered`): no data is missing, so the node starts at once.

Repair is rejected, with file and byte, if the other nodes cannot send the state: in a store of one or two voters,
because the others are not a majority; without a file that names the other members; and for files of another format.
"""

from __future__ import annotations

from typing import Final

from twisted.logger import Logger

from coord.env import Disk, Rng
from coord.errors import CorruptRecord, StorageError
from coord.raft.membership import Configuration, decode_configuration
from coord.raft.messages import CONFIG
from coord.server.membership.joining import JOINING_FILE, VOTERS_MIN, renew_memory
from coord.server.recovery.startup import (
    KEEP_ENTRIES,
    SNAPSHOT_FOLDER,
    WAL_FOLDER,
    GapInLogError,
    Recovery,
    newest_state,
    recover,
)
from coord.storage.covered import Covered, NotCovered, read_covered, replace_damaged
from coord.storage.extent import expect_nothing
from coord.storage.segments import SEGMENT_BYTES
from coord.storage.snapshot import SnapshotMeta, Snapshots
from coord.tree.levels import SUPPORTED

log = Logger()

ASIDE: Final = "damaged"


def recover_or_repair(
    disk: Disk,
    node_id: int,
    began: list[int] | Configuration,
    rng: Rng,
    *,
    segment_bytes: int = SEGMENT_BYTES,
    keep_entries: int = KEEP_ENTRIES,
    supported: int = SUPPORTED,
) -> Recovery:
    """Recover; if the files are damaged and the other nodes have the state, set the damaged files aside.

    In a store of one node, set aside damage that the newest valid snapshot covers.

    Raise CorruptRecord, StorageError, UnsupportedLevel, OSError: the node must not start.
    """

    def attempt() -> Recovery:
        sizes = {"segment_bytes": segment_bytes, "keep_entries": keep_entries}
        return recover(disk, node_id, began, rng, supported=supported, **sizes)

    try:
        return attempt()
    except (CorruptRecord, GapInLogError) as error:
        if _voters(disk, began) == [node_id] and _skip_covered(disk, node_id, supported):
            return attempt()
        why = _objection(disk, node_id, began)
        if why:
            raise IrreparableError(error, why) from error
        log.error(
            "moved the damaged log to {folder}: {error}. This node receives its state from the others and votes again"
            " when it has caught up. Check its disk",
            folder=disk.where(ASIDE),
            error=str(error),
        )
        _set_aside(disk, rng)
        return attempt()


def has_forgotten(disk: Disk) -> bool:
    """Return True if this node lost its memory and does not count yet. Its earlier votes are unknown."""
    return JOINING_FILE in disk.names("")


class IrreparableError(StorageError):
    """Raised for damage (`error`) that the other nodes cannot repair; the message says why."""

    def __init__(self, error: StorageError, why: str) -> None:
        super().__init__(f"{error}. {why}")
        self.error = error


def covered_alone(disk: Disk, node_id: int, position: SnapshotMeta) -> Covered:
    """Read the log of a store's only node past damage that its newest valid snapshot covers.

    Raise NotCovered if the node is not alone or the snapshot does not cover the damage; StorageError and OSError as
    `coord.storage.covered.read_covered`.
    """
    if not position.index or JOINING_FILE in disk.names("") or not _is_alone(node_id, position.config):
        raise NotCovered(f"{disk.where(SNAPSHOT_FOLDER)}: no snapshot of a store whose only node is {node_id}")
    covered = read_covered(disk, WAL_FOLDER, position.index, position.term, node_id)
    for entry in covered.log.entries:
        if entry.index > position.index and entry.kind == CONFIG and not _is_alone(node_id, entry.data):
            raise NotCovered(f"{disk.where(WAL_FOLDER)}: entry {entry.index} adds a member to the store")
    return covered


def _is_alone(node_id: int, config: bytes) -> bool:
    """Return True if this node is the only member of a configuration."""
    try:
        found = decode_configuration(config)
    except ValueError:
        return False
    return found.voters == found.members() == [node_id]


def _skip_covered(disk: Disk, node_id: int, supported: int) -> bool:
    """In a store of one node, set aside damage that the newest snapshot covers; return False if it does not."""
    _, position = newest_state(Snapshots(disk, SNAPSHOT_FOLDER), supported)
    try:
        covered = covered_alone(disk, node_id, position)
    except (NotCovered, CorruptRecord) as why:
        log.info("cannot skip the damage in the log: {why}", why=str(why))
        return False
    for damage in covered.damage:
        log.error(
            "skipped damage in the log: {damage}. No data is missing: the snapshot at {snapshot} covers it, and the log"
            " after it is valid up to entry {last}. The damaged segments are in {folder}. Check the disk",
            damage=str(damage),
            snapshot=position.index,
            last=covered.log.last_index(),
            folder=disk.where(ASIDE),
        )
    replace_damaged(disk, WAL_FOLDER, ASIDE, covered)
    return True


def _objection(disk: Disk, node_id: int, began: list[int] | Configuration) -> str:
    """Return why this node may not discard its log, or "" if it may."""
    names = disk.names("")
    if ASIDE in names and JOINING_FILE not in names and disk.names(ASIDE):
        return (
            f"The node was repaired before: {disk.where(ASIDE)} still exists. Replace the disk, or, if you trust it,"
            " remove that folder and start again"
        )
    voters = _voters(disk, began)
    if node_id not in voters:
        # An observer, or a node that never became a voter: no majority depended on its log.
        return ""
    if len(voters) == 1:
        return "No other node has this state: restore a backup (rk coord restore)"
    if len(voters) < VOTERS_MIN:
        return (
            "With two voters the other one is no majority and cannot send the state: copy this directory, then"
            " make a new store from a backup of the other node"
        )
    return ""


def _voters(disk: Disk, began: list[int] | Configuration) -> list[int]:
    """Return the voters of the newest readable snapshot, else those of META."""
    snapshots = Snapshots(disk, SNAPSHOT_FOLDER)
    for name in snapshots.names():
        try:
            reader = snapshots.open_named(name)
        except StorageError:
            continue
        try:
            return decode_configuration(reader.meta.config).voters
        except ValueError:
            continue
        finally:
            reader.close()
    return began.voters if isinstance(began, Configuration) else began


def _set_aside(disk: Disk, rng: Rng) -> None:
    """Mark this node as one that lost its disk, then move the log away. Damaged snapshots are moved when found."""
    renew_memory(disk, rng)
    expect_nothing(disk)
    disk.make_folder(ASIDE)
    there = set(disk.names(ASIDE))
    for name in disk.names(WAL_FOLDER):
        free = name
        while free in there:
            free += ".again"
        disk.rename(f"{WAL_FOLDER}/{name}", f"{ASIDE}/{free}")
    for folder in (ASIDE, WAL_FOLDER):
        disk.sync_folder(folder)
