"""The memory of a node: whether its disk is the one on which this node id made its promises.

A node with an empty directory cannot know whether it is new or has lost its disk, but its peers can. If a peer has a
log, the node draws a memory at random (`coord.raft.membership`) and makes it durable before it answers any request.
From then on its votes and acknowledgments do not count, until the leader has removed the voter of that id and has made
the node with this memory a voter; both changes are committed without it. A node with damaged files does the same
(`coord.server.recovery.repair`).

Two files record this. MEMORY_FILE has the number and stays. JOINING_FILE exists until a committed configuration has
this memory; while it exists, older builds take no part in elections.

In a new store no node has a log, and all have the first memory. A node that starts after its peers have elected a
leader is handled like a node that lost its disk; until its votes count, the store does not survive the loss of another
node. So the nodes of a new store wait a little for each other (`Joining.awaits`). A node that has met all others
without a log counts from the beginning, even if an election is faster than its second link to a peer.

Two cases are not covered: a node that lost its disk and meets only nodes that never had a log, and a directory restored
from an old copy.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from twisted.logger import Logger

from coord.env import Disk, Rng, read_file, replace_file
from coord.errors import StorageError
from coord.raft.membership import FIRST_MEMORY, MEMORY_MAX, Configuration

log = Logger()

JOINING_FILE: Final = "joining"
MEMORY_FILE: Final = "memory"
#: Time for which a node of a new store waits for voters that it has not met, before it becomes a candidate without
#: them.
FIRST_ELECTION_WAIT_MS: Final = 2000
#: With fewer voters the others are not a majority that could make this node a voter again.
VOTERS_MIN: Final = 3


def renew_memory(disk: Disk, rng: Rng) -> int:
    """Mark this directory as one that lost its promises, and return its new memory. Raise OSError."""
    memory = FIRST_MEMORY + 1 + rng.below(MEMORY_MAX - FIRST_MEMORY)
    assert FIRST_MEMORY < memory <= MEMORY_MAX, f"memory {memory:#x}"
    replace_file(disk, "", MEMORY_FILE, f"{memory:016x}\n".encode())
    if JOINING_FILE not in disk.names(""):
        replace_file(disk, "", JOINING_FILE, b"")
    return memory


def read_memory(disk: Disk) -> int:
    """Return the memory of this directory. Raise StorageError, OSError."""
    if MEMORY_FILE not in disk.names(""):
        return FIRST_MEMORY
    text = read_file(disk, MEMORY_FILE)
    try:
        memory = int(text, 16)
    except ValueError:
        memory = 0
    if not FIRST_MEMORY < memory <= MEMORY_MAX:
        raise StorageError(
            f"{disk.where(MEMORY_FILE)} is damaged: it must have 16 hexadecimal digits and has {text[:32]!r}. Remove"
            f" this file alone and start the node: of {VOTERS_MIN} voters or more the leader makes it a voter again"
            " with a new memory. With fewer voters make a new store: rk coord backup DIR FILE, then rk coord restore"
            " FILE"
        )
    return memory


class Joining:
    """This node's memory, and whether the node waits to count again."""

    def __init__(self, disk: Disk, rng: Rng) -> None:
        """Read both files. Raise StorageError, OSError."""
        self._disk = disk
        self._rng = rng
        self.is_joining = JOINING_FILE in disk.names("")
        self.memory = read_memory(disk)
        #: Peers that have sent a hello to this process.
        self._met: set[int] = set()
        #: Those of the met voters that had no log at the first meeting.
        self._met_new: set[int] = set()
        if self.is_joining and self.memory == FIRST_MEMORY:
            # An older build found this directory empty.
            self.memory = renew_memory(disk, rng)
        assert not self.is_joining or self.memory != FIRST_MEMORY, "a joining node has the first memory"

    def peer_introduced(self, peer: int, others: Collection[int], *, peer_has_log: bool, has_log: bool) -> None:
        """Handle the hello of `peer`, which announces whether it has a log. Raise OSError if the disk fails.

        `others`: the other voters. If all of them had no log when this node met them, they began the store together.
        Then this node has made no earlier promises, even if a peer has a log at its second hello.
        """
        self._met.add(peer)
        if not peer_has_log:
            self._met_new.add(peer)
        is_new_store = bool(others) and self._met_new.issuperset(others)
        has_forgotten = peer_has_log and not has_log and not is_new_store
        if has_forgotten and not self.is_joining and self.memory == FIRST_MEMORY:
            self.memory = renew_memory(self._disk, self._rng)
            self.is_joining = True
            log.warn(
                "this node has no data but its peers have: its votes and acknowledgments do not count until the leader"
                " has made it a learner; it becomes a voter again when it has caught up"
            )

    def awaits(self, node_id: int, config: Configuration, uptime_ms: int) -> bool:
        """Return True while this node, which has no data, gives other voters of a new store time to start."""
        return uptime_ms < FIRST_ELECTION_WAIT_MS and any(
            voter != node_id and voter not in self._met for voter in config.voters
        )

    def applied(self, node_id: int, config: Configuration) -> None:
        """Handle a committed and applied configuration. Raise OSError."""
        if self.is_joining and (config.counts(node_id, self.memory) or node_id in config.learners):
            self._disk.remove(JOINING_FILE)
            self._disk.sync_folder("")
            self.is_joining = False
            log.info("node {id} counts again: {config}", id=node_id, config=str(config))

    def advice(self, node_id: int, config: Configuration, leader: int) -> str:
        """Return why this node waits and what the operator can do, or "" if it does not wait."""
        if not self.is_joining or not config.is_voter(node_id):
            return ""
        others = [voter for voter in config.voters if voter != node_id]
        text = f"node {node_id} restarted without its memory; its votes do not count"
        if leader:
            return f"{text} until leader {leader} has made it a learner and a voter again"
        if not others:
            return (
                f"{text}, and no other node votes: restore its old data directory, or make a new store from a backup"
                " (rk coord restore)"
            )
        if len(config.voters) < VOTERS_MIN:
            return (
                f"{text}. Node {others[0]} alone is not a majority of two voters. Restore the old data directory of"
                f" node {node_id}; if it is lost, stop both nodes and make a new store from a backup"
                " (rk coord restore)"
            )
        return f"{text}. It waits for a leader elected by the other voters: start nodes {_ids(others)}"


def _ids(ids: list[int]) -> str:
    return ", ".join(map(str, ids))
