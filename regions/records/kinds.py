"""Kinds of service: what a region server's opener does, and what a table's regions require.

A kind is a name and a version, such as "kv/1". A region server registers the kind of its opener; a table's record names
the kind that its regions require. A server may open a table's regions if the names are equal and the server's version
is at least the table's: a later version of a service reads data written by earlier ones.

A record without a kind was written by an older build, or by a caller that named no kind; it counts as `KV`.

Planners know groups only. They treat a group and a kind together as one *pool*, named by `pool`; the version is checked
when the plan is carried out.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Final

from regions.records.members import Storage

#: The key-value service that comes with RegionKeeper.
KV: Final = "kv/1"
#: Built-in openers for tests and measurements: directories without rows, and nothing at all.
DIRECTORIES: Final = "directories/1"
NOTHING: Final = "none/1"
#: Kind of servers without a shared directory: they keep the key-value rows of tablets and open no shared region. No
#: table has this kind, so masters of earlier builds assign no region to these servers.
TABLETS_ALONE: Final = "tablets/1"

_KV_NAME: Final = KV.partition("/")[0]
_TABLETS_ALONE_NAME: Final = TABLETS_ALONE.partition("/")[0]

#: Maximum length of a kind. Kinds are short because every registration and every list of tables carries them.
KIND_MAX: Final = 64
_NAME: Final = r"[a-z][a-z0-9_.-]*"
_KIND: Final = re.compile(rf"({_NAME})/([1-9][0-9]{{0,5}})")
_BARE: Final = re.compile(_NAME)
#: Separates group and kind in the name of a pool. A group's name must not contain it.
_POOL_MARK: Final = "#"


def check_kind(kind: str) -> None:
    """Raise ValueError with the reason if a text is not a valid kind."""
    if len(kind) > KIND_MAX or _KIND.fullmatch(kind) is None:
        raise ValueError(
            f"{kind!r} is no kind of service: it is a name of lower-case letters, digits and _.- with a version,"
            f" such as {KV!r}, of at most {KIND_MAX} characters"
        )


def check_group(group: str) -> None:
    """Raise ValueError with the reason if a group's name could be mistaken for a pool's."""
    if _POOL_MARK in group:
        raise ValueError(f"group {group!r} has a {_POOL_MARK} in its name, which is not allowed")


def kind_name(kind: str) -> str:
    """Return the kind's name without its version."""
    return (kind or KV).partition("/")[0]


def _version(kind: str) -> int:
    found = _KIND.fullmatch(kind or KV)
    return 0 if found is None else int(found[2])


@functools.cache
def can_open(server_kind: str, table_kind: str) -> bool:
    """Return True if a server of `server_kind` may open the regions of a table of `table_kind`."""
    return kind_name(server_kind) == kind_name(table_kind) and _version(server_kind) >= _version(table_kind)


@functools.cache
def takes_tablets_alone(server_kind: str) -> bool:
    """Return True for a server without a shared directory."""
    return kind_name(server_kind) == _TABLETS_ALONE_NAME


def kind_in_tablets(server_kind: str) -> str:
    """Return the kind of the rows that a server keeps in replicas of tablets."""
    return KV if takes_tablets_alone(server_kind) else server_kind


def may_host(weight: float, server_group: str, server_kind: str, *, group: str, kind: str) -> bool:
    """Return True if a server with these properties may have regions of a table of `group` and `kind`."""
    return weight > 0 and server_group == group and can_open(server_kind, kind)


def resolve(wanted: str, offered: Iterable[str]) -> str:
    """Return the kind of a new table; `offered` are the kinds of the live servers that the table may be opened on.

    `wanted` is a kind, a name without a version, or "" for the only kind that the servers offer. Of several versions of
    a name, return the lowest: every server of that name can open the table. Without servers, "" means `KV`.

    Raises:
        ValueError: `wanted` is not a kind, or the kind is ambiguous.
    """
    if kind_name(wanted) == _TABLETS_ALONE_NAME:
        raise ValueError(f"{wanted!r} is a kind of servers: a table of tablets has kind {KV} and --storage tablet")
    if "/" in wanted:
        check_kind(wanted)
        return wanted
    by_name: dict[str, list[str]] = {}
    for kind in offered:
        by_name.setdefault(kind_name(kind), []).append(kind or KV)
    if wanted:
        if _BARE.fullmatch(wanted) is None or len(wanted) > KIND_MAX:
            check_kind(wanted)
        if wanted not in by_name:
            raise ValueError(f"no live server offers the kind {wanted!r}: name its version as well, as in {wanted}/1")
        return min(by_name[wanted], key=_version)
    if len(by_name) > 1:
        several = ", ".join(sorted(min(kinds, key=_version) for kinds in by_name.values()))
        raise ValueError(f"the live servers are of several kinds ({several}): choose the table's kind with --kind")
    return min(next(iter(by_name.values())), key=_version) if by_name else KV


def one_copy(kind: str, replication: int, storage: Storage) -> str:
    """Return a warning if fewer copies of the rows are kept than the table's replication suggests, else "".

    Replicas of a shared key-value region are opened on several servers, but no process copies rows between them.
    """
    if replication <= 1 or storage is not Storage.SHARED or kind_name(kind) != _KV_NAME:
        return ""
    return (
        f"replication is {replication}, and one copy of the rows is kept: kind {kind or KV} copies no rows to replicas"
    )


def pool(group: str, kind: str) -> str:
    """Return the planners' name for the servers and tables of one group and one kind."""
    name = kind_name(kind)
    return group if name == _KV_NAME else f"{group}{_POOL_MARK}{name}"


def pool_words(name: str) -> str:
    """Return a pool's name for operators: the group ("(default)" for the unnamed one), and the kind if not `KV`."""
    group, mark, kind = name.partition(_POOL_MARK)
    return f"{group or '(default)'}{f' of kind {kind}' if mark else ''}"


__all__ = [
    "DIRECTORIES",
    "KIND_MAX",
    "KV",
    "NOTHING",
    "TABLETS_ALONE",
    "can_open",
    "check_group",
    "check_kind",
    "kind_in_tablets",
    "kind_name",
    "one_copy",
    "pool",
    "pool_words",
    "resolve",
    "takes_tablets_alone",
]
