"""The members of the group, and how they change: one voter at a time.

A CONFIG entry has a whole configuration, never a difference. A node uses the newest one in its log, committed or not
(Raft §6, Dissertation §4.1), and returns to the previous one when that entry is truncated. If two configurations differ
by one voter, any majority of one overlaps any majority of the other; therefore a change of two voters is rejected. The
argument also needs a committed old configuration. So a leader changes the configuration only after an entry of its own
term has been committed (Ongaro's correction of 2015), and only once at a time. The core checks both.

A voter is an id **and a memory**: the number of the disk with the promises made under that id. The members of a new
group have FIRST_MEMORY. A node that restarts under its id without its disk draws a new number. Its replies do not count
(`Configuration.counts`), because to Raft it is another server. The leader replaces it like a dead server: one change
removes the voter, and a second one makes the new memory a voter when it has caught up. So the loss of a disk is no
worse than the loss of a server that never replies again, and Raft's proof covers it.

Entry body (big-endian)::

    body     := version:u8 (1 or 2)  ids(voters)  ids(pre_voters)  ids(learners)  [memories]  attachment (to the end)
    ids      := count:u16  id:i64 * count
    memories := count:u16  (id:i64 memory:i64) * count     only version 2: voters whose memory is not the first

Version 1 is written while every voter has its first memory, so that builds without memories can read the log.
"""

from __future__ import annotations

from typing import Final

CONFIG_FORMAT: Final = 1
#: With the memories of voters.
CONFIG_FORMAT_MEMORIES: Final = 2

#: Memory of a member of a new group. Later ones are drawn at random between the two bounds.
FIRST_MEMORY: Final = 1
#: Memories are stored and sent as signed 64-bit integers.
MEMORY_MAX: Final = (1 << 62) - 1

#: Limit of members: a bound for decoders, far above any sensible quorum.
MAX_MEMBERS: Final = 1000
#: Ids are stored and sent as signed 64-bit integers.
MEMBER_ID_MAX: Final = (1 << 63) - 1


class Configuration:
    """The members of one group. Immutable.

    A voter counts in the quorum. A PRE_VOTER and a learner receive the log and do not count. A PRE_VOTER becomes a
    voter automatically when it has caught up (`CatchUp`). `attachment` belongs to the shell (addresses of the members):
    it is replicated and never read here. `memories`: voter -> memory, only for voters without FIRST_MEMORY.

    Invariant: ids ascend in each list and are positive; no id is in two lists; only voters have a memory.
    """

    def __init__(
        self,
        voters: list[int],
        pre_voters: list[int] | None = None,
        learners: list[int] | None = None,
        attachment: bytes = b"",
        memories: dict[int, int] | None = None,
    ) -> None:
        self.voters: list[int] = sorted(voters)
        self.pre_voters: list[int] = sorted(pre_voters or [])
        self.learners: list[int] = sorted(learners or [])
        self.attachment: bytes = attachment
        self.memories: dict[int, int] = {
            voter: memory for voter, memory in sorted((memories or {}).items()) if memory != FIRST_MEMORY
        }
        self.validate()

    def validate(self) -> None:
        """Raise AssertionError if the invariant does not hold."""
        members = self.members()
        for ids in (self.voters, self.pre_voters, self.learners):
            assert ids == sorted(ids), f"ids do not ascend: {self}"
        assert len(set(members)) == len(members), f"a member has two roles: {self}"
        assert not members or members[0] > 0, f"an id is not positive: {self}"
        for voter, memory in self.memories.items():
            assert voter in self.voters, f"{voter} has a memory and is not a voter: {self}"
            assert memory != FIRST_MEMORY, f"the first memory of {voter} is listed: {self}"

    def members(self) -> list[int]:
        """Return all ids, ascending."""
        return sorted(self.voters + self.pre_voters + self.learners)

    def is_voter(self, node: int) -> bool:
        """Return True if `node` counts in the quorum."""
        return node in self.voters

    def is_member(self, node: int) -> bool:
        """Return True if `node` receives the log."""
        return node in self.voters or node in self.pre_voters or node in self.learners

    def memory_of(self, node: int) -> int:
        """Return the memory with which `node` votes, if it is a voter."""
        return self.memories.get(node, FIRST_MEMORY)

    def counts(self, node: int, memory: int) -> bool:
        """Return True if replies of `node` with `memory` count in the quorum."""
        return node in self.voters and self.memory_of(node) == memory

    def with_voter(self, node: int, memory: int = FIRST_MEMORY) -> Configuration:
        """Return this configuration with `node` as a voter with that memory, whatever its role was before."""
        rest = self.without(node)
        memories = {**rest.memories, node: memory}
        return Configuration([*rest.voters, node], rest.pre_voters, rest.learners, self.attachment, memories)

    def with_pre_voter(self, node: int) -> Configuration:
        """Return this configuration with `node` as a PRE_VOTER."""
        rest = self.without(node)
        return Configuration(rest.voters, [*rest.pre_voters, node], rest.learners, self.attachment, rest.memories)

    def with_learner(self, node: int) -> Configuration:
        """Return this configuration with `node` as a learner."""
        rest = self.without(node)
        return Configuration(rest.voters, rest.pre_voters, [*rest.learners, node], self.attachment, rest.memories)

    def without(self, node: int) -> Configuration:
        """Return this configuration without `node`."""
        return Configuration(
            [i for i in self.voters if i != node],
            [i for i in self.pre_voters if i != node],
            [i for i in self.learners if i != node],
            self.attachment,
            {i: memory for i, memory in self.memories.items() if i != node},
        )

    def with_attachment(self, attachment: bytes) -> Configuration:
        """Return the same members with another attachment."""
        return Configuration(self.voters, self.pre_voters, self.learners, attachment, self.memories)

    def encode(self) -> bytes:
        """Return the body of a CONFIG entry."""
        parts = [(CONFIG_FORMAT_MEMORIES if self.memories else CONFIG_FORMAT).to_bytes(1, "big")]
        for ids in (self.voters, self.pre_voters, self.learners):
            parts.append(len(ids).to_bytes(2, "big"))
            parts.extend(node.to_bytes(8, "big") for node in ids)
        if self.memories:
            parts.append(len(self.memories).to_bytes(2, "big"))
            for voter, memory in self.memories.items():
                parts.append(voter.to_bytes(8, "big") + memory.to_bytes(8, "big"))
        parts.append(self.attachment)
        return b"".join(parts)

    def __eq__(self, other: object) -> bool:
        """Return True for equal roles, memories and attachment."""
        return isinstance(other, Configuration) and self.encode() == other.encode()

    def __hash__(self) -> int:
        """Return a hash consistent with equality."""
        return hash(self.encode())

    def __repr__(self) -> str:
        """Return `voters=1,2,3 pre_voters=4`; empty roles are omitted."""
        text = "voters=" + ",".join(map(str, self.voters))
        if self.pre_voters:
            text += " pre_voters=" + ",".join(map(str, self.pre_voters))
        if self.learners:
            text += " learners=" + ",".join(map(str, self.learners))
        if self.memories:
            text += " memories=" + ",".join(f"{voter}:{memory:x}" for voter, memory in self.memories.items())
        return text


