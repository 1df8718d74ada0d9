"""Frames in a member's name that no member sends: whole nodes break the link, and nothing else changes."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from coord.errors import RemoteProtocolError
from coord.raft.bounds import TERM_LEAP_MAX
from coord.raft.membership import Configuration
from coord.raft.messages import APPEND, APPEND_RESP, CONFIG, HEARTBEAT, SNAPSHOT, VOTE, Entry, Message, RaftSnapshot
from coord.server.config.addresses import MemberAddress
from coord.server.membership.leading import REQUESTS_MAX
from coord.server.membership.request import ADDRESS_CHARS_MAX
from coord.server.node import Node
from coord.server.peers import codec, raft_frames
from coord.storage.wal import open_wal
from tests.support.members import answer, ask, reconfig, store, super_client
from tests.support.store_nodes import StoreNodes


def give(node: Node, peer: int, frame: bytes) -> None:
    """Let the node handle a frame and end its turn."""
    node.peer_frame(peer, 1, frame[4], frame, 5, len(frame))
    node.turn_end()
    node.tick()
    node.turn_end()


def refused(node: Node, peer: int, frame: bytes) -> None:
    """Check that the link is broken and the node continues."""
    with pytest.raises(RemoteProtocolError):
        give(node, peer, frame)
    node.turn_end()
    assert node.failure is None


def numbered(kind: int, value: object, token: int = 1) -> bytes:
    """Return a membership request, or the answer to one."""
    return codec.encode_numbered(kind, token, json.dumps(value).encode())


def persisted_term(nodes: StoreNodes, i: int) -> int:
    """Return the term on the disk of a node."""
    _, found = open_wal(nodes.disks[i].power_cut(), "wal", segment_bytes=nodes.segment_bytes)
    return found.term


@pytest.mark.parametrize("kind", [VOTE, APPEND_RESP, APPEND, HEARTBEAT])
def test_no_forged_term_reaches_the_disk(kind: int) -> None:
    """After one such frame no restart could repair the store."""
    nodes = StoreNodes(3)
    for node in (nodes.leader(), nodes.follower()):
        own = node.settings.node_id
        peer = next(i for i in nodes.ids() if i != own)
        before = persisted_term(nodes, own)
        for term in (node.core.term + TERM_LEAP_MAX + 1, (1 << 62) - 1, (1 << 62), (1 << 63) - 2):
            refused(node, peer, raft_frames.encode_raft(Message(kind, peer, own, term)))
        assert persisted_term(nodes, own) == before
    nodes.run(20)
    for i in nodes.ids():
        nodes.crash(i)
    for i in nodes.ids():
        nodes.start(i)
    assert nodes.leader().core.term < 100


@pytest.mark.parametrize(
    "make",
    [
        lambda term: Message(APPEND, 0, 0, term),
        lambda term: Message(APPEND_RESP, 0, 0, term, match_index=1 << 40, granted=True),
        lambda term: Message(SNAPSHOT, 0, 0, term, snapshot=RaftSnapshot(9, term, Configuration([1, 2, 3]), "x")),
        lambda term: Message(APPEND, 0, 0, term + 1, entries=[Entry(term, 1, CONFIG, b"rubbish")]),
        lambda term: Message(
            APPEND, 0, 0, term + 1, entries=[Entry(term, 1, CONFIG, Configuration([1], attachment=b"x").encode())]
        ),
    ],
)
def test_the_leader_is_not_stopped_by_a_forged_frame(make: Callable[[int], Message]) -> None:
    """A peer's claims once failed the leader's assertions."""
    nodes = StoreNodes(3)
    node = nodes.leader()
    own = node.settings.node_id
    peer = next(i for i in nodes.ids() if i != own)
    message = make(node.core.term)
    message.src, message.dst = peer, own
    refused(node, peer, raft_frames.encode_raft(message))
    assert node.core.leadership is not None
    client = nodes.client(node)
    assert client.is_open


@pytest.mark.parametrize(
    "said",
    [
        {"code": 0},
        {"code": 0, "index": "1"},
        {"code": 0, "index": -1},
        {"code": 0, "index": True},
        {"code": -8, "index": 1, "text": 5},
        {"code": 1, "checked": "yes"},
        {"code": 1 << 40, "index": 1},
    ],
)
def test_an_answer_that_no_leader_gives_breaks_the_link(said: dict[str, object]) -> None:
    """The node that waited for the answer once ended with a KeyError."""
    nodes = store(3)
    node = nodes.follower()
    client = super_client(nodes, node)
    ask(client, do="list")
    node.turn_end()  # sent to the leader
    leader = node.core.leader
    [token] = node.membership._requests
    refused(node, leader, numbered(codec.ANSWER, said, token))
    assert answer(nodes, client)[0] == 0


def test_announcements_that_cannot_be_written_down_are_not() -> None:
    """A client address with a lone surrogate could be decoded but not encoded: the leader ended."""
    nodes = StoreNodes(3)
    node = nodes.leader()
    peer = next(i for i in nodes.ids() if i != node.settings.node_id)
    for address in (5, None, "x" * (ADDRESS_CHARS_MAX + 1)):
        refused(node, peer, numbered(codec.ASK, {"do": "announce", "client": address}))
    nodes = StoreNodes(3, members={i: MemberAddress(i, (f"10.0.0.{i}", 2281)) for i in (1, 2, 3)})
    nodes.leader()
    nodes.run(3)
    node = nodes.leader()
    peer = next(i for i in nodes.ids() if i != node.settings.node_id)
    for address in ("\ud800:1", "a\u2028b:1", "a\x85b:1", "a\nb:1", "a\0:1"):
        give(node, peer, numbered(codec.ASK, {"do": "announce", "client": address}))
        nodes.run(2)
        assert node.failure is None


def test_requests_that_wait_are_bounded() -> None:
    """A request may ask to wait for an index that never comes."""
    nodes = store(3)
    node = nodes.leader()
    peer = next(i for i in nodes.ids() if i != node.settings.node_id)
    waiting = numbered(codec.ASK, {"do": "list", "applied": 1 << 61, "session": 1})
    for _ in range(REQUESTS_MAX):
        node.peer_frame(peer, 1, waiting[4], waiting, 5, len(waiting))
    refused(node, peer, waiting)


def test_a_reconfig_with_thousands_of_digits_is_refused() -> None:
    """Python does not parse such a number, and the leader ended."""
    nodes = store(3)
    client = super_client(nodes, nodes.leader())
    reconfig(client, leaving="9" * 5000)
    assert answer(nodes, client)[0] != 0
    assert nodes.leader().failure is None


def test_nobody_is_removed_while_a_leader_is_heard() -> None:
    """A stranger at the address of a dead node may claim that this node was removed. The node must keep its clients."""
    nodes = StoreNodes(3)
    node = nodes.follower()
    node.membership.removed(3, 1 << 40)
    assert node.membership.removed_at == 0
    for i in nodes.ids():
        if i != node.settings.node_id:
            nodes.crash(i)
    nodes.run(60)
    node.membership.removed(3, 1 << 40)
    assert node.membership.removed_at == 1 << 40
