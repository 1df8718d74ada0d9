"""A split in the store, and the regions of the simulated table."""

from __future__ import annotations

from collections.abc import Sequence

from regions.records.acts.resharding import ReshardingState
from regions.records.members import Member
from regions.records.model import RegionRecord
from simulation.engine.history import Violation


class SimSplit:
    """One attempt to split a tablet. Its record, `state`, daughters and index are in the store; the rest is the
    master's memory."""

    def __init__(self, name: str, parent: RegionRecord, daughters: Sequence[RegionRecord], began: int) -> None:
        self.name = name
        self.parent = parent
        self.daughters = daughters
        self.state = ReshardingState.PREPARING
        #: Index of the seal, once the daughters have replaced the parent; and the servers of their first members.
        self.index = 0
        self.members: tuple[Member, ...] = ()
        #: Time of the last step.
        self.since = began
        #: Servers that have prepared the daughters.
        self.prepared: set[str] = set()
        #: Time after which the next step is taken even if not all servers have prepared, or the split is canceled.
        self.patience_us = 0

    @property
    def tablet(self) -> str:
        """The parent."""
        return self.parent.region_id


class SimRegions:
    """The regions of the table in the store: the whole key space, at every moment."""

    def __init__(self) -> None:
        self.records: dict[str, RegionRecord] = {}

    def replace(self, parent: str, daughters: Sequence[RegionRecord]) -> None:
        """Replace a region by its daughters. Raise Violation for a hole or an overlap."""
        before = self.records.pop(parent)
        for one in daughters:
            self.records[one.region_id] = one
        bounds = sorted((one.start_key, one.end_key) for one in self.records.values() if _root(one) == _root(before))
        ends = [end for _, end in bounds]
        if bounds[0][0] or ends[-1] or [start for start, _ in bounds[1:]] != ends[:-1]:
            raise Violation(f"the key space has a hole or an overlap: {bounds}")

    def tablet_of(self, root: str, key: str) -> str:
        """Return the tablet of a key, among those that come from a first tablet."""
        return next(name for name, one in self.records.items() if _root(one) == root and one.contains(key))


def _root(record: RegionRecord) -> str:
    return record.table_id
