"""Access lists: who may do what with a znode.

An access list is a list of lines `permissions scheme:id`; a session has identities `(scheme, id)`, replicated with the
session, so that every replica decides alike. Schemes: world (anyone), ip (address, with or without /bits), digest
(user:base64 of SHA-1), x509 and sasl (compared as they are). `auth` is not kept: it stands for the identities of the
session that names it and is replaced by them when the command is planned. An identity of scheme `super` may do all.

Lists are shared: a tree of a million znodes usually has a handful. Whoever has the same list has the same object.
"""

from __future__ import annotations

import re
from typing import Final

from crc32c import crc32c

from coord.wire.codec import encode_acl
from coord.wire.opcodes import PERM_ALL, PERM_READ
from coord.wire.values import OPEN_ACL, Acl

Identity = tuple[bytes, bytes]

WORLD: Final = b"world"
ANYONE: Final = b"anyone"
AUTH: Final = b"auth"
IP: Final = b"ip"
DIGEST: Final = b"digest"
SUPER: Final = b"super"

#: Schemes that prove who somebody is: what `auth` expands to. An address proves nothing, and `super` is no name of
#: anybody's: a superuser's own lines are the others (ZooKeeper 3.9.5).
PROVING_SCHEMES: Final = (DIGEST, b"x509", b"sasl")
#: Schemes that a session may be given identities of.
IDENTITY_SCHEMES: Final = (IP, SUPER, *PROVING_SCHEMES)


#: A Kerberos name; what is no such name has no @ (ZooKeeper's KerberosName).
_is_principal: Final = re.compile(rb"[^/@]*(/[^/@]*)?@[^/@]*").fullmatch
# What Java's Integer.parseInt takes, and is not too long to be an address.
_is_decimal: Final = re.compile(rb"[+-]?[0-9]{1,12}").fullmatch
_is_hex: Final = re.compile(rb"[+-][0-9a-fA-F]{1,3}|[0-9a-fA-F]{1,4}").fullmatch


class AccessList:
    """An access list as znodes share it.

    `world` is what everybody may do: one test of it answers almost every check. `encoded` is the list's jute form,
    `stamp` its checksum for the digest, `refs` how many znodes have it.
    """

    def __init__(self, lines: list[Acl]) -> None:
        self.lines = lines
        self.encoded: bytes = encode_acl(lines)
        self.stamp: int = crc32c(self.encoded)
        self.refs: int = 0
        world = 0
        for line in lines:
            if line.scheme == WORLD and line.id == ANYONE:
                world |= line.perms
        self.world: int = world

    def allows(self, perms: int, identities: list[Identity]) -> bool:
        """Return True if a session with `identities` has one of the permission bits `perms`."""
        return self.world & perms != 0 or _identity_allows(self.lines, perms, identities)

    def masked(self) -> bytes:
        """The encoded list with every digest replaced by `x`, for those who may read but not administer."""
        lines: list[Acl] = []
        for line in self.lines:
            user, colon, _ = line.id.partition(b":")
            if line.scheme == DIGEST and colon:
                line = Acl(line.perms, DIGEST, user + b":x")
            lines.append(line)
        return encode_acl(lines)


#: Everybody may do everything.
OPEN: Final = AccessList(OPEN_ACL)
#: Everybody may read; only `super` may change. The list of /zookeeper/config.
READ_ONLY: Final = AccessList([Acl(PERM_READ, WORLD, ANYONE)])


def _identity_allows(lines: list[Acl], perms: int, identities: list[Identity]) -> bool:
    for scheme, _ in identities:
        if scheme == SUPER:
            return True
    for line in lines:
        if line.perms & perms == 0:
            continue
        for scheme, identity in identities:
            if scheme == line.scheme and _matches(scheme, identity, line.id):
                return True
    return False


def _matches(scheme: bytes, identity: bytes, wanted: bytes) -> bool:
    if scheme != IP or identity == wanted:
        return identity == wanted
    network = _network(wanted)
    address = _address(identity)
    if network is None or address is None or len(network[0]) != len(address):
        return False
    drop = 8 * len(address) - network[1]
    return int.from_bytes(network[0], "big") >> drop == int.from_bytes(address, "big") >> drop


def _network(text: bytes) -> tuple[bytes, int] | None:
    """`address` or `address/bits` as (bytes of the address, bits); what is behind the prefix does not matter.

    None for anything else. What counts as an address or a number is as in ZooKeeper's IPAuthenticationProvider:
    `01.2.3.4` does, an IPv4 address within an IPv6 one does not.
    """
    host, slash, length = text.partition(b"/")
    address = _address(host)
    if address is None:
        return None
    bits = _number(length) if slash else 8 * len(address)
    return (address, bits) if 0 <= bits <= 8 * len(address) else None


def _address(text: bytes) -> bytes | None:
    if b":" in text:
        head, gap, tail = text.partition(b"::")
        first, last = _groups(head), _groups(tail)
        if first is None or last is None:
            return None
        missing = 16 - len(first) - len(last)
        # A gap stands for one group at least.
        return first + bytes(missing) + last if (missing > 0 if gap else missing == 0) else None
    parts = text.split(b".")
    numbers = [_number(part) for part in parts]
    return bytes(numbers) if len(parts) == 4 and all(0 <= number <= 255 for number in numbers) else None


def _groups(text: bytes) -> bytes | None:
    """The bytes of some groups of an IPv6 address; None for what is none."""
    found = bytearray()
    for group in text.split(b":") if text else []:
        if _is_hex(group) is None:
            return None
        found += (int(group, 16) & 0xFFFF).to_bytes(2, "big")
    return bytes(found)


def _number(text: bytes) -> int:
    """A number of an address or of bits; -1 for what is none."""
    return int(text) if _is_decimal(text) is not None else -1


def resolve(lines: list[Acl] | None, identities: list[Identity]) -> AccessList | None:
    """The access list that a request's lines stand for, or None if they are invalid (InvalidACL).

    Doubles are dropped, then `auth` is replaced by the session's proven identities. The result is not yet the shared
    object of that content; the tree sees to that when it takes it.
    """
    if not lines:
        return None
    if lines is OPEN_ACL:
        return OPEN
    first = lines[0]
    if len(lines) == 1 and first.scheme == WORLD and first.id == ANYONE and first.perms == PERM_ALL:
        return OPEN
    resolved: list[Acl] = []
    for line in dict.fromkeys(lines):
        if line.scheme == AUTH:
            proven = [identity for identity in identities if identity[0] in PROVING_SCHEMES]
            if not proven:
                return None
            for scheme, identity in proven:
                resolved.append(Acl(line.perms, scheme, identity))
        elif _is_valid(line):
            resolved.append(line)
        else:
            return None
    return AccessList(resolved)


def _is_valid(line: Acl) -> bool:
    if line.scheme == WORLD:
        return line.id == ANYONE
    if line.scheme == DIGEST:
        # As ZooKeeper counts: parts that are empty do not count at the end.
        return line.id.rstrip(b":").count(b":") == 1
    if line.scheme == IP:
        return _network(line.id) is not None
    if line.scheme == b"sasl":
        return b"@" not in line.id or _is_principal(line.id) is not None
    return line.scheme == b"x509" and line.id != b""


def user_of(identity: Identity) -> bytes:
    """The name that whoAmI shows: of a digest the user alone."""
    scheme, name = identity
    return name.partition(b":")[0] if scheme == DIGEST else name
