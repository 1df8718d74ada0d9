"""Which paths can name a znode: the rules of ZooKeeper's PathUtils, over UTF-8 bytes."""

from __future__ import annotations

import re
from typing import Final

ROOT: Final = b"/"

# A name of printable ASCII, the usual case: decided without decoding.
_plain_name: Final = re.compile(rb"[\x20-\x2e\x30-\x7e]+").fullmatch

# Controls, private use, surrogates, specials; and everything beyond the basic plane, which ZooKeeper sees as
# surrogates.
_refused: Final = re.compile(r"[\x00-\x1f/\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]").search


def is_valid_name(name: bytes) -> bool:
    """Whether `name` can be the last part of a path."""
    if _plain_name(name) is not None:
        return name not in (b".", b"..")
    if not name or name.isascii():
        return False
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
    return path[: path.rfind(b"/")] or ROOT
