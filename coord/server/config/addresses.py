"""Addresses of a store's nodes, as the Raft configuration carries them and in ZooKeeper's notation.

The roles are Raft's own (`coord.raft.membership.Configuration`). The configuration's attachment has the addresses, one
line per node:

    N=host:peerPort:electionPort[;clientHost:clientPort]

ZooKeeper's notation for the same, in zoo.cfg, in `reconfig` and in /zookeeper/config:

    server.N=host:peerPort:electionPort[:role][;[clientHost:]clientPort]

The election port is kept for tools that read it; one port carries all traffic between our nodes. A PRE_VOTER is written
as an observer, because it does not count in the quorum yet.
"""

from __future__ import annotations

from typing import Final

from coord.raft.membership import MEMBER_ID_MAX, Configuration, decode_configuration

Address = tuple[str, int]

PARTICIPANT: Final = "participant"
OBSERVER: Final = "observer"
#: Node ids fit into the top byte of a session id.
NODE_ID_MAX: Final = 127
#: Host of a client address that is given as a port alone.
ANYWHERE: Final = "0.0.0.0"
#: Hosts by which a process listens on every address of its machine. Nobody can connect to them.
EVERY_ADDRESS: Final = (ANYWHERE, "::")


class MemberAddress:
    """The addresses of one node. `client` is None until the node has announced it."""

    def __init__(self, node_id: int, peer: Address, election_port: int = 0, client: Address | None = None) -> None:
        self.node_id = node_id
        self.peer = peer
        self.election_port = election_port or peer[1]
        self.client = client

    def line(self) -> str:
        """Return `host:peer:election[;host:port]`."""
        text = f"{shown(self.peer)}:{self.election_port}"
        return text + (f";{shown(self.client)}" if self.client is not None else "")

    def zookeeper_line(self, role: str) -> str:
        """Return `server.N=host:peer:election:role[;host:port]`."""
        text = f"server.{self.node_id}={shown(self.peer)}:{self.election_port}:{role}"
        return text + (f";{shown(self.client)}" if self.client is not None else "")

    def __eq__(self, other: object) -> bool:
        """Return True if both are the same node at the same addresses."""
        return isinstance(other, MemberAddress) and self.node_id == other.node_id and self.line() == other.line()

    def __hash__(self) -> int:
        """Return a hash consistent with equality."""
        return hash((self.node_id, self.line()))

    def __repr__(self) -> str:
        """Return the form of the attachment."""
        return f"{self.node_id}={self.line()}"


Members = dict[int, MemberAddress]


def shown(address: Address) -> str:
    """Return `host:port`, an IPv6 address in brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_host_port(text: str) -> Address:
    """Parse `host:port` or `[v6]:port`. Raise ValueError."""
    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    # Characters that are not printable would not survive encoding on one line.
    if not colon or not host or not _is_port(port) or not host.isprintable() or any(c in " =,;|/" for c in host):
        raise ValueError(f"{text!r} is not host:port")
    return host, int(port)


def parse_member(node_id: int, text: str) -> tuple[MemberAddress, str]:
    """Parse the text after `server.N=` into the member and its role. Raise ValueError with the reason."""
    if not 0 < node_id <= MEMBER_ID_MAX:
        raise ValueError(f"{node_id} is not a server id")
    address, semicolon, client_text = text.strip().partition(";")
    host, *parts = _split(address)
    role = parts[2].lower() if len(parts) == 3 else PARTICIPANT
    if not host or not 2 <= len(parts) <= 3 or not _is_port(parts[0]) or not _is_port(parts[1]):
        raise ValueError(f"{text!r} is not host:port:port[:role][;[host:]port]")
    if role not in (PARTICIPANT, OBSERVER):
        raise ValueError(f"{role!r} is not a role; use {PARTICIPANT} or {OBSERVER}")
    peer = parse_host_port(f"[{host}]:{parts[0]}" if ":" in host else f"{host}:{parts[0]}")
    client: Address | None = None
    if semicolon:
        client_text = client_text.strip()
        client = parse_host_port(client_text if ":" in client_text else f"{ANYWHERE}:{client_text}")
    return MemberAddress(node_id, peer, int(parts[1]), client), role


def parse_server(text: str) -> tuple[MemberAddress, str]:
    """Parse `server.N=…` into the member and its role. Raise ValueError."""
    name, equals, rest = text.strip().partition("=")
    prefix, dot, digits = name.strip().partition(".")
    if not equals or prefix != "server" or not dot or not digits.isdecimal():
        raise ValueError(f"{text!r} is not server.N=host:port:port[:role][;[host:]port]")
    return parse_member(int(digits), rest)


def _split(address: str) -> list[str]:
    if address.startswith("["):
        host, _, rest = address[1:].partition("]")
        return [host, *rest.lstrip(":").split(":")]
    return address.split(":")


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) < 65536


# --- the attachment -------------------------------------------------------------------------------------------------


def encode_members(members: Members) -> bytes:
    """Return the attachment with the addresses of these nodes."""
    return "".join(f"{node_id}={members[node_id].line()}\n" for node_id in sorted(members)).encode()


def decode_members(attachment: bytes) -> Members:
    """Decode an attachment; an empty attachment has no members. Raise ValueError."""
    members: Members = {}
    for line in attachment.decode().splitlines():
        digits, equals, rest = line.partition("=")
        if not equals or not digits.isdecimal():
            raise ValueError(f"{line!r} is not id=host:port:port")
        members[int(digits)] = parse_member(int(digits), rest)[0]
    return members


def check_configuration(data: bytes) -> Configuration:
    """Decode the body of a CONFIG entry and check the addresses in it. Raise ValueError."""
    config = decode_configuration(data)
    decode_members(config.attachment)
    return config


def with_members(config: Configuration, members: Members) -> Configuration:
    """Return the same roles with the addresses of the members that have one."""
    known = {node_id: member for node_id, member in members.items() if config.is_member(node_id)}
    return config.with_attachment(encode_members(known))


def role_of(config: Configuration, node_id: int) -> str:
    """Return ZooKeeper's name for a member's role."""
    return PARTICIPANT if config.is_voter(node_id) else OBSERVER


def config_text(config: Configuration) -> bytes:
    """Return the server lines of /zookeeper/config; the state machine adds the version. Raise ValueError."""
    members = decode_members(config.attachment)
    lines = [members[i].zookeeper_line(role_of(config, i)) for i in config.members() if i in members]
    return "".join(f"{line}\n" for line in lines).encode()


def parse_config_text(data: bytes) -> tuple[dict[int, tuple[MemberAddress, str]], int]:
    """Parse /zookeeper/config into (node -> (member, role), version). Raise ValueError."""
    found: dict[int, tuple[MemberAddress, str]] = {}
    version = 0
    for line in data.decode().splitlines():
        if line.startswith("version="):
            version = int(line.partition("=")[2], 16)
        elif line.strip():
            member, role = parse_server(line)
            found[member.node_id] = (member, role)
    return found, version
