"""A split or merge in the store, and the regions of the simulated table."""

from __future__ import annotations

from collections.abc import Sequence

from regions.records.acts.resharding import ReshardingState
from regions.records.members import Member
from regions.records.model import RegionRecord
from simulation.engine.history import Violation


class SimSplit:
    """One attempt to split a tablet, or to merge two. Its records, `state`, daughters and indexes are in the store; the
    rest is the master's memory."""

    def __init__(
        self, name: str, parents: Sequence[RegionRecord], daughters: Sequence[RegionRecord], began: int
    ) -> None:
        """`parents` are in the order of their keys."""
        self.name = name
        self.parents = parents
        self.daughters = daughters
        self.state = ReshardingState.PREPARING
        #: Indexes of the seals, once the daughters have replaced the parents; and the servers of their first members.
        self.indexes: dict[str, int] = {}
        self.members: tuple[Member, ...] = ()
        #: When a leader was first asked for the seal: no parent's clock is lower at its seal.
        self.asked_ms = 0
        #: The parent that is sealed last, and the time after the others at which a leader is asked for that seal.
        self.last = ""
        self.last_us = 0
        #: Time of the last step.
        self.since = began
        #: Servers that have prepared the daughters.
        self.prepared: set[str] = set()
        #: Answers of the leaders of sealed parents: the index of the seal, and the members.
        self.sealed: dict[str, tuple[int, tuple[Member, ...]]] = {}
        #: Time after which the next step is taken even if not all servers have prepared, or the split is canceled.
        self.patience_us = 0

    @property
    def tablet(self) -> str:
        """The first parent, which names the work."""
        return self.parents[0].region_id

    @property
    def tablets(self) -> list[str]:
        """All parents."""
        return [one.region_id for one in self.parents]

    @property
    def is_merge(self) -> bool:
        """True if two tablets become one."""
        return len(self.parents) > 1


class SimRegions:
    """The regions of the table in the store: the whole key space, at every moment."""

    def __init__(self) -> None:
        self.records: dict[str, RegionRecord] = {}

    def replace(self, parents: Sequence[str], daughters: Sequence[RegionRecord]) -> None:
        """Replace regions by their daughters. Raise Violation for a hole or an overlap."""
        before = self.records[parents[0]]
        for parent in parents:
            del self.records[parent]
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
