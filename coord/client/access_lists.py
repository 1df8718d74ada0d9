"""Differences between a znode's access list and the wanted one. Pure.

The wanted list has all permissions for the masters, some for region servers, and reading for operators. A client
without the permission ADMIN reads `x` in place of each digest. Such a list shows only the permissions of everybody.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

#: Permission bits in ZooKeeper's order, with the letters of its command line.
_LETTERS: Final = "rwcda"
_ALL: Final = 31
#: Schemes that prove nothing: anybody may have the address.
UNPROVED: Final = ("world", "ip")
_MASKED: Final = "x"


class AccessLine(NamedTuple):
    """One line of an access list."""

    perms: int
    scheme: str
    id: str


class AccessVerdict(enum.Enum):
    """Differences between an access list and the wanted one, the worst first."""

    OPEN = "open"  #: somebody who proves nothing has a permission
    LACKING = "lacking"  #: the cluster's credential lacks permissions: daemons are locked out
    STRANGE = "strange"  #: another identity has permissions
    UNREADABLE = "unreadable"  #: a reader or a region server has fewer permissions than it needs
    RIGHT = "right"


def compare(found: Sequence[AccessLine], wanted: Sequence[AccessLine]) -> AccessVerdict:
    """Return how `found` differs from `wanted`, whose lines with all permissions are the masters'."""
    granted, sought = _by_identity(found), _by_identity(wanted)
    if any(identity[0] in UNPROVED and perms & ~sought.get(identity, 0) for identity, perms in granted.items()):
        return AccessVerdict.OPEN
    if _is_masked(found):
        return AccessVerdict.RIGHT
    if any(granted.get(owner) != _ALL for owner in _owners(wanted)):
        return AccessVerdict.LACKING
    if any(perms & ~sought.get(identity, 0) for identity, perms in granted.items()):
        return AccessVerdict.STRANGE
    return AccessVerdict.RIGHT if granted == sought else AccessVerdict.UNREADABLE


def has_credential(found: Sequence[AccessLine], wanted: Sequence[AccessLine]) -> bool:
    """Return True if `found` gives the daemons of `wanted` all permissions. Its other lines do not matter."""
    granted = _by_identity(found)
    owners = _owners(wanted)
    return bool(owners) and all(granted.get(owner) == _ALL for owner in owners)


def has_lines(found: Iterable[AccessLine], identities: Iterable[tuple[str, str]]) -> bool:
    """Return True if `found` gives each of these identities something."""
    return set(identities) <= _by_identity(found).keys()


def describe(found: Iterable[AccessLine]) -> str:
    """Return a list in words, without hashes: `everyone may rwcda, digest ops may r`."""
    parts = []
    for line in found:
        name = "everyone" if line.scheme == "world" else f"{line.scheme} {_user(line)}"
        parts.append(f"{name} may {letters(line.perms)}")
    return ", ".join(parts) or "nobody may do anything"


def letters(perms: int) -> str:
    """Return permissions as ZooKeeper's command line does: r, w, c, d, a; `nothing` for none."""
    return "".join(letter for bit, letter in enumerate(_LETTERS) if perms >> bit & 1) or "nothing"


def _owners(wanted: Iterable[AccessLine]) -> list[tuple[str, str]]:
    """Return the identities of the daemons."""
    return [(line.scheme, line.id) for line in wanted if line.perms == _ALL]


def _by_identity(lines: Iterable[AccessLine]) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for line in lines:
        key = (line.scheme, line.id)
        found[key] = found.get(key, 0) | line.perms
    return {key: perms for key, perms in found.items() if perms}


def _is_masked(lines: Iterable[AccessLine]) -> bool:
    return any(line.scheme == "digest" and line.id.partition(":")[2] == _MASKED for line in lines)


def _user(line: AccessLine) -> str:
    return line.id.partition(":")[0] if line.scheme == "digest" else line.id
