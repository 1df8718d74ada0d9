"""Requests to whole nodes in memory, and checks of their trees: shared by the tests of nodes."""

from __future__ import annotations

from coord.wire import opcodes as op
from coord.wire import records
from coord.wire.values import OPEN_ACL, CreateRequest
from tests.support.store_nodes import StoreNodes


def create(path: bytes, data: bytes = b"", flags: int = 0) -> bytes:
    """Return the body of a create request."""
    return records.encode_create(CreateRequest(op.OP_CREATE, path, data, OPEN_ACL, flags))


def set_data(path: bytes, data: bytes, version: int = -1) -> bytes:
    """Return the body of a setData request."""
    return records.encode_set_data(path, data, version)


def get(path: bytes, watch: bool = False) -> bytes:
    """Return the body of a getData request."""
    return records.encode_path_watch(path, watch)


def value(nodes: StoreNodes, node_id: int, path: bytes) -> bytes | None:
    """Return a znode's data in one node's tree, or None."""
    found = nodes.nodes[node_id].machine.tree.nodes.get(path)
    return found.data if found is not None else None


def agree(nodes: StoreNodes) -> None:
    """Assert that all replicas hold the same state."""
    states = {(n.machine.last_zxid, n.machine.digest()) for n in nodes.nodes.values()}
    assert len(states) == 1, states
