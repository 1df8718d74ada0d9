"""The crash tests find planted bugs: with each bug in the code, its test must fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
import pytest

from coord.errors import ConfigError
from regionserver.tablets.copying.merge import merged as _merged
from regionserver.tablets.disk import startup, steps, superblock
from regionserver.tablets.disk.layout import BLOCKS, DATABASE, STEADY, rows_path
from regionserver.tablets.disk.startup import BlockSeen, Unreadable
from regionserver.tablets.disk.steps import CopyFile, DropSlot, Effect, ExportSlot, MakeFolder, WriteBlock
from regionserver.tablets.disk.superblock import Superblock, copied, copying
from simulation.engine.disk import SimDisk, SimFile
from tests.unit.regionserver.tablets.disk import test_crashes
from tests.unit.regionserver.tablets.disk.crashes import ROWS, STEADY_POINT, Server
from tests.unit.regionserver.tablets.disk.examples import TABLET

_creation, _deletion, _set_aside = steps.creation, steps.deletion, steps.set_aside
_forgetting, _giving_up, _block_seen, _given_up = steps.forgetting, steps.giving_up, startup._block_seen, steps.given_up


def contents_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimFile, "sync", lambda _self: None)


def names_of_superblocks_are_not_synced(patch: pytest.MonkeyPatch) -> None:
    sync = SimDisk.sync_folder
    patch.setattr(SimDisk, "sync_folder", lambda self, path: sync(self, path) if path != BLOCKS else None)


def superblock_before_its_slot(patch: pytest.MonkeyPatch) -> None:
    def creation(*arguments: Any) -> list[Effect]:
        meta, slot, block = _creation(*arguments)
        return [meta, block, slot]

    patch.setattr(test_crashes, "creation", creation)


def superblock_before_its_metadata(patch: pytest.MonkeyPatch) -> None:
    def creation(*arguments: Any) -> list[Effect]:
        meta, slot, block = _creation(*arguments)
        return [slot, block, meta]

    patch.setattr(test_crashes, "creation", creation)


def slot_dropped_before_its_export(patch: pytest.MonkeyPatch) -> None:
    def set_aside(*arguments: Any) -> list[Effect]:
        found = _set_aside(*arguments)
        return sorted(found, key=lambda effect: isinstance(effect, ExportSlot))

    patch.setattr(steps, "set_aside", set_aside)


def moved_before_the_point_of_no_return(patch: pytest.MonkeyPatch) -> None:
    def deletion(*arguments: Any) -> list[Effect]:
        return sorted(_deletion(*arguments), key=lambda effect: isinstance(effect, WriteBlock))

    patch.setattr(test_crashes, "deletion", deletion)


def former_superblock_not_kept(patch: pytest.MonkeyPatch) -> None:
    def deletion(*arguments: Any) -> list[Effect]:
        return sorted(_deletion(*arguments), key=lambda effect: not isinstance(effect, WriteBlock | MakeFolder))

    patch.setattr(test_crashes, "deletion", deletion)


def memory_lost_with_a_copy(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(steps, "given_up", lambda *arguments: msgspec.structs.replace(_given_up(*arguments), memory=None))


def metadata_forgotten_before_the_superblock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(test_crashes, "forgetting", lambda block: _forgetting(block)[::-1])


def unreadable_superblock_taken_for_none(patch: pytest.MonkeyPatch) -> None:
    """An unreadable superblock counts as missing, and a slot without promises as unused."""
    patch.setattr(
        startup, "_block_seen", lambda block: BlockSeen.NONE if isinstance(block, Unreadable) else _block_seen(block)
    )
    patch.setattr(startup.SlotFound, "has_promised", property(lambda _self: False))


def damaged_file_not_kept(patch: pytest.MonkeyPatch) -> None:
    burning = steps.burning
    patch.setattr(
        startup,
        "burning",
        lambda *arguments: [effect for effect in burning(*arguments) if not isinstance(effect, CopyFile)],
    )


def slots_not_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        steps,
        "set_aside",
        lambda *arguments: [effect for effect in _set_aside(*arguments) if not isinstance(effect, DropSlot)],
    )


def deletion_not_finished_at_a_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(startup, "clearing", lambda *_arguments: [])


def read_before_rows_are_synced(patch: pytest.MonkeyPatch) -> None:
    """A copy is READY before its rows are durable."""

    def write_rows(server: Server, generation: int) -> None:
        for suffix, content in ((DATABASE, ROWS), (STEADY, STEADY_POINT)):
            path = rows_path(TABLET, generation, suffix)
            server.disk.open(path, create=path not in server.disk.files).write_at(0, content)
            server.disk.sync_folder("data")

    patch.setattr(test_crashes, "fetch_rows", write_rows)


def remote_vote_taken(patch: pytest.MonkeyPatch) -> None:
    """The merge takes over the source's vote (TC-14)."""
    patch.setattr(test_crashes, "merged", lambda *arguments: msgspec.structs.replace(_merged(*arguments), vote=3))


