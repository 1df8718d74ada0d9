"""Feature levels: by which rules the commands of the log are answered.

All replicas must answer a command alike, also while nodes of two builds work together. A build that answers some
command otherwise than the build before does so from a new level on. The level in force is part of the replicated state:
an entry of kind LEVEL raises it, and every command behind that entry is planned by it. A node never plans by the
highest level that its own build supports.

    body of a LEVEL entry := format:u8 (1)  level:u32

How the level rises, and who is refused, is in `coord.server.membership.levels`; docs/compatibility.md has the
operator's side.

To change an answer: add a level to LEVELS with one line that says what changes, ask `StateMachine.level` where the
command is planned, and keep the older branch for as long as a log of an older level may have to be read.
"""

from __future__ import annotations

import struct
from typing import Final

#: Every level and what it changes. Levels ascend by one; the last one is the highest that this build supports.
LEVELS: Final = (
    "builds from before there were feature levels",
    "in a multi, a createTTL whose flags name no TTL is a create with these flags, as in ZooKeeper 3.9.5",
)
#: The highest level that this build supports.
SUPPORTED: Final = len(LEVELS) - 1

CREATE_TTL_IN_MULTI: Final = 1

_FORMAT: Final = 1
_BODY: Final = struct.Struct(">BI")


def encode_level(level: int) -> bytes:
    """Return the body of the entry that raises the level to `level`."""
    return _BODY.pack(_FORMAT, level)


def decode_level(data: bytes) -> int:
    """Return the level in the body of a LEVEL entry; fields behind the level are ignored. Raises ValueError."""
    if len(data) < _BODY.size or data[0] != _FORMAT:
        raise ValueError(f"not a feature level of format {_FORMAT}: {data[:16]!r}")
    level: int = _BODY.unpack_from(data)[1]
    return level
