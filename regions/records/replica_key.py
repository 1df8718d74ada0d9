"""The key of a replica: its region's id, a dash, and its number. This is the only module that prints and parses it.

The key names the replica's transition below `/unassigned`, and appears in logs, commands and reports. A region id may
contain dashes and the number does not, so a key is parsed from its end.
"""

from __future__ import annotations

from typing import NewType

#: Printed form of (region id, replica number), as in `7c1e09aa.0004-0`.
ReplicaKey = NewType("ReplicaKey", str)


def replica_key(region_id: str, number: int) -> ReplicaKey:
    """Return the key of a region's replica."""
    key: ReplicaKey = f"{region_id}-{number}"  # type: ignore[assignment]  # a call of ReplicaKey doubles the time
    return key


def parse_replica_key(key: str) -> tuple[str, int]:
    """Return the region id and the number of the replica.

    Raises:
        ValueError: `key` is not a region id, a dash, and a number.
    """
    region_id, dash, number = key.rpartition("-")
    if not region_id or not dash or not (number.isascii() and number.isdigit()):
        raise ValueError(f"{key!r} is no key of a replica: it is not a region id, a dash and a number")
    return region_id, int(number)


def region_in(key: str) -> str:
    """Return the region id in the key of a replica."""
    return key[: key.rfind("-")]


def key_begin(directory: str) -> int:
    """Return where the key begins in a transition's path `<directory>/<two characters>/<key>`."""
    return len(directory) + 4


def key_in(path: str, directory: str) -> ReplicaKey | None:
    """Return the key at the end of a transition's path (see `key_begin`); None for another path."""
    begin = key_begin(directory)
    if len(path) < begin + 2 or not path.startswith(directory):
        return None
    key = path[begin:]
    region_id, _, number = key.rpartition("-")
    if not region_id or "/" in key or not (number.isascii() and number.isdigit()):
        return None
    found: ReplicaKey = key  # type: ignore[assignment]  # a call of ReplicaKey doubles the time
    return found


def has_key(path: str, begin: int) -> bool:
    """Return True if the path ends with a key that begins at `begin`, as `key_in` finds it without making the key."""
    dash = path.rfind("-", begin + 1)
    if dash < 0 or path.find("/", begin) >= 0:
        return False
    number = path[dash + 1 :]
    return number.isascii() and number.isdigit()


def is_key_of(region_id: str, key: str) -> bool:
    """Return True if `key`, which may be any text, is the key of a replica of this region."""
    try:
        return parse_replica_key(key)[0] == region_id
    except ValueError:
        return False
