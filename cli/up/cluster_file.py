"""Keep cluster.json up to date while `rk up` runs, even if the disk rejects writes for a while.

The daemons do not read the file, so a failed write does not stop the cluster. `rk up` prints one line and retries the
write every RETRY_S.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cli.common.local import CLUSTER_FILE, LocalCluster, write_cluster

#: Pause before a failed write is retried. The usual reason is a full disk, and operators take minutes to free space.
RETRY_S: Final = 2.0


class ClusterFile:
    """The file of one running cluster."""

    def __init__(self, local: LocalCluster, data_dir: Path, say: Callable[[str], None]) -> None:
        """`say` prints a line for the operator."""
        self._local = local
        self._data_dir = data_dir
        self._say = say
        #: The reason why the last write failed; "" if it succeeded.
        self.trouble = ""
        #: The supervisor's thread writes the file when a daemon is added.
        self._lock = threading.Lock()

    def save(self) -> None:
        """Write the file. Raise OSError."""
        with self._lock:
            write_cluster(self._local, self._data_dir)

    def write(self) -> None:
        """Write the file, or print the reason why it cannot be written."""
        try:
            self.save()
        except OSError as error:
            trouble = error.strerror or str(error)
            if trouble != self.trouble:
                self._say(
                    f"cannot write {self._data_dir / CLUSTER_FILE}: {trouble}. The cluster keeps running; until"
                    " the write"
                    " succeeds, other commands may show old pids"
                )
            self.trouble = trouble
            return
        if self.trouble:
            self.trouble = ""
            self._say(f"{self._data_dir / CLUSTER_FILE} is written again")

    def wait_s(self) -> float | None:
        """Return the seconds until `write` must be called again, None if no retry is due."""
        return RETRY_S if self.trouble else None