def copied_log_may_be_short(patch: pytest.MonkeyPatch) -> None:
    """A copy is READY before the log behind its rows is in the slot."""
    patch.setattr(test_crashes, "copy_ended", lambda _block: [])
    copy_slot = steps.copy_slot

    def ended_at_once(block: Superblock, slot: int, *more: Any) -> list[Effect]:
        return [*copy_slot(block, slot, *more), WriteBlock(copied(block, slot, 4000))]

    patch.setattr(test_crashes, "copy_slot", ended_at_once)


def ready_before_the_slot(patch: pytest.MonkeyPatch) -> None:
    """The superblock of a copy is READY before its slot begins."""
    copy_slot = steps.copy_slot

    def ended_before(block: Superblock, slot: int, *more: Any) -> list[Effect]:
        return [WriteBlock(copied(block, slot, 4000)), *copy_slot(block, slot, *more)]

    patch.setattr(test_crashes, "copy_slot", ended_before)
    patch.setattr(test_crashes, "copy_ended", lambda _block: [])


def copy_without_its_memory(patch: pytest.MonkeyPatch) -> None:
    """Step 1 of a copy drops the promises of the number."""
    real = copying
    patch.setattr(superblock, "copying", lambda *arguments: msgspec.structs.replace(real(*arguments), memory=None))


_BURN: Final = test_crashes.test_burning_can_be_cut_short_and_keeps_every_file
_COPY: Final = test_crashes.test_a_copy_is_complete_or_leaves_the_tombstone_with_its_memory
_PLANTED: Final[dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Callable[[], None]]]] = {
    bug.__name__: (bug, found_by)
    for bug, found_by in (
        (contents_are_not_synced, test_crashes.test_a_deletion_happens_or_not_and_loses_nothing),
        (names_of_superblocks_are_not_synced, test_crashes.test_a_deletion_happens_or_not_and_loses_nothing),
        (superblock_before_its_slot, test_crashes.test_a_creation_is_there_or_has_promised_nothing),
        (superblock_before_its_metadata, test_crashes.test_a_creation_is_there_or_has_promised_nothing),
        (slot_dropped_before_its_export, test_crashes.test_a_deletion_happens_or_not_and_loses_nothing),
        (moved_before_the_point_of_no_return, test_crashes.test_a_deletion_happens_or_not_and_loses_nothing),
        (former_superblock_not_kept, test_crashes.test_a_deletion_happens_or_not_and_loses_nothing),
        (memory_lost_with_a_copy, test_crashes.test_a_copy_that_was_cut_short_leaves_the_tombstone),
        (metadata_forgotten_before_the_superblock, test_crashes.test_a_tombstone_is_forgotten_or_kept_whole),
        (
            unreadable_superblock_taken_for_none,
            lambda: _BURN(test_crashes.flip(test_crashes.block_path(test_crashes.TABLET))),
        ),
        (damaged_file_not_kept, lambda: _BURN(test_crashes.flip(test_crashes.block_path(test_crashes.TABLET)))),
        (slots_not_dropped, test_crashes.test_a_deletion_happens_or_not_and_loses_nothing),
        (read_before_rows_are_synced, _COPY),
        (remote_vote_taken, _COPY),
        (copied_log_may_be_short, _COPY),
        (ready_before_the_slot, _COPY),
        (copy_without_its_memory, _COPY),
        (deletion_not_finished_at_a_start, test_crashes.test_a_deletion_happens_or_not_and_loses_nothing),
    )
}


@pytest.mark.parametrize("name", _PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, find = _PLANTED[name]
    plant(monkeypatch)
    # ConfigError: a server whose only tablet has no slot looks like one with another server's log.
    with pytest.raises((AssertionError, LookupError, ConfigError)):
        find()
