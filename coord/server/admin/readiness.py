"""Readiness for the /ready page: whether this node would commit a write now, and whether its data directory exists."""

from __future__ import annotations

import os
from typing import Final

from coord.env import Clock
from coord.errors import StorageError
from coord.server.node import Node
from coord.storage.wal import Wal

#: A node is not ready if a write has waited for this long: longer than an election or a stall of the disk.
STALL_MS: Final = 3000
#: Interval between checks of the log file.
CHECK_MS: Final = 500


class DirectoryGone(StorageError):  # noqa: N818 - a state of affairs
    """Raised if the data directory of this running node was removed or replaced."""


class Readiness:
    """Readiness of one node. Call `tick` with each tick of the node."""

    def __init__(self, node: Node, wal: Wal, clock: Clock) -> None:
        self._node = node
        self._wal = wal
        self._clock = clock
        self._checked_ms = clock.monotonic_ms()
        #: As the leader: the commit index, and the time at which it last moved or equaled the last index.
        self._commit = 0
        self._moved_ms = self._checked_ms
        #: Path of the log's newest file, and the inode that the path had at the first check.
        self._path = ""
        self._inode = 0

    def tick(self) -> None:
        """Check the log's progress and its file. Raise DirectoryGone."""
        now_ms = self._clock.monotonic_ms()
        log = self._node.core.log
        if log.commit != self._commit or log.commit >= log.last or self._node.core.leadership is None:
            self._commit = log.commit
            self._moved_ms = now_ms
        if now_ms - self._checked_ms >= CHECK_MS:
            self._checked_ms = now_ms
            self.check_log_file()

    def why_not(self) -> str:
        """Return why a write would not be committed now, or "" if it would."""
        node = self._node
        now_ms = self._clock.monotonic_ms()
        if not node.is_serving():
            return str(node.failure) if node.failure is not None else "no leader"
        if node.is_full and (node.core.leadership is not None or node.core.is_alone()):
            return node.trouble()
        waited_ms = now_ms - self._moved_ms
        proposals = node.proposals
        for waiting in (proposals.sent, proposals.waiting):
            if waiting:
                waited_ms = max(waited_ms, now_ms - waiting[0].since_ms)
        return f"a write has waited for {waited_ms} ms" if waited_ms >= STALL_MS else ""

    def check_log_file(self) -> None:
        """Check that the newest log file still exists at its path. Raise DirectoryGone.

        Without this check a node would acknowledge writes to a file that no process can open again.
        """
        path = self._wal.newest_path()
        try:
            inode = os.stat(path).st_ino
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DirectoryGone(
                f"{path} does not exist any more: the data directory of this running node was removed or moved."
                " The last writes of this node are lost with it. Restore the directory before the next start"
            ) from error
        except OSError:
            return  # The check itself failed; the log's next write will report the error.
        if path != self._path:
            self._path, self._inode = path, inode
        elif inode != self._inode:
            raise DirectoryGone(
                f"{path} is not the file that this running node writes to: its data directory was replaced. The last"
                " writes of this node are not in the new directory"
            )
