"""The shared log and the rows as files.py needs them at a start.

Once the server runs, the turn writes the log. Steps on files are then carried out by a thread of their own, with a
SlotLog that hands the changes to the turn and waits until they are durable.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from coord.errors import ConfigError
from coord.storage.shared.items import Change, RecoveredSlot
from coord.storage.shared.log import SharedLog
from regionserver.tablets.disk.layout import rows_path
from regionserver.tablets.disk.startup import RowsFound
from regionserver.tablets.rows.environment import RowsDisk, read_point
from regionserver.tablets.rows.errors import RowsFailed, RowsFull, RowsTooNew
from regionserver.tablets.rows.state import Identity


class StartingSlots:
    """The slots of a log that was just opened (`files.SlotLog`)."""

    def __init__(self, log: SharedLog) -> None:
        self._log = log

    def write(self, changes: Sequence[Change]) -> None:
        """See `SlotLog.write`."""
        self._log.write([self._log.batch(list(changes))])

    def contents(self, slot: int) -> RecoveredSlot | None:
        """See `SlotLog.contents`."""
        return self._log.contents(slot)


class StartingRows:
    """What steady points say of rows (`files.RowsJudge`). No file of rows is opened: a tablet opens its own when it
    wakes, and is FAILED then if the file is damaged."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir

    def __call__(self, tablet: str, generation: int) -> RowsFound:
        """Return what is known of the rows of a generation.

        Raises:
            ConfigError: A newer build has written them, or the steady point cannot be read now.
        """
        path = os.fspath(self._data_dir / rows_path(tablet, generation))
        try:
            point = read_point(RowsDisk(), path, Identity(tablet, generation))
        except (RowsTooNew, RowsFull) as error:
            raise ConfigError(f"{error}; nothing was changed") from error
        except RowsFailed as error:
            return RowsFound(generation, str(error))
        # Rows without a steady point are begun anew: they hold nothing that the log has not.
        return RowsFound(generation, applied_index=point.applied_index if point is not None else 0)
