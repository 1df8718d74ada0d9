"""What a node's parts may use of the node.

Sessions and membership act on one node's log, state and clients, and the node acts on them. They take this interface
instead of the node itself, so no import leads back to `node.py`, and this page says what they may touch.
"""

from __future__ import annotations

from typing import Protocol

from coord.raft.core import RaftCore
from coord.server.clients.pipeline import Pipeline
from coord.server.clients.table import ClientTable
from coord.server.node_settings import NodeSettings
from coord.tree.machine import StateMachine


class NodeContext(Protocol):
    """One node, as `sessions` and `membership` see it. `coord.server.node.Node` is the only implementation."""

    settings: NodeSettings
    #: Log, configuration, role and leader. Proposals of the other parts go to the core directly, apart from commands,
    #: which share the leader's batches (`propose`).
    core: RaftCore
    #: The state at `applied_index`. A snapshot from the leader replaces it, so nobody may keep it.
    machine: StateMachine
    #: Connections of this node's clients, and their requests.
    clients: ClientTable
    pipeline: Pipeline
    #: Index of the last entry applied to `machine`.
    applied_index: int

    def is_settled(self) -> bool:
        """Return True while this node leads and has applied every entry of earlier terms."""
        ...

    def propose(self, commands: list[bytes]) -> None:
        """As the leader, add commands of the store's own to the next batch. They are lost if leadership ends."""
        ...
