"""A node whose files are damaged, in a store whose other nodes have everything: the state comes from them.

What was durable and is not any more may be what made an entry committed, or a vote. So a repaired node is one that lost
its disk (`coord.server.membership.joining`): it counts for nothing until the leader has made it a learner and a voter
again. Its new memory is on the disk before anything is moved, so a crash in between changes nothing.

What is damaged is not removed but set aside, in the folder `damaged`: should other disks turn out to be worse, it may
be the best there is. While that folder exists nothing is repaired: a disk that damages its files again is to be
replaced, and nobody's files are lost to a second repair. (A repair that was broken off is ended.) Snapshots that can be
read stay.

A store of one node has nobody to take its state from, and nobody whom a lost vote could harm. There damage that the
newest whole snapshot covers is skipped (`coord.storage.covered`): nothing is missing, so the node starts at once.

Refused, with file and byte, is what the others cannot or may not mend: a store of one or two voters (without this node
there is no majority that could bring anything), a directory from which nobody can tell who the others are, files of
another format.
"""

from __future__ import annotations

from typing import Final

from twisted.logger import Logger

from coord.env import Disk, Rng
from coord.errors import CorruptRecord, StorageError
from coord.raft.membership import Configuration, decode_configuration
from coord.raft.messages import CONFIG
from coord.server.membership.joining import MARK, VOTERS_MIN, forget
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
from coord.storage.snapshot import SnapshotMeta, Snapshots
from coord.storage.wal import SEGMENT_BYTES
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
    """As `recover`; where that finds damage which the other nodes can mend, what is damaged is set aside.

    In a store of one node, damage that the newest whole snapshot covers is set aside as well.

    Raises CorruptRecord, StorageError, UnsupportedLevel, OSError: the node must not start.
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
            "the log is set aside in {folder}: {error}. This node takes its state from the others and votes once it has"
            " caught up. Check its disk",
            folder=disk.where(ASIDE),
            error=str(error),
        )
        _set_aside(disk, rng)
        return attempt()


def has_forgotten(disk: Disk) -> bool:
    """Return True if this node came back without its memory and does not count yet: its older promises are void."""
    return MARK in disk.names("")


class IrreparableError(StorageError):
    """Damage (`error`) that the other nodes cannot mend, and why."""

    def __init__(self, error: StorageError, why: str) -> None:
        super().__init__(f"{error}. {why}")
        self.error = error


def covered_alone(disk: Disk, node_id: int, position: SnapshotMeta) -> Covered:
    """Read the log of a node that is its whole store past damage that its newest whole snapshot covers.

    Raises NotCovered when the node is not alone, or when the snapshot does not cover the damage; StorageError, OSError
    as `coord.storage.covered.read_covered`.
    """
    if not position.index or MARK in disk.names("") or not _is_alone(node_id, position.config):
        raise NotCovered(f"{disk.where(SNAPSHOT_FOLDER)}: no snapshot of a store that consists of node {node_id}")
    covered = read_covered(disk, WAL_FOLDER, position.index, position.term, node_id)
    for entry in covered.log.entries:
        if entry.index > position.index and entry.kind == CONFIG and not _is_alone(node_id, entry.data):
            raise NotCovered(f"{disk.where(WAL_FOLDER)}: entry {entry.index} adds a member to the store")
    return covered


def _is_alone(node_id: int, config: bytes) -> bool:
    """Return True if a configuration has this member and no other."""
    try:
        found = decode_configuration(config)
    except ValueError:
        return False
    return found.voters == found.members() == [node_id]


def _skip_covered(disk: Disk, node_id: int, supported: int) -> bool:
    """Set damage aside that costs a store of one node nothing. Return False if this is no such case."""
    _, position = newest_state(Snapshots(disk, SNAPSHOT_FOLDER), supported)
    try:
        covered = covered_alone(disk, node_id, position)
    except (NotCovered, CorruptRecord) as why:
        log.info("the damaged log cannot be read past its damage: {why}", why=str(why))
        return False
    for damage in covered.damage:
        log.error(
            "skipped damage in the log: {damage}. Nothing is missing: the snapshot at {snapshot} covers it, and the log"
            " behind is whole to entry {last}. The damaged segments are set aside in {folder}. Check the disk",
            damage=str(damage),
            snapshot=position.index,
            last=covered.log.last_index(),
            folder=disk.where(ASIDE),
        )
    replace_damaged(disk, WAL_FOLDER, ASIDE, covered)
    return True


def _objection(disk: Disk, node_id: int, began: list[int] | Configuration) -> str:
    """Why this node may not throw away its log, "" if it may."""
    names = disk.names("")
    if ASIDE in names and MARK not in names and disk.names(ASIDE):
        return (
            f"It was repaired before, {disk.where(ASIDE)} is still there. Replace the disk; or, if you trust it, remove"
            " that folder and start again"
        )
    voters = _voters(disk, began)
    if node_id not in voters:
        # An observer, or a node that never got as far as being a voter: nobody counts on what it has.
        return ""
    if len(voters) == 1:
        return "No other node has this state: restore a backup (rk coord restore)"
    if len(voters) < VOTERS_MIN:
        return (
            "Of two nodes the other one is no majority and cannot bring the state: keep a copy of this directory, then"
            " make a new store from a backup of the other node"
        )
    return ""


def _voters(disk: Disk, began: list[int] | Configuration) -> list[int]:
    """Who votes, as far as the files that can be read tell."""
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
    """Make this node one that lost its disk, then move the log away. Damaged snapshots go when they are found."""
    forget(disk, rng)
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
