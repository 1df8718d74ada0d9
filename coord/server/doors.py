"""The doors of a store node to what surrounds it: the other nodes, who writes snapshots, who watches Raft."""

from __future__ import annotations

from typing import Protocol

from coord.raft.core import RaftCore
from coord.raft.messages import Message, Ready
from coord.storage.snapshot import SnapshotMeta
from coord.tree.machine import StateMachine


class PeerDoor(Protocol):
    """The links to the other nodes. What is sent to one of them arrives in order or the link breaks."""

    def send(self, peer: int, frame: bytes) -> bool:
        """Queue a frame; False when there is no link to the peer, or it was just given up because its queue is full."""
        ...

    def is_connected(self, peer: int) -> bool:
        """Whether frames to this peer have a chance."""
        ...

    def backlog(self, peer: int) -> int:
        """Bytes queued for the peer."""
        ...

    def flush(self) -> None:
        """Send what is queued, one call per peer."""
        ...


class SnapshotJob(Protocol):
    """Writes the state to disk without holding up the node."""

    def begin(self, meta: SnapshotMeta, machine: StateMachine) -> None:
        """Start; `Keeper.written` is called when it has ended. Never called while one is running."""
        ...


class Tracer(Protocol):
    """Who is told what Raft does here (`coord.raft.trace`)."""

    def ready(self, core: RaftCore, ready: Ready) -> None:
        """This Ready is about to be carried out; nothing of it has left the node."""
        ...

    def sent(self, messages: list[Message]) -> None:
        """These leave the node now."""
        ...
