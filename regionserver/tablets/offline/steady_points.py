"""The state of rows according to their steady points, without opening the rows: at a start, and for tools."""

from __future__ import annotations

import os
from pathlib import Path

from coord.errors import ConfigError
from regionserver.tablets.disk.layout import rows_path
from regionserver.tablets.disk.startup import RowsFound
from regionserver.tablets.rows.environment import RowsDisk, read_point
from regionserver.tablets.rows.errors import RowsFailed, RowsFull, RowsTooNew
from regionserver.tablets.rows.state import Identity


class StartingRows:
    """Finds the state of rows from their steady points (`files.RowsJudge`), without opening a file of rows. A tablet
    opens its file when it wakes up; if the file is damaged, the tablet becomes FAILED."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir

    def __call__(self, tablet: str, generation: int) -> RowsFound:
        """Return the state of the rows of a generation.

        Raises:
            ConfigError: A newer build wrote the rows, or the steady point cannot be read at the moment.
        """
        path = os.fspath(self._data_dir / rows_path(tablet, generation))
        try:
            point = read_point(RowsDisk(), path, Identity(tablet, generation))
        except (RowsTooNew, RowsFull) as error:
            raise ConfigError(f"{error}; nothing was changed") from error
        except RowsFailed as error:
            return RowsFound(generation, str(error))
        # Rows without a steady point are created anew: the log has all their entries.
        return RowsFound(generation, applied_index=point.applied_index if point is not None else 0)
