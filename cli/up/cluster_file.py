"""cluster.json while `rk up` runs: kept true, also over a disk that takes no writes for a while.

The daemons do not read the file, so a cluster is as good without it as with it: what cannot be written now is said in
one line, tried again every RETRY_S, and never a reason to stop.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from cli.common.local import CLUSTER_FILE, LocalCluster, write_cluster

#: Pause before a write that failed is tried again. A full disk is the usual reason, and people take minutes to make
#: room.
RETRY_S: Final = 2.0


class ClusterFile:
    """The file of one running cluster."""

    def __init__(self, local: LocalCluster, data_dir: Path, say: Callable[[str], None]) -> None:
        """`say` prints a line for the operator."""
        self._local = local
        self._data_dir = data_dir
        self._say = say
        #: Why the last write failed, "" if it did not.
        self.trouble = ""

    def write(self) -> None:
        """Write the file, or say why it could not be written."""
        try:
            write_cluster(self._local, self._data_dir)
        except OSError as error:
            trouble = error.strerror or str(error)
            if trouble != self.trouble:
                self._say(
                    f"cannot write {self._data_dir / CLUSTER_FILE}: {trouble}. The cluster goes on; until there is room"
                    " other commands may show old pids"
                )
            self.trouble = trouble
            return
        if self.trouble:
            self.trouble = ""
            self._say(f"{self._data_dir / CLUSTER_FILE} is written again")

    def wait_s(self) -> float | None:
        """Return after how many seconds `write` is to be called again, None if there is no need."""
        return RETRY_S if self.trouble else None
