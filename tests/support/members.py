"""Stores in memory whose members change: addresses, requests of operators, and checks."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from typing import Any

from coord.server.config.addresses import MemberAddress, config_text, parse_config_text
from coord.server.node import Node
from coord.wire import opcodes as op
from coord.wire import records
from coord.wire.jute import buffer
from coord.wire.values import OPEN_ACL, CreateRequest
from tests.support.store_nodes import Client, StoreNodes

SUPER = b"super:secret"
DIGEST = "super:" + base64.b64encode(hashlib.sha1(SUPER, usedforsecurity=False).digest()).decode()
CONFIG = b"/zookeeper/config"


def member(i: int) -> MemberAddress:
    """Return the addresses of node `i`."""
    return MemberAddress(i, (f"10.0.0.{i}", 2281), 3888, (f"10.0.0.{i}", 2181))


def line(i: int, role: str = "participant") -> str:
    """Return the same addresses as a line of ZooKeeper's configuration."""
    return member(i).zookeeper_line(role)


def store(count: int = 3, seed: int = 1, **options: Any) -> StoreNodes:
    """Return a store whose first leader has written the addresses."""
    first = {i: member(i) for i in range(1, count + 1)}
    nodes = StoreNodes(count, seed, members=first, super_digest=DIGEST, **options)
    nodes.leader()
    nodes.run(3)
    return nodes


def super_client(nodes: StoreNodes, node: Node) -> Client:
    """Return a client with the rights of super."""
    client = nodes.client(node)
    client.request(op.XID_AUTH, op.OP_AUTH, struct.pack("!i", 0) + buffer(b"digest") + buffer(SUPER))
    nodes.settle()
    assert client.replies()[-1][2] == 0
    client.frames.clear()
    return client


def reconfig(client: Client, joining: str = "", leaving: str = "", members: str = "", version: int = -1) -> None:
    """Send ZooKeeper's reconfig request as xid 7."""
    body = records.encode_reconfig(joining.encode(), leaving.encode(), members.encode(), version)
    client.request(7, op.OP_RECONFIG, body)


def ask(client: Client, **wanted: object) -> None:
    """Send our own request as xid 7."""
    client.request(7, op.OP_MEMBERSHIP, buffer(json.dumps(wanted).encode()))


def answer(nodes: StoreNodes, client: Client, ticks: int = 60) -> tuple[int, bytes]:
    """Return (error, body) of the reply to xid 7."""
    for _ in range(ticks):
        nodes.settle()
        found = [reply for reply in client.replies() if reply[0] == 7]
        if found:
            client.frames.clear()
            return found[0][2], found[0][3]
        assert client.is_open, "the connection was closed"
        nodes.run(1)
    raise AssertionError("no answer")


def facts(nodes: StoreNodes, client: Client) -> dict[str, Any]:
    """Return the answer to our own request."""
    err, body = answer(nodes, client)
    assert err == 0
    return dict(json.loads(body[4:]))


def done(nodes: StoreNodes, client: Client, **wanted: object) -> None:
    """Send a request that must be granted."""
    ask(client, **wanted)
    found = facts(nodes, client)
    assert found["code"] == 0, found


def voters(nodes: StoreNodes) -> list[int]:
    """Return the voters of the leader's configuration."""
    return nodes.leader().core.configs.current.voters


def write(nodes: StoreNodes, node: Node, path: bytes) -> None:
    """Make a write and check that it is acknowledged."""
    client = nodes.client(node)
    client.request(3, op.OP_CREATE, records.encode_create(CreateRequest(op.OP_CREATE, path, b"", OPEN_ACL, 0)))
    for _ in range(40):
        if client.replies():
            break
        nodes.run(1)
    assert client.replies()[0][2] == 0


def agree(nodes: StoreNodes) -> None:
    """Check that all members hold the same state, with /zookeeper/config, which names the members."""
    nodes.run(3)
    leader = nodes.leader()
    current = leader.core.configs.current
    states = {
        (n.machine.last_zxid, n.machine.digest(), n.machine.tree.nodes[CONFIG].data)
        for i, n in nodes.nodes.items()
        if current.is_member(i)
    }
    assert len(states) == 1, states
    data = leader.machine.tree.nodes[CONFIG].data or b""
    assert data.startswith(config_text(current))
    assert parse_config_text(data)[1] == leader.machine.tree.nodes[CONFIG].mzxid


def add(nodes: StoreNodes, client: Client, i: int) -> None:
    """Start node `i` and add it. Return when it votes."""
    nodes.start_empty(i)
    reconfig(client, joining=line(i))
    err, body = answer(nodes, client)
    assert err == 0
    assert line(i).encode() in body
