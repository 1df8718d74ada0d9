"""Superblocks and consensus metadata of a tablet, for tests."""

from __future__ import annotations

from typing import Any, Final

from coord.raft.membership import Configuration
from regionserver.tablets.disk.consensus_meta import ConsensusMeta
from regionserver.tablets.disk.life import DataState
from regionserver.tablets.disk.superblock import Memory, Superblock

TABLET: Final = "t1.r7"
SERVER: Final = "0f3c-server"
MEMORY: Final = Memory(term=5, vote=2, last_term=4, last_index=117)
MEMBERS: Final = Configuration([1, 2, 3], attachment=b'{"1":"a"}')


def ready(**changes: Any) -> Superblock:
    """Return the superblock of a running replica: member 2, generation 3, slot 9."""
    fields: dict[str, Any] = {
        "server": SERVER,
        "tablet": TABLET,
        "data_state": DataState.READY,
        "number": 2,
        "highest_number": 2,
        "generation": 3,
        "slot": 9,
        "table": "orders",
        "start_key": "ä",
        "end_key": "k",
        "hash_buckets": 4,
        "created_ms": 1000,
        "changed_ms": 1000,
    }
    return Superblock(**{**fields, **changes})


def tombstone(**changes: Any) -> Superblock:
    """Return the tombstone of the replica of `ready`."""
    fields: dict[str, Any] = {
        "data_state": DataState.DELETED,
        "generation": 4,
        "slot": None,
        "memory": MEMORY,
        "quarantine": f"quarantine/{TABLET}.3",
    }
    return ready(**{**fields, **changes})


def meta(**changes: Any) -> ConsensusMeta:
    """Return the consensus metadata of member 2."""
    fields: dict[str, Any] = {
        "tablet": TABLET,
        "number": 2,
        "config_term": 0,
        "config_index": 0,
        "configuration": MEMBERS.encode(),
    }
    return ConsensusMeta(**{**fields, **changes})
