"""The interface through which a node's parts use the node.

Sessions and membership act on the log, state and clients of one node, and the node calls them. They take this interface
instead of the node itself, so no import leads back to `node.py`, and this file lists what they may use.
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
    #: The state at `applied_index`. A snapshot from the leader replaces the object: do not keep a reference.
    machine: StateMachine
    #: Connections of this node's clients, and their requests.
    clients: ClientTable
    pipeline: Pipeline
    #: Index of the last entry applied to `machine`.
    applied_index: int

    def is_ready_to_lead(self) -> bool:
        """Return True while this node leads and has applied every entry of earlier terms."""
        ...

    def propose(self, commands: list[bytes]) -> None:
        """As the leader, add commands of the store itself to the next batch. The commands are lost if leadership
        ends."""
        ...
