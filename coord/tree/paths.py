"""Which paths can name a znode: the rules of ZooKeeper's PathUtils, over UTF-8 bytes."""

from __future__ import annotations

import re
from typing import Final

from mypy_extensions import i64

from coord.wire.jute import IS_COMPILED

ROOT: Final = b"/"
SLASH: Final = ord("/")

_plain_name: Final = re.compile(rb"[\x20-\x2e\x30-\x7e]+").fullmatch
_DOT: Final = ord(".")

# Controls, private use, surrogates, specials; and everything beyond the basic plane, which ZooKeeper sees as
# surrogates.
_refused: Final = re.compile(r"[\x00-\x1f/\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]").search


def last_slash(path: bytes) -> int:
    """Where the last slash of `path` is: what is in front of it is the parent. -1 without one."""
    if not IS_COMPILED:
        return path.rfind(b"/")
    at: i64 = len(path) - 1
    while at >= 0 and path[at] != SLASH:
        at -= 1
    return at


def _is_plain(path: bytes, at: int) -> bool:
    """Whether `path[at:]` is printable ASCII that does not begin with a dot, the usual case: decided without a copy."""
    if not IS_COMPILED:
        return _plain_name(path, at) is not None and path[at] != _DOT
    start: i64 = at
    end: i64 = len(path)
    if start >= end or path[start] == _DOT:
        return False
    while start < end:
        byte = path[start]
        if byte < 0x20 or byte > 0x7E or byte == SLASH:
            return False
        start += 1
    return True


def is_valid_name(path: bytes, at: int = 0) -> bool:
    """Whether `path[at:]` can be the last part of a path."""
    if _is_plain(path, at):
        return True
    name = path[at:]
    if name.isascii():
        return name not in (b".", b"..") and _plain_name(name) is not None
    try:
        text = name.decode()
    except UnicodeDecodeError:
        return False
    return _refused(text) is None


def is_valid_path(path: bytes) -> bool:
    """Whether `path` is absolute and all its parts are valid names; the root is."""
    if path == ROOT:
        return True
    if not path.startswith(ROOT):
        return False
    return all(is_valid_name(name) for name in path[1:].split(b"/"))


def parent_of(path: bytes) -> bytes:
    """The path of the parent; `path` is valid and not the root."""
    return path[: last_slash(path)] or ROOT
