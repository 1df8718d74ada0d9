"""Opening of a replica on a thread: its rows, and its group from the log."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from coord.env import Rng
from coord.errors import StorageError
from coord.storage.shared.items import Position, RecoveredSlot
from regions.messages.server import MemberEndpoint
from regionserver.tablets.disk.layout import rows_path
from regionserver.tablets.host.group import Group, ReplicaIdentity
from regionserver.tablets.host.members import endpoints_of
from regionserver.tablets.host.recovery import reopen
from regionserver.tablets.host.requests import InFlight
from regionserver.tablets.process.replica import TabletReplica
from regionserver.tablets.rows.errors import RowsError
from regionserver.tablets.rows.state import Identity
from regionserver.tablets.rows.tablet_rows import TabletRows

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class OpenedReplica(NamedTuple):
    """The open parts of a replica."""

    rows: TabletRows
    group: Group
    floor: int
    endpoints: tuple[MemberEndpoint, ...]


class ReplicaOpener:
    """Opens replicas of one data directory."""

    def __init__(self, directory: Path, rng: Rng, in_flight: InFlight) -> None:
        self._directory = directory
        self._rng = rng
        self._in_flight = in_flight
        #: Boot id of the machine.
        self.boot = _BOOT_ID.read_text().strip()

    def open(self, replica: TabletReplica, contents: Callable[[], RecoveredSlot | None]) -> OpenedReplica:
        """Open the rows of a READY replica, and make its group. `contents` returns the contents of its slot in the log.

        Raises:
            RowsFull: There is no room; the caller tries again later.
            RowsError: The rows cannot be used.
            StorageError: Log and rows do not fit each other, or the log cannot be read.
            OSError: The log cannot be read.
        """
        block, meta = replica.block, replica.meta
        assert meta is not None, f"{block.tablet} has no consensus metadata"
        slot = contents()
        if slot is None:
            raise StorageError(f"the shared log has no slot {block.slot} for tablet {block.tablet}")
        configuration = meta.members()
        try:
            endpoints = endpoints_of(configuration)
        except ValueError as error:
            raise StorageError(f"tablet {block.tablet}: {error}") from error
        path = os.fspath(self._directory / rows_path(block.tablet, block.generation))
        floor = slot.floor
        rows = TabletRows.open(path, Identity(block.tablet, block.generation), self.boot, (floor.index, floor.term))
        try:
            group = reopen(
                ReplicaIdentity(block.tablet, replica.slot, block.generation, block.number),
                slot,
                Position(*rows.applied),
                configuration,
                {one.number: one.uuid for one in endpoints},
                self._rng,
                config_id=(meta.config_term, meta.config_index),
                in_flight=self._in_flight,
            )
            endpoints = endpoints_of(group.core.configs.current)
        except BaseException:
            rows.abandon()
            raise
        return OpenedReplica(rows, group, floor.index, endpoints)


def close_rows(rows: TabletRows) -> str:
    """Close rows with a steady point. Return the reason of a failure, or ""."""
    try:
        rows.close()
    except RowsError as error:
        return str(error)
    return ""
