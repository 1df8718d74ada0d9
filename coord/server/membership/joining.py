"""The memory of a node: whether its disk is the one that gave the promises of its id.

A node with an empty directory cannot know whether it is new or wiped; its peers can. If one of them has a log, the node
takes a memory of its own (`coord.raft.membership`), drawn at random and durable before it answers anybody. From then on
nothing that it says counts, no vote and no acknowledgement, until the leader has taken the voter of that id out and has
let this memory vote; both are committed without it. A node that finds its files damaged does the same
(`coord.server.recovery.repair`).

Two files say so. MEMORY holds the number and stays. MARK is there until a committed configuration has this memory:
older builds take no part in elections while it is there.

In a new store nobody has a log, and everybody has the first memory. A node that starts after its peers have elected a
leader looks like a wiped one and goes the way of a wiped one; until it counts, the store does not survive the loss of
another node. So the nodes of a new store wait a little for each other (`Joining.awaits`).

What is not covered: a wiped node that meets none but nodes which have never held anything (they cannot tell it that
there was something), and a directory that was put back from an old copy.
"""

from __future__ import annotations

from typing import Final

from twisted.logger import Logger

from coord.env import Disk, Rng, read_file, replace_file
from coord.errors import CorruptRecord
from coord.raft.membership import FIRST_MEMORY, MEMORY_MAX, Configuration

log = Logger()

MARK: Final = "joining"
MEMORY: Final = "memory"
#: For so long a node of a new store waits for voters that it has not met, before it stands for election without them.
FIRST_ELECTION_WAIT_MS: Final = 2000
#: With fewer voters the others are no majority that could let this node in again.
VOTERS_MIN: Final = 3


def forget(disk: Disk, rng: Rng) -> int:
    """Make this directory one that remembers nothing of its id, and return its new memory. Raises OSError."""
    memory = FIRST_MEMORY + 1 + rng.below(MEMORY_MAX - FIRST_MEMORY)
    replace_file(disk, "", MEMORY, f"{memory:016x}\n".encode())
    if MARK not in disk.names(""):
        replace_file(disk, "", MARK, b"")
    return memory


def read_memory(disk: Disk) -> int:
    """Return the memory of this directory. Raises CorruptRecord, OSError."""
    if MEMORY not in disk.names(""):
        return FIRST_MEMORY
    text = read_file(disk, MEMORY)
    try:
        memory = int(text, 16)
    except ValueError:
        memory = 0
    if not FIRST_MEMORY < memory <= MEMORY_MAX:
        raise CorruptRecord(disk.where(MEMORY), 0, "a number of 16 hexadecimal digits", text[:32])
    return memory


class Joining:
    """What this node remembers as, and whether it waits to count again."""

    def __init__(self, disk: Disk, rng: Rng) -> None:
        """Raises CorruptRecord, OSError."""
        self._disk = disk
        self._rng = rng
        self.is_joining = MARK in disk.names("")
        self.memory = read_memory(disk)
        #: Peers that have said hello to this process.
        self._met: set[int] = set()
        if self.is_joining and self.memory == FIRST_MEMORY:
            # An older build found this directory empty.
            self.memory = forget(disk, rng)

    def peer_introduced(self, peer: int, *, peer_has_log: bool, has_log: bool) -> None:
        """`peer` said whether it has a log. Raises OSError when the memory cannot be made durable."""
        self._met.add(peer)
        if peer_has_log and not has_log and not self.is_joining and self.memory == FIRST_MEMORY:
            self.memory = forget(self._disk, self._rng)
            self.is_joining = True
            log.warn(
                "this node is empty and its peers are not: it counts for nothing until the leader has made it a"
                " learner, and a voter again when it has caught up"
            )

    def awaits(self, node_id: int, config: Configuration, uptime_ms: int) -> bool:
        """Return True while this node, which holds nothing yet, gives other voters of a new store time to start."""
        return uptime_ms < FIRST_ELECTION_WAIT_MS and any(
            voter != node_id and voter not in self._met for voter in config.voters
        )

    def applied(self, node_id: int, config: Configuration) -> None:
        """`config` is committed and applied here. Raises OSError."""
        if self.is_joining and (config.counts(node_id, self.memory) or node_id in config.learners):
            self._disk.remove(MARK)
            self._disk.sync_folder("")
            self.is_joining = False
            log.info("node {id} counts again: {config}", id=node_id, config=str(config))

    def advice(self, node_id: int, config: Configuration, leader: int) -> str:
        """Return why this node waits and what the operator can do, "" if it does not wait."""
        if not self.is_joining or not config.is_voter(node_id):
            return ""
        others = [voter for voter in config.voters if voter != node_id]
        text = f"node {node_id} came back without its memory and counts for nothing"
        if leader:
            return f"{text} until leader {leader} has made it a learner and a voter again"
        if not others:
            return (
                f"{text}, and no other node votes: put its old data directory back, or make a new store from a backup"
                " (rk coord restore)"
            )
        if len(config.voters) < VOTERS_MIN:
            return (
                f"{text}. Node {others[0]} alone is no majority of two voters. Put the old data directory of node"
                f" {node_id} back; if it is lost for good, stop both nodes and make a new store from a backup"
                " (rk coord restore)"
            )
        return f"{text}. It waits for a leader that a majority elects without it: start nodes {_ids(others)}"


def _ids(ids: list[int]) -> str:
    return ", ".join(map(str, ids))
