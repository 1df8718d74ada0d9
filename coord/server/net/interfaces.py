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


class LevelsView(Protocol):
    """The feature levels, as the links need them (`coord.server.membership.levels.Levels`)."""

    supported: int

    def required(self) -> int:
        """Return the level below which no peer may be."""
        ...

    def objection(self, peer: int, supported: int, required: int) -> str:
        """Return why there is no link to a peer with these levels, "" if there is."""
        ...

    def peer_announced(self, peer: int, supported: int, required: int) -> None:
        """Note what `peer` said in its hello."""
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


class PeerEvents(Protocol):
    """What the links tell the node."""

    def has_log(self) -> bool:
        """What to say of this node in a hello."""
        ...

    @property
    def levels(self) -> LevelsView:
        """What is known of the nodes' feature levels."""
        ...

    def peer_introduced(self, peer: int, has_log: bool) -> None:
        """`peer` said hello."""
        ...

    def peer_connected(self, peer: int) -> None:
        """The link to `peer` is up."""
        ...

    def peer_lost(self, peer: int) -> None:
        """The link to or from `peer` broke."""
        ...

    def peer_frame(self, peer: int, incarnation: int, kind: int, block: bytes, at: int, end: int) -> None:
        """A frame from `peer`. Raises RemoteProtocolError to have the link broken."""
        ...


class MembersView(Protocol):
    """What the links want to know of the membership, and what they tell about it."""

    def config_index(self) -> int:
        """Index of the newest configuration in this node's log."""
        ...

    def own_address(self) -> str:
        """`host:port` of this node for its peers, "" when its configuration has none."""
        ...

    def may_return(self, peer: int) -> bool:
        """Whether `peer`, no member as this node has it, is one if what is not committed here is taken back."""
        ...

    def removed_since(self, peer: int) -> int:
        """Index of the committed configuration if `peer` is in neither that nor a newer one here, else 0."""
        ...

    def removed(self, peer: int, index: int) -> None:
        """`peer` says that this node is no member in the configuration committed at `index`."""
        ...

    def describe(self) -> bytes:
        """The answer to WHO: this cluster (a frame)."""
        ...
