"""Many first replicas are made together: their files share syncs, and the power fails at every step."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from coord.env import DiskFile
from coord.env_os import OsDisk
from regionserver.tablets.disk import syncing
from regionserver.tablets.disk.files import TabletFiles
from regionserver.tablets.disk.life import RunState
from regionserver.tablets.disk.steps import Effect, creation
from regionserver.tablets.disk.superblock import Superblock
from regionserver.tablets.disk.syncing import UNSYNCED_MAX, SyncFiles, sync_in_turn, sync_together
from tests.unit.regionserver.tablets.disk.crashes import Server, SlotStore, cut_everywhere
from tests.unit.regionserver.tablets.disk.examples import meta, ready

TABLETS: Final = ("t1.r1", "t1.r2", "t1.r3")


def plans(tablets: Sequence[str]) -> list[list[Effect]]:
    return [creation(ready(tablet=tablet, slot=10 + at), meta(tablet=tablet)) for at, tablet in enumerate(tablets)]


def cuts_that_harm(sync_files: SyncFiles) -> int:
    """Return the number of power cuts that leave a tablet neither running nor absent."""

    def nothing(_server: Server) -> None:
        pass

    def create(server: Server) -> None:
        TabletFiles(server.disk, server.slots, sync_files).carry_out_together(plans(TABLETS))

    harmed = 0
    for server, _, done in cut_everywhere(nothing, create):
        runs = {decision.tablet: decision.run for decision in server.start()}
        found = [runs.get(tablet) for tablet in TABLETS]
        wanted = [RunState.ASLEEP] if done else [RunState.ASLEEP, None]
        harmed += any(run not in wanted for run in found)
    return harmed


def last_first(files: Sequence[DiskFile]) -> None:
    sync_in_turn(files[::-1])


@pytest.mark.parametrize("sync_files", [sync_in_turn, last_first])
def test_every_power_cut_leaves_each_tablet_made_or_not_there(sync_files: SyncFiles) -> None:
    assert cuts_that_harm(sync_files) == 0


def test_files_that_are_not_all_synced_are_found() -> None:
    """A planted bug: the last file of each group is not synced."""
    assert cuts_that_harm(lambda files: sync_in_turn(files[:-1])) > 0


class Counted:
    """A file that counts as synced only when all files of its group are."""

    def __init__(self, together: int) -> None:
        self.barrier = threading.Barrier(together)
        self.synced = 0
        self.error: OSError | None = None

    def sync(self) -> None:
        self.barrier.wait(30)
        self.synced += 1
        if self.error is not None:
            raise self.error


def test_syncs_are_under_way_together_and_all_end_before_an_error_is_raised(tmp_path: Path) -> None:
    file = Counted(syncing.SYNC_THREADS)
    files = [file] * (2 * syncing.SYNC_THREADS)
    sync_together(files)  # type: ignore[arg-type]
    assert file.synced == len(files)
    file.error = OSError(5, "Input/output error")
    with pytest.raises(OSError, match="Input/output error"):
        sync_together(files)  # type: ignore[arg-type]
    assert file.synced == 2 * len(files)


def test_more_tablets_than_files_may_be_open(tmp_path: Path) -> None:
    tablets = [f"t1.r{number}" for number in range(UNSYNCED_MAX + 1)]
    groups: list[int] = []

    def counted(files: Sequence[DiskFile]) -> None:
        groups.append(len(files))
        sync_together(files)

    disk = OsDisk(tmp_path)
    files = TabletFiles(disk, SlotStore(), counted)
    files.prepare()
    files.carry_out_together(plans(tablets))
    assert groups == [UNSYNCED_MAX, 1] * 2
    for tablet in tablets:
        assert isinstance(files.read_block(tablet), Superblock)
    assert sorted(disk.names("tablet-meta")) == sorted(disk.names("consensus-meta")) == sorted(tablets)
