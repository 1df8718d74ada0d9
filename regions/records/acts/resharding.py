"""A split or merge under way: the value of `/reshardings/<region id>`.

The znode is named after the first parent. It is written before the first step, so any later active master continues.
`regions/transitions/resharding.py` has the states and their steps.
"""

from __future__ import annotations

import enum

import msgspec

from regions.records.model import RegionRecord, WorkOrigin


class ReshardingState(enum.StrEnum):
    """State of a split or merge."""

    PREPARING = "PREPARING"  #: the parents are served; their servers copy rows into the daughters' files
    CLOSING = "CLOSING"  #: the parents are being closed; a tablet is being sealed
    CLEANING = "CLEANING"  #: the daughters have replaced the parents; the parents' files are still there


def seal_of(epoch: int, number: int) -> str:
    """Return the name of the seal of a split, the `number`th that the master of this epoch has begun."""
    return f"{epoch}.{number}"


def epoch_of_seal(seal: str) -> int:
    """Return the epoch of the master that began the split with this seal."""
    return int(seal.partition(".")[0])


class ReshardingRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Value of `/reshardings/<region id>`: one parent and two daughters (split), or two and one (merge)."""

    table_id: str
    #: Ids of the parents by key; the first one is the name of the znode.
    parents: tuple[str, ...]
    #: The daughters as they will be created, by key.
    daughters: tuple[RegionRecord, ...]
    state: ReshardingState = ReshardingState.PREPARING
    #: Origin of the request: an operator, or a setting of the table.
    reason: str = ""
    epoch: int = 0
    since_ms: int = 0
    #: When the daughters replaced the parents, by the clock of the master that wrote this. 0 until then, and in records
    #: of earlier builds.
    replaced_ms: int = 0
    #: Name of the seal of a parent that is a tablet: no other split has had it. "" for shared regions.
    seal: str = ""
    origin: WorkOrigin | None = None

    @property
    def region_id(self) -> str:
        """Return the id of the first parent, which names the work."""
        return self.parents[0]

    @property
    def is_merge(self) -> bool:
        """Return True if two regions become one."""
        return len(self.parents) > 1

    @property
    def words(self) -> str:
        """Return a description of the work for people."""
        if self.is_merge:
            return f"merge of {' and '.join(self.parents)}"
        return f"split of {self.region_id} at {self.daughters[1].start_key!r}"
