"""When snapshots are due."""

from __future__ import annotations

from coord.wire import opcodes as op
from coord.wire import records
from coord.wire.values import OPEN_ACL, CreateRequest
from tests.support.store_nodes import StoreNodes

DATA = bytes(100)


def test_nodes_take_their_snapshots_apart() -> None:
    """By bytes: if all three wrote at once, no majority would have its disk for the log."""
    nodes = StoreNodes(3, snapshot_bytes=4000)
    client = nodes.client(nodes.leader())
    first: dict[int, int] = {}
    for xid in range(1, 60):
        body = records.encode_create(CreateRequest(op.OP_CREATE, b"/n%d" % xid, DATA, OPEN_ACL, 0))
        client.request(xid, op.OP_CREATE, body)
        nodes.run(1)
        for i in nodes.ids():
            index = nodes.nodes[i].snapshot_policy.index
            if index:
                first.setdefault(i, index)
    assert set(first) == set(nodes.ids())
    assert len(set(first.values())) == len(first), first