def decode_configuration(data: bytes) -> Configuration:
    """Decode the body of a CONFIG entry.

    Raise ValueError for another format version, too many members, a short body, or ids that break the invariant.
    """
    if len(data) < 7 or data[0] not in (CONFIG_FORMAT, CONFIG_FORMAT_MEMORIES):
        raise ValueError(f"not a configuration of format {CONFIG_FORMAT} or {CONFIG_FORMAT_MEMORIES}: {data[:16]!r}")
    position = 1
    roles: list[list[int]] = []
    for _ in range(3):
        count = int.from_bytes(data[position : position + 2], "big")
        position += 2
        if count > MAX_MEMBERS or position + 8 * count > len(data):
            raise ValueError(f"a configuration of {len(data)} bytes cannot name {count} members")
        ids: list[int] = []
        for _ in range(count):
            ids.append(int.from_bytes(data[position : position + 8], "big"))
            position += 8
        roles.append(ids)
    memories: dict[int, int] = {}
    if data[0] == CONFIG_FORMAT_MEMORIES:
        memories, position = _decode_memories(data, position, roles[0])
    everyone = roles[0] + roles[1] + roles[2]
    if position > len(data) or 0 in everyone or len(set(everyone)) != len(everyone):
        raise ValueError(f"a configuration is truncated, or names a node twice, or names node 0: {everyone}")
    if everyone and max(everyone) > MEMBER_ID_MAX:
        raise ValueError(f"a configuration names node {max(everyone)}; the largest id is {MEMBER_ID_MAX}")
    return Configuration(roles[0], roles[1], roles[2], data[position:], memories)


def _decode_memories(data: bytes, position: int, voters: list[int]) -> tuple[dict[int, int], int]:
    """Return the memories at `position` and the position after them. Raise ValueError."""
    count = int.from_bytes(data[position : position + 2], "big")
    position += 2
    end = position + 16 * count
    if count > MAX_MEMBERS or end > len(data):
        raise ValueError(f"a configuration of {len(data)} bytes cannot have {count} memories")
    memories: dict[int, int] = {}
    while position < end:
        voter = int.from_bytes(data[position : position + 8], "big")
        memory = int.from_bytes(data[position + 8 : position + 16], "big")
        if voter not in voters or not FIRST_MEMORY < memory <= MEMORY_MAX:
            raise ValueError(f"a configuration gives node {voter} the memory {memory}")
        memories[voter] = memory
        position += 16
    return memories, end


def objection(old: Configuration, new: Configuration) -> str:
    """Return why `new` may not follow `old` in one step, or "" if it may. Dissertation §4.1."""
    gone = [node for node in old.voters if node not in new.voters]
    added = [node for node in new.voters if node not in old.voters]
    if not new.voters:
        return "a group needs a voter"
    if len(gone) + len(added) > 1:
        return f"one voter at a time: removes {gone}, adds {added}"
    swapped = [node for node in new.voters if node in old.voters and old.memory_of(node) != new.memory_of(node)]
    if swapped:
        # Another memory is another server: to Raft this would remove one voter and add one in a single step.
        return f"voter {swapped[0]} has another memory: remove it, and let it catch up before it votes again"
    if len(new.members()) > MAX_MEMBERS:
        return f"more than {MAX_MEMBERS} members"
    return ""


class CatchUp:
    """Progress of a PRE_VOTER that catches up. Dissertation §4.2.1.

    Replication is divided into rounds. A round ends when the node has all entries that the leader's log had when the
    round began. A node that finishes a round within an election timeout would delay commits by at most that timeout, so
    it may vote.
    """

    def __init__(self, target: int, now: int) -> None:
        #: The index that ends this round: the end of the leader's log when the round began.
        self.target: int = target
        #: Tick of the leader at which this round began.
        self.began: int = now
        #: True from the first round that was short enough.
        self.ready: bool = False

    def advance(self, match: int, last: int, now: int, limit_ticks: int) -> bool:
        """Record that the node has the log up to `match`. Return True from the time at which it may be promoted."""
        if match >= self.target and not self.ready:
            self.ready = now - self.began <= limit_ticks
            self.target = last
            self.began = now
        return self.ready
