"""Interfaces between a store node and its environment: links to peers, the snapshot job, the tracer."""

from __future__ import annotations

from typing import Protocol

from coord.raft.core import RaftCore
from coord.raft.messages import Message, Ready
from coord.storage.snapshot import SnapshotMeta
from coord.tree.machine import StateMachine


class PeerTransport(Protocol):
    """The links to the other nodes. Frames to one peer arrive in order, or the link breaks."""

    #: True if frames may be queued that `flush` has not sent.
    has_queued: bool

    def send(self, peer: int, frame: bytes) -> bool:
        """Queue a frame. Return False without a link to the peer, or if the link was closed because its queue is
        full."""
        ...

    def is_connected(self, peer: int) -> bool:
        """Return True if there is a link to this peer."""
        ...

    def backlog(self, peer: int) -> int:
        """Return the bytes queued for the peer."""
        ...

    def flush(self) -> None:
        """Send the queued frames, one call per peer."""
        ...


class LevelsView(Protocol):
    """The feature levels that the links use (`coord.server.membership.levels.Levels`)."""

    supported: int

    def required(self) -> int:
        """Return the lowest level that a peer must support."""
        ...

    def objection(self, peer: int, supported: int, required: int) -> str:
        """Return why a peer with these levels is rejected, or "" if it is accepted."""
        ...

    def peer_announced(self, peer: int, supported: int, required: int) -> None:
        """Record the levels in the hello of `peer`."""
        ...


class SnapshotJob(Protocol):
    """Writes the state to disk without blocking the node."""

    def begin(self, meta: SnapshotMeta, machine: StateMachine) -> None:
        """Start writing; `SnapshotPolicy.written` is called at the end. Never called while a job is running."""
        ...


class Tracer(Protocol):
    """Receiver of this node's Raft events (`coord.raft.trace`)."""

    def ready(self, core: RaftCore, ready: Ready) -> None:
        """Record a Ready before the node carries out any part of it."""
        ...

    def sent(self, messages: list[Message]) -> None:
        """Record messages that leave the node now."""
        ...


class PeerEvents(Protocol):
    """Events that the links report to the node."""

    def has_log(self) -> bool:
        """Return whether this node's log has entries, for the hello."""
        ...

    @property
    def levels(self) -> LevelsView:
        """Return the feature levels of the nodes."""
        ...

    def peer_introduced(self, peer: int, has_log: bool) -> None:
        """Handle the hello of `peer`."""
        ...

    def peer_connected(self, peer: int) -> None:
        """Handle a new link to `peer`."""
        ...

    def peer_lost(self, peer: int) -> None:
        """Handle the end of the link to or from `peer`."""
        ...

    def peer_frame(self, peer: int, incarnation: int, kind: int, block: bytes, at: int, end: int) -> None:
        """Handle a frame from `peer`. Raise RemoteProtocolError to close the link."""
        ...


class MembersView(Protocol):
    """The membership as the links use it."""

    def config_index(self) -> int:
        """Return the index of the newest configuration in this node's log."""
        ...

    def own_address(self) -> str:
        """Return this node's `host:port` for its peers, or "" if the configuration has no address."""
        ...

    def may_return(self, peer: int) -> bool:
        """Return True if `peer`, a former member, becomes one again when uncommitted entries are discarded."""
        ...

    def removed_since(self, peer: int) -> int:
        """Return the index of the committed configuration if `peer` is in neither this nor a newer one, else 0."""
        ...

    def removed(self, peer: int, index: int) -> None:
        """Handle REMOVED: `peer` knows a configuration without this node, committed at `index`."""
        ...

    def describe(self) -> bytes:
        """Return the reply to WHO as a frame: the description of this cluster."""
        ...
