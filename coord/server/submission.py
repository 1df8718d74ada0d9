"""Submission of commands to the log: the leader batches them, other nodes forward them to the leader.

Once per turn `Submission.submit` takes the commands that this node's clients sent in the turn. The leader makes entries
of them and of the commands that other nodes have forwarded. A follower forwards them to the leader.
"""

from __future__ import annotations

from typing import Final

from coord.env import Clock
from coord.errors import ProposalDropped, RemoteProtocolError
from coord.raft.core import RaftCore
from coord.raft.messages import LEADER
from coord.server.clients.proposals import Forwarded, Proposals, Sent
from coord.server.interfaces import PeerTransport
from coord.server.node_settings import NodeSettings
from coord.server.peers import raft_frames
from coord.tree.command import encode_batch, encode_command
from coord.tree.machine import StateMachine
from coord.wire.codec import encode_path
from coord.wire.opcodes import OP_DELETE_CONTAINER

#: A batch is closed at this size: one entry must fit into one append and must not delay later entries.
BATCH_BYTES_MAX: Final = 1 << 20
#: Containers and TTL znodes that the leader proposes to delete at a time.
REAPED_PER_ROUND: Final = 1000


class Batcher:
    """Collects `commands` for the leader's next batches, all of one term. A batch is one log entry."""

    def __init__(self, settings: NodeSettings, clock: Clock) -> None:
        self.commands: list[bytes] = []
        self._term = 0
        self._settings = settings
        self._clock = clock
        self._last_time_ms = 0

    def add(self, term: int, commands: list[bytes]) -> None:
        """Add commands of `term`; drop those of another term, which must not be applied any more."""
        if self._term != term:
            self.commands.clear()
            self._term = term
        self.commands += commands

    def propose(self, core: RaftCore, machine: StateMachine) -> None:
        """Split the commands into batches and append each batch to the leader's log."""
        if self._term != core.term:
            self.commands.clear()
            return
        settings = self._settings
        commands, self.commands = self.commands, []
        start = 0
        size = 0
        for position, command in enumerate(commands):
            size += len(command)
            if size >= BATCH_BYTES_MAX or position == len(commands) - 1:
                try:
                    core.propose(
                        encode_batch(
                            self.time_ms(machine.applied_time_ms),
                            commands[start : position + 1],
                            enforce_quotas=settings.enforce_quotas,
                            is_full=self._is_full(machine),
                        )
                    )
                except ProposalDropped:
                    # Leadership is being transferred. If the transfer fails, the commands are proposed in this term,
                    # otherwise they are dropped with the term.
                    self.commands = commands[start:] + self.commands
                    return
                start = position + 1
                size = 0

    def time_ms(self, applied_ms: int) -> int:
        """Return the time of a batch: this node's wall clock, but not earlier than the previous batch."""
        now_ms = self._clock.wall_ms()
        self._last_time_ms = max(now_ms, self._last_time_ms, applied_ms)
        return self._last_time_ms

    def _is_full(self, machine: StateMachine) -> bool:
        """Return True if the applied state has reached one of its limits."""
        settings = self._settings
        tree = machine.tree
        return (0 < settings.znodes_max <= len(tree.nodes)) or (0 < settings.data_bytes_max <= tree.data_bytes)


class Submission:
    """Passes one node's commands to the leader, and as the leader batches the commands of all nodes."""

    def __init__(
        self, settings: NodeSettings, core: RaftCore, peers: PeerTransport, clock: Clock, proposals: Proposals
    ) -> None:
        self.batcher = Batcher(settings, clock)
        self._core = core
        self._peers = peers
        self._proposals = proposals
        self._forwarded = Forwarded()
        #: Peers to which this node has not yet announced, on the present link, the number of its first command.
        self._fresh_links: set[int] = set()
        #: True if `submit` may have work although no command of this node waits.
        self.is_due = False

    def submit(self, machine: StateMachine) -> None:
        """Pass this turn's commands to the leader, which may be this node."""
        core = self._core
        proposals = self._proposals
        if core.role == LEADER:
            term = core.term
            batcher = self.batcher
            if proposals.waiting:
                batcher.add(term, [sent.command for sent in proposals.take(term)[1]])
            if batcher.commands:
                batcher.propose(core, machine)
            self.is_due = len(batcher.commands) > 0
            return
        self.is_due = core.leader in self._fresh_links and len(proposals.sent) > 0
        if core.leader and (proposals.waiting or self.is_due) and self._peers.is_connected(core.leader):
            if core.leader in self._fresh_links:
                self.is_due = False
                self._fresh_links.clear()
                first, unapplied = proposals.unapplied(core.term)
                self._peers.send(core.leader, raft_frames.encode_forward(core.term, first, []))
                self._forward(core.leader, core.term, first, unapplied)
            if proposals.waiting:
                self._forward(core.leader, core.term, *proposals.take(core.term))

    def _forward(self, leader: int, term: int, first: int, taken: list[Sent]) -> None:
        """Send commands numbered from `first`. If the link breaks, `submit` sends them again over the next link."""
        part: list[bytes] = []
        size = 0
        for position, sent in enumerate(taken):
            part.append(sent.command)
            size += len(sent.command)
            if size >= BATCH_BYTES_MAX or position == len(taken) - 1:
                number = first + position + 1 - len(part)
                if not self._peers.send(leader, raft_frames.encode_forward(term, number, part)):
                    return
                part = []
                size = 0

    def take_forward(self, peer: int, incarnation: int, term: int, first: int, commands: list[bytes]) -> None:
        """As the leader, add the commands that `peer` forwarded, except those that were accepted before.

        Raise RemoteProtocolError if the numbers leave a gap.
        """
        core = self._core
        if core.role != LEADER or term != core.term:
            return  # the sender forwards them again when it applies an entry of a later term (`Proposals`, rule 2)
        try:
            fresh = self._forwarded.accept(term, peer, incarnation, first, commands)
        except ValueError as error:
            raise RemoteProtocolError(str(error)) from error
        self.batcher.add(term, fresh)
        self.is_due = True

    def propose(self, commands: list[bytes]) -> None:
        """As the leader, add commands of the store itself to the next batch."""
        self.batcher.add(self._core.term, commands)
        self.is_due = True

    def reap(self, machine: StateMachine) -> None:
        """As the leader, propose to delete empty containers and expired TTL znodes. Applying checks each again."""
        paths = machine.reap_candidates(self.batcher.time_ms(machine.applied_time_ms))[:REAPED_PER_ROUND]
        if paths:
            self.propose([encode_command(0, 0, 0, OP_DELETE_CONTAINER, encode_path(path)) for path in paths])

    def link_is_new(self, peer: int) -> None:
        """Start the next forward to `peer` with the number of its first command.

        Frames of an earlier link may be lost, and after a snapshot some numbers never come.
        """
        self._fresh_links.add(peer)
        self.is_due = True
