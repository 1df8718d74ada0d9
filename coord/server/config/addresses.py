"""Who is where: the addresses of a store's nodes, as the Raft configuration carries them and as ZooKeeper writes them.

The roles are Raft's own (`coord.raft.membership.Configuration`); its attachment holds the addresses, one line a node:

    N=host:peerPort:electionPort[;clientHost:clientPort]

ZooKeeper's notation for the same, in zoo.cfg, in `reconfig` and in /zookeeper/config:

    server.N=host:peerPort:electionPort[:role][;[clientHost:]clientPort]

The election port is kept for those who read it; one port carries everything between our nodes. A PRE_VOTER is written
as an observer: it does not count in the quorum yet.
"""

from __future__ import annotations

from typing import Final

from coord.raft.membership import MEMBER_ID_MAX, Configuration, decode_configuration

Address = tuple[str, int]

PARTICIPANT: Final = "participant"
OBSERVER: Final = "observer"
#: Node ids fit into the top byte of a session id.
NODE_ID_MAX: Final = 127
_ANYWHERE: Final = "0.0.0.0"


class MemberAddress:
    """The addresses of one node. `client` is None while nobody has told it."""

    def __init__(self, node_id: int, peer: Address, election_port: int = 0, client: Address | None = None) -> None:
        self.node_id = node_id
        self.peer = peer
        self.election_port = election_port or peer[1]
        self.client = client

    def line(self) -> str:
        """`host:peer:election[;host:port]`."""
        text = f"{shown(self.peer)}:{self.election_port}"
        return text + (f";{shown(self.client)}" if self.client is not None else "")

    def zookeeper_line(self, role: str) -> str:
        """`server.N=host:peer:election:role[;host:port]`."""
        text = f"server.{self.node_id}={shown(self.peer)}:{self.election_port}:{role}"
        return text + (f";{shown(self.client)}" if self.client is not None else "")

    def __eq__(self, other: object) -> bool:
        """Same node at the same addresses."""
        return isinstance(other, MemberAddress) and self.node_id == other.node_id and self.line() == other.line()

    def __hash__(self) -> int:
        """Consistent with equality."""
        return hash((self.node_id, self.line()))

    def __repr__(self) -> str:
        """As in the attachment."""
        return f"{self.node_id}={self.line()}"


Members = dict[int, MemberAddress]


def shown(address: Address) -> str:
    """`host:port`, an IPv6 address in brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_host_port(text: str) -> Address:
    """`host:port` or `[v6]:port`. Raises ValueError."""
    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    # What is not printable could neither be encoded again nor be kept in one line.
    if not colon or not host or not _is_port(port) or not host.isprintable() or any(c in " =,;|/" for c in host):
        raise ValueError(f"{text!r} is not host:port")
    return host, int(port)


def parse_member(node_id: int, text: str) -> tuple[MemberAddress, str]:
    """What follows `server.N=`: the member and its role. Raises ValueError that says what is wrong."""
    if not 0 < node_id <= MEMBER_ID_MAX:
        raise ValueError(f"{node_id} is no server id")
    address, semicolon, client_text = text.strip().partition(";")
    host, *parts = _split(address)
    role = parts[2].lower() if len(parts) == 3 else PARTICIPANT
    if not host or not 2 <= len(parts) <= 3 or not _is_port(parts[0]) or not _is_port(parts[1]):
        raise ValueError(f"{text!r} is not host:port:port[:role][;[host:]port]")
    if role not in (PARTICIPANT, OBSERVER):
        raise ValueError(f"{role!r} is no role; {PARTICIPANT} and {OBSERVER} are")
    peer = parse_host_port(f"[{host}]:{parts[0]}" if ":" in host else f"{host}:{parts[0]}")
    client: Address | None = None
    if semicolon:
        client_text = client_text.strip()
        client = parse_host_port(client_text if ":" in client_text else f"{_ANYWHERE}:{client_text}")
    return MemberAddress(node_id, peer, int(parts[1]), client), role


def parse_server(text: str) -> tuple[MemberAddress, str]:
    """`server.N=…`: the member and its role. Raises ValueError."""
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
    """The attachment that says where these nodes are."""
    return "".join(f"{node_id}={members[node_id].line()}\n" for node_id in sorted(members)).encode()


def decode_members(attachment: bytes) -> Members:
    """The inverse of encode_members; empty for an attachment that nobody has written yet. Raises ValueError."""
    members: Members = {}
    for line in attachment.decode().splitlines():
        digits, equals, rest = line.partition("=")
        if not equals or not digits.isdecimal():
            raise ValueError(f"{line!r} is not id=host:port:port")
        members[int(digits)] = parse_member(int(digits), rest)[0]
    return members


def check_configuration(data: bytes) -> Configuration:
    """Decode the body of a CONFIG entry together with the addresses in it. Raises ValueError."""
    config = decode_configuration(data)
    decode_members(config.attachment)
    return config


def with_members(config: Configuration, members: Members) -> Configuration:
    """The same roles, with the addresses of those who have one."""
    known = {node_id: member for node_id, member in members.items() if config.is_member(node_id)}
    return config.with_attachment(encode_members(known))


def role_of(config: Configuration, node_id: int) -> str:
    """ZooKeeper's name for what a member is."""
    return PARTICIPANT if config.is_voter(node_id) else OBSERVER


def config_text(config: Configuration) -> bytes:
    """The server lines of /zookeeper/config; the version is the state machine's. Raises ValueError."""
    members = decode_members(config.attachment)
    lines = [members[i].zookeeper_line(role_of(config, i)) for i in config.members() if i in members]
    return "".join(f"{line}\n" for line in lines).encode()


def parse_config_text(data: bytes) -> tuple[dict[int, tuple[MemberAddress, str]], int]:
    """The content of /zookeeper/config: (node -> (member, role), version). Raises ValueError."""
    found: dict[int, tuple[MemberAddress, str]] = {}
    version = 0
    for line in data.decode().splitlines():
        if line.startswith("version="):
            version = int(line.partition("=")[2], 16)
        elif line.strip():
            member, role = parse_server(line)
            found[member.node_id] = (member, role)
    return found, version
