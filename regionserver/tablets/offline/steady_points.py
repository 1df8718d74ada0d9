"""What steady points say of rows, without opening them: at a start, and for the tools."""

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
