"""Access lists: the permissions of identities on a znode.

An access list is a list of entries `permissions scheme:id`. A session has identities `(scheme, id)`, replicated with
the session, so that every replica decides alike. Schemes: world (anyone), ip (address, with or without /bits), digest
(user:base64 of SHA-1), x509, sasl and rk (compared literally; ZooKeeper has no rk). `auth` is not stored: planning a
command replaces it by the identities of the session. An identity of scheme `super` has all permissions.

Lists are shared: a tree of a million znodes usually has a handful of them. Equal lists are one object.
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

#: Schemes that authenticate: `auth` stands for the identities of these schemes. An address authenticates nobody.
#: `super` is not a user name, so a superuser's other identities are used (ZooKeeper 3.9.5).
PROVING_SCHEMES: Final = (DIGEST, b"x509", b"sasl", b"rk")
#: Schemes in which a session may have identities.
IDENTITY_SCHEMES: Final = (IP, SUPER, *PROVING_SCHEMES)


#: A Kerberos name. An id of another form must not contain @ (ZooKeeper's KerberosName).
_is_principal: Final = re.compile(rb"[^/@]*(/[^/@]*)?@[^/@]*").fullmatch
# Numbers that Java's Integer.parseInt accepts and that are not too long for an address.
_is_decimal: Final = re.compile(rb"[+-]?[0-9]{1,12}").fullmatch
_is_hex: Final = re.compile(rb"[+-][0-9a-fA-F]{1,3}|[0-9a-fA-F]{1,4}").fullmatch


class AccessList:
    """An access list, shared by all znodes with the same entries.

    `world` has the permissions of everyone: one test of it decides almost every check. `encoded` is the list's jute
    form, `stamp` its checksum for the digest, `refs` the number of znodes that have the list.
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
        """Return the encoded list with every digest replaced by `x`, for sessions with READ but not ADMIN
        permission."""
        lines: list[Acl] = []
        for line in self.lines:
            user, colon, _ = line.id.partition(b":")
            if line.scheme == DIGEST and colon:
                line = Acl(line.perms, DIGEST, user + b":x")
            lines.append(line)
        assert len(lines) == len(self.lines), "a masked list has as many lines"
        return encode_acl(lines)


#: All permissions for everyone.
OPEN: Final = AccessList(OPEN_ACL)
#: READ for everyone, other permissions only for `super`. The list of /zookeeper/config.
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
    """Parse `address` or `address/bits` into (bytes of the address, bits). Bits after the prefix are ignored.

    Return None for anything else. Addresses and numbers are accepted as by ZooKeeper's IPAuthenticationProvider:
    `01.2.3.4` is accepted, an IPv4 address within an IPv6 address is not.
    """
    host, slash, length = text.partition(b"/")
    address = _address(host)
    if address is None:
        return None
    assert len(address) in (4, 16), f"an address of {len(address)} bytes"
    bits = _number(length) if slash else 8 * len(address)
    return (address, bits) if 0 <= bits <= 8 * len(address) else None


def _address(text: bytes) -> bytes | None:
    if b":" in text:
        head, gap, tail = text.partition(b"::")
        first, last = _groups(head), _groups(tail)
        if first is None or last is None:
            return None
        missing = 16 - len(first) - len(last)
        # A gap stands for at least one group.
        return first + bytes(missing) + last if (missing > 0 if gap else missing == 0) else None
    parts = text.split(b".")
    numbers = [_number(part) for part in parts]
    return bytes(numbers) if len(parts) == 4 and all(0 <= number <= 255 for number in numbers) else None


def _groups(text: bytes) -> bytes | None:
    """Return the bytes of some groups of an IPv6 address, or None if they are malformed."""
    found = bytearray()
    for group in text.split(b":") if text else []:
        if _is_hex(group) is None:
            return None
        found += (int(group, 16) & 0xFFFF).to_bytes(2, "big")
    return bytes(found)


def _number(text: bytes) -> int:
    """Return a number of an address or of bits, or -1 if it is malformed."""
    return int(text) if _is_decimal(text) is not None else -1


def resolve(lines: list[Acl] | None, identities: list[Identity]) -> AccessList | None:
    """Return the access list for a request's entries, or None if they are invalid (InvalidACL).

    Drop duplicates, then replace `auth` by the session's authenticated identities. The result is not yet the shared
    object for these entries; the tree shares it when it stores it.
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
        # As in ZooKeeper, empty parts at the end do not count.
        return line.id.rstrip(b":").count(b":") == 1
    if line.scheme == IP:
        return _network(line.id) is not None
    if line.scheme == b"sasl":
        return b"@" not in line.id or _is_principal(line.id) is not None
    return line.scheme in (b"x509", b"rk") and line.id != b""


def user_of(identity: Identity) -> bytes:
    """Return the name that whoAmI shows: for a digest only the user."""
    scheme, name = identity
    return name.partition(b":")[0] if scheme == DIGEST else name
