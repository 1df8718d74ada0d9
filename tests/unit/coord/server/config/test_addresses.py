"""Addresses in text and bytes: ZooKeeper's lines, the attachment, and who may dial."""

from __future__ import annotations

import pytest

from coord.errors import RemoteProtocolError
from coord.peers.reactor import TurnReactor
from coord.raft.membership import Configuration
from coord.server.config.addresses import (
    MemberAddress,
    config_text,
    decode_members,
    encode_members,
    parse_config_text,
    parse_server,
    with_members,
)
from coord.server.peers import codec, hello_frames
from coord.server.peers.link import PeerLinks
from tests.support.store_nodes import SeededRng


@pytest.mark.parametrize(
    ("text", "again"),
    [
        ("server.1=zoo1:2888:3888;2181", "server.1=zoo1:2888:3888:participant;0.0.0.0:2181"),
        ("server.2=10.0.0.2:1:2:observer;10.0.0.2:3", "server.2=10.0.0.2:1:2:observer;10.0.0.2:3"),
        ("server.3=[::1]:1:2:PARTICIPANT", "server.3=[::1]:1:2:participant"),
        (" server.4 = [fe80::1]:1:2;[::]:2181 ", "server.4=[fe80::1]:1:2:participant;[::]:2181"),
    ],
)
def test_lines_of_zookeeper(text: str, again: str) -> None:
    """The lines are parsed, and printed as ZooKeeper prints them."""
    member, role = parse_server(text)
    assert member.zookeeper_line(role) == again
    assert parse_server(again) == (member, role)
    assert decode_members(encode_members({member.node_id: member})) == {member.node_id: member}


@pytest.mark.parametrize(
    "text",
    [
        *("", "some thing", "server.x=a:1:2", "server.0=a:1:2", "server.1=a", "server.1=a:1", "server.1=a:1:2:king"),
        *("server.1=a:0:2", "server.1=a:1:65536", "server.1=:1:2", "server.1=a:1:2;b", "server.1=a|b:1:2", "1=a:1:2"),
        *("server.1=a:1:2:observer:x", "server.1=a b:1:2", "server.99999999999999999999=a:1:2", "server.1=a:²:2"),
    ],
)
def test_bad_lines(text: str) -> None:
    """Each gives ValueError."""
    with pytest.raises(ValueError, match=r"."):
        parse_server(text)


def _config() -> Configuration:
    members = {i: MemberAddress(i, (f"h{i}", 1), 2, (f"h{i}", 3)) for i in (1, 2, 3, 4)}
    return with_members(Configuration([1, 2, 3], [], [4]), members)


def test_config_text_goes_back_and_forth() -> None:
    """Nodes that join by client addresses read /zookeeper/config."""
    text = config_text(_config()) + b"version=1f"
    found, version = parse_config_text(text)
    assert version == 31
    assert [role for _, role in found.values()] == ["participant"] * 3 + ["observer"]
    assert found[4][0].client == ("h4", 3)


class _View:
    """Configuration 10 of this node, not committed; an older one removed 7, this one removed 6."""

    def config_index(self) -> int:
        return 10

    def own_address(self) -> str:
        return "h1:1"

    def may_return(self, peer: int) -> bool:
        return peer == 6

    def removed_since(self, peer: int) -> int:
        return 10 if peer == 7 else 0

    def removed(self, peer: int, index: int) -> None:
        raise AssertionError((peer, index))

    def describe(self) -> bytes:
        return hello_frames.encode_cluster(b"c" * 16, 10, _config())


def test_who_may_dial() -> None:
    """Members, and nodes that know newer members than this one; removed nodes get the reason."""
    links = PeerLinks(
        TurnReactor(),
        node_id=1,
        cluster=b"c" * 16,
        incarnation=1,
        addresses={2: ("h2", 1), 3: ("h3", 1)},
        rng=SeededRng(1),
    )

    def hello(src: int, config: int = 10, address: str = "", cluster: bytes = b"c" * 16) -> hello_frames.Hello:
        raw = hello_frames.encode_hello(hello_frames.Hello(cluster, src, 1, 5, True, config=config, address=address))
        return hello_frames.decode_hello(raw[5:])

    assert "not a member" in links.acceptor.objection(hello(5, 99, "h5:1"))  # its members never change
    links.members = _View()
    assert links.acceptor.objection(hello(2)) == ""
    assert "this node" in links.acceptor.objection(hello(1))
    assert "another cluster" in links.acceptor.objection(hello(2, cluster=b"d" * 16))
    assert "not a member" in links.acceptor.objection(hello(5, 10, "h5:1"))
    assert "not a member" in links.acceptor.objection(hello(5, 11))
    newer = hello(5, 11, "h5:1")
    assert links.acceptor.objection(newer) == ""
    links.open_provisional(newer)
    assert links.acceptor.objection(hello(5)) == ""
    assert "not a member" in links.acceptor.objection(hello(6))
    # Perhaps 6 leads by now, and the configuration that removed it here was never committed.
    assert links.acceptor.objection(hello(6, 9, "h6:1")) == ""
    assert links.acceptor.removed_since(hello(7)) == 10
    assert links.acceptor.removed_since(hello(7, cluster=b"d" * 16)) == 0
    links.follow({2: ("h2", 1), 4: ("h4", 1)})
    assert "not a member" in links.acceptor.objection(hello(3))
    assert links.acceptor.objection(hello(4)) == ""


def test_frames_of_membership() -> None:
    """They are decoded again; a truncated frame costs only the connection."""
    frame = hello_frames.encode_cluster(b"c" * 16, 10, _config())
    assert hello_frames.decode_cluster(frame[5:]) == (b"c" * 16, 10, _config())
    assert hello_frames.decode_removed(hello_frames.encode_removed(77)[5:]) == 77
    assert hello_frames.is_who(hello_frames.encode_who()[5:])
    ask = codec.encode_numbered(codec.ASK, 9, b"{}")
    assert codec.decode_numbered(ask, 5, len(ask)) == (9, b"{}")
    for broken in (b"", frame[5:20], frame[5:40]):
        with pytest.raises(RemoteProtocolError):
            hello_frames.decode_cluster(broken)
    with pytest.raises(RemoteProtocolError):
        hello_frames.decode_removed(b"1234")
    with pytest.raises(RemoteProtocolError):
        codec.decode_numbered(b"1234", 0, 4)
    old = hello_frames.decode_hello(b"RKPR\x00\x01" + bytes(41))
    assert old.version == 1
