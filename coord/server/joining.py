"""A node that lost its disk must not vote as if it had kept it.

Its former self has promised things: entries it acknowledged may be committed because of it, and with its help a
candidate without them could win. A node with an empty directory cannot know whether it is new or wiped; its peers can.
If one of them has a log, the node is *joining*: it takes no part in elections until it holds everything that was
committed when a leader first spoke to it. The mark is a file, so a restart in between changes nothing.

In a new cluster nobody has a log and everybody votes at once. What is not covered: a vote that the former self gave in
a term still undecided, and a majority that lost its disks together.
"""

from __future__ import annotations

from typing import Final

from twisted.logger import Logger

from coord.env import Disk, replace_file

log = Logger()

MARK: Final = "joining"


class Joining:
    """Whether this node is joining."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.is_joining = MARK in disk.names("")
        self._target = -1

    def peer_introduced(self, *, peer_has_log: bool, has_log: bool) -> None:
        """A peer said whether it has a log. Raises OSError when the mark cannot be made durable."""
        if peer_has_log and not has_log and not self.is_joining:
            replace_file(self._disk, "", MARK, b"")
            self.is_joining = True
            log.info("this node is empty and its peers are not: it votes once it has caught up")

    def leader_spoke(self, commit: int) -> None:
        """A leader sent an append with its commit index, behind which nothing can be that this node helped commit."""
        if self.is_joining and self._target < 0:
            self._target = commit

    def applied(self, index: int) -> None:
        """Everything up to `index` is here."""
        if self.is_joining and 0 <= self._target <= index:
            self._disk.remove(MARK)
            self._disk.sync_folder("")
            self.is_joining = False
            log.info("caught up at {index}: this node votes from now on", index=index)
