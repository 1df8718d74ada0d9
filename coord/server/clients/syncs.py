"""Pending syncs: new, sent to the leader under a context, or confirmed and waiting for an index to be applied.

A sync is answered when the leader has confirmed its leadership by a round of heartbeats after the sync, and this node
has applied every entry committed by then (Raft §8, Dissertation §6.4). So the reads after a sync see every write that
was acknowledged to any client before the sync was sent.
"""

from __future__ import annotations

from typing import Final

from coord.errors import NotLeader
from coord.raft.core import RaftCore
from coord.raft.messages import ReadState
from coord.server.clients.connection import Connection, Pending
from coord.server.clients.pipeline import Pipeline

#: Ticks without a reply after which a read index is requested again.
RETRY_TICKS: Final = 10

Waiting = list[tuple[Connection, Pending]]


class Syncs:
    """The syncs of one node's clients."""

    def __init__(self, first_context: int) -> None:
        """`first_context` must exceed every context that an earlier process of this node used."""
        self.new: Waiting = []
        self._asked: dict[int, Waiting] = {}
        #: (index, syncs that are answered when this node has applied it).
        self.confirmed: list[tuple[int, Waiting]] = []
        self._next_context = first_context
        self._ticks = 0

    def add(self, connection: Connection, waiting: Pending) -> None:
        """Add a client's sync."""
        self.new.append((connection, waiting))

    def ask(self, core: RaftCore) -> None:
        """Request one read index for all syncs of the turn."""
        context = self._next_context
        try:
            core.read_index(context)
        except NotLeader:
            return  # The syncs wait for a leader, or are dropped with their connections.
        self._next_context += 1
        self._asked[context], self.new = self.new, []
        self._ticks = 0

    def ask_again(self) -> None:
        """Request read indexes again, in the old order: requests or replies may be lost."""
        for context in sorted(self._asked, reverse=True):
            self.new[:0] = self._asked[context]
        self._asked.clear()

    def tick(self) -> None:
        """Request read indexes again after RETRY_TICKS without a reply."""
        if self._asked:
            self._ticks += 1
            if self._ticks >= RETRY_TICKS:
                self.ask_again()

    def confirm(self, state: ReadState) -> None:
        """Handle the core's reply. Ignore the context of a request that was repeated under a new context."""
        waiting = self._asked.pop(state.context, None)
        if waiting is not None:
            self.confirmed.append((state.index, waiting))

    def release(self, applied_index: int, pipeline: Pipeline) -> None:
        """Reply to the syncs whose index is applied."""
        still: list[tuple[int, Waiting]] = []
        for index, waiting in self.confirmed:
            if index > applied_index:
                still.append((index, waiting))
                continue
            for connection, pending in waiting:
                pipeline.release_sync(connection, pending)
        self.confirmed = still

    def forget(self) -> None:
        """Drop all syncs: their connections are closed."""
        self.new.clear()
        self._asked.clear()
        self.confirmed.clear()
