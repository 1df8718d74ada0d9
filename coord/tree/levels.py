"""Feature levels: the rules by which the commands of the log are planned.

All replicas must plan a command alike, also while nodes of two builds work together. If a build changes the plan of a
command, the change takes effect at a new level. The level in force is part of the replicated state: an entry of kind
LEVEL raises it, and every command after that entry is planned by it. A node never plans by the highest level that its
own build supports.

    body of a LEVEL entry := format:u8 (1)  level:u32

`coord.server.membership.levels` decides when the level rises and which nodes are rejected; docs/compatibility.md has
the operator's side.

To change a rule: add a level to LEVELS with one line that describes the change, check `StateMachine.has` where the
command is planned, and keep the older branch as long as a log of an older level may have to be read.
"""

from __future__ import annotations

import struct
from typing import Final

#: Every level and what it changes. Levels ascend by one; the last one is the highest that this build supports.
LEVELS: Final = (
    "builds without feature levels",
    "in a multi, a createTTL whose flags name no TTL is a create with these flags, as in ZooKeeper 3.9.5",
)
#: The highest level that this build supports.
SUPPORTED: Final = len(LEVELS) - 1

CREATE_TTL_IN_MULTI: Final = 1

_FORMAT: Final = 1
_BODY: Final = struct.Struct(">BI")


def encode_level(level: int) -> bytes:
    """Return the body of the entry that raises the level to `level`."""
    assert level >= 0, f"feature level {level}"
    return _BODY.pack(_FORMAT, level)


def decode_level(data: bytes) -> int:
    """Return the level in the body of a LEVEL entry; fields after the level are ignored. Raise ValueError."""
    if len(data) < _BODY.size or data[0] != _FORMAT:
        raise ValueError(f"not a feature level of format {_FORMAT}: {data[:16]!r}")
    level: int = _BODY.unpack_from(data)[1]
    return level
