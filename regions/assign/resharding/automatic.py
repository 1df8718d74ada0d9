"""Chooses regions to split or merge by the settings of their tables (X11). Measured sizes in, proposals out; pure.

`split_above` and `merge_below` of a table are bytes; 0 is off. A proposal is carried out like an operator's request,
with all checks, so a wrong proposal is rejected without harm.

**Splits and merges must not undo each other.** Halves of a region above `split_above` have about half of it, and two
merged regions at most `split_above / 2` together. `merge_below` is at most a quarter of `split_above`, so neither
halves nor merged regions are near the other limit. In addition, two rounds in a row must find the region too large or
too small, each by a size that a server has measured.

**Few at once, and only in quiet.** At most AT_ONCE_MAX splits and merges are under way in the cluster. None begins
while a server is drained, while more than MOVING_MAX replicas are in transition, while a plan is applied, or for
QUIET_MS after a server went away or the master took over.

Each step examines a slice of SLICE regions, for tables of any size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from regions.assign.resharding.objections import objection_to_region, objection_to_table
from regions.cluster.entities import Region, Table
from regions.cluster.state import ClusterState
from regions.records.formats import KNOWN
from regions.records.model import Incarnation, TableRecord

#: Time between the beginnings of two rounds through all tables with settings.
ROUND_MS: Final = 10_000
#: Regions that are looked at in one step.
SLICE: Final = 2_000
#: Splits and merges under way at once, those of operators included.
AT_ONCE_MAX: Final = 2
#: More replicas in transition than this mean trouble: then nothing is split or merged.
MOVING_MAX: Final = 10
#: Time without splits and merges after a server went away, and at the beginning of a tenure.
QUIET_MS: Final = 30_000
#: Time after a refused proposal before the same one is made again.
REFUSED_MS: Final = 600_000
#: `merge_below` is at most this part of `split_above`.
MERGE_PART: Final = 4


class SizeProposal(NamedTuple):
    """A region to be split in the middle of its bytes, or two neighbors to be merged; `why` is for the history."""

    regions: tuple[str, ...]
    why: str


def objection_to_settings(split_above: int, merge_below: int) -> str:
    """Return why a table cannot have these settings, "" if it can."""
    if split_above < 0 or merge_below < 0:
        return "--split-above and --merge-below are not negative"
    if split_above and merge_below * MERGE_PART > split_above:
        return (
            f"--merge-below {merge_below} is more than a quarter of --split-above {split_above}: regions would be split"
            " and merged again and again"
        )
    return ""


def limits_words(record: TableRecord) -> str:
    """Return a table's settings for people; "" without any."""
    words = [f"a region above {record.split_above} bytes is split"] if record.split_above else []
    words += [f"neighbors below {record.merge_below} bytes are merged"] if record.merge_below else []
    return " and ".join(words)


def pause_of(world: ClusterState) -> str:
    """Return why the state of the cluster forbids splits and merges by settings now, "" if it does not."""
    draining = next((one for one in world.servers.values() if one.draining), None)
    if draining is not None:
        return f"server {draining.record.name} is drained"
    moving = 0
    for replica in world.active.values():
        moving += replica.transition is not None and not replica.region.resharding
        if moving > MOVING_MAX:
            return f"more than {MOVING_MAX} regions are in transition"
    return ""


class Automatic:
    """The splits and merges that the settings of tables require. One object per tenure."""

    def __init__(self, now_ms: int) -> None:
        self._quiet_from_ms = now_ms + QUIET_MS
        self._next_round_ms = 0
        self._servers: frozenset[Incarnation] = frozenset()
        #: Regions that are still to be looked at in this round.
        self._left: list[Region] = []
        #: Small regions of this round, by table and start key.
        self._small: dict[tuple[str, str], tuple[Region, int]] = {}
        #: Parents' ids found by the previous round, and by this round so far.
        self._before: set[tuple[str, ...]] = set()
        self._found: set[tuple[str, ...]] = set()
        #: Parents of refused proposals, with the time of the next look.
        self._refused: dict[tuple[str, ...], int] = {}

    def refused(self, proposal: SizeProposal, now_ms: int) -> None:
        """Make no proposal for a while after one was refused or canceled.

        Measured sizes may have been old: a split may be refused because its region has no rows any more, and then the
        region must be merged.
        """
        self._refused[proposal.regions] = now_ms + REFUSED_MS

    def step(
        self,
        world: ClusterState,
        size_of: Callable[[Region], int | None],
        objection_now: Callable[[Region], str],
        under_way: int,
        busy: str,
        now_ms: int,
    ) -> list[SizeProposal]:
        """Examine the next slice of regions. Return the proposals of splits and merges.

        `size_of` returns the bytes that a server has measured, None for a region without a measurement. `objection_now`
        returns why a region cannot be split or merged now. `under_way`: number of splits and merges. `busy`: another
        reason to begin none now.
        """
        servers = frozenset(one.incarnation for one in world.servers.values())
        if self._servers - servers:
            self._quiet_from_ms = now_ms + QUIET_MS
        self._servers = servers
        if now_ms < self._quiet_from_ms or busy or pause_of(world):
            self._begin_anew()
            return []
        if not self._left and now_ms >= self._next_round_ms:
            self._next_round_ms = now_ms + ROUND_MS
            self._left = [region for table in _tables(world) for region in table.regions.values()]
            self._refused = {one: at for one, at in self._refused.items() if at > now_ms}
        part = self._left[-SLICE:]
        del self._left[-SLICE:]
        proposals: list[SizeProposal] = []
        for region in part:
            proposals += self._large(region, size_of, objection_now)
        if part and not self._left:
            proposals += self._pairs()
            self._before, self._found, self._small = self._found, set(), {}
        return proposals[: max(0, AT_ONCE_MAX - under_way)]

    def _begin_anew(self) -> None:
        self._left, self._small, self._found = [], {}, set()
        self._before = set()

    def _large(
        self, region: Region, size_of: Callable[[Region], int | None], objection_now: Callable[[Region], str]
    ) -> list[SizeProposal]:
        """Return the proposal to split a region that is large; note a small one."""
        size = size_of(region)
        if size is None:
            return []
        table = region.table.record
        is_large = table.split_above and size > table.split_above
        is_small = table.merge_below and size < table.merge_below
        if not (is_large or is_small) or objection_to_region(region) or objection_now(region):
            return []
        if is_large and (region.record.region_id,) in self._refused:
            return []
        if is_large:
            why = f"{region.record.region_id} has {size} bytes, more than {table.split_above}"
            return self._second_time((region.record.region_id,), why)
        self._small[table.table_id, region.record.start_key] = (region, size)
        return []

    def _pairs(self) -> list[SizeProposal]:
        """Return the proposals to merge small neighbors; each region is in one of them at most."""
        proposals: list[SizeProposal] = []
        taken = ""
        for (table_id, _), (left, size) in sorted(self._small.items(), key=lambda one: one[0]):
            right = self._small.get((table_id, left.record.end_key)) if left.record.end_key else None
            if right is None or left.record.region_id == taken:
                continue
            pair = left.record.region_id, right[0].record.region_id
            if pair in self._refused:
                continue
            record, total = left.table.record, size + right[1]
            if record.split_above and 2 * total > record.split_above:
                continue
            taken = pair[1]
            why = f"{' and '.join(pair)} have {total} bytes, each less than {record.merge_below}"
            proposals += self._second_time(pair, why)
        return proposals

    def _second_time(self, regions: tuple[str, ...], why: str) -> list[SizeProposal]:
        self._found.add(regions)
        return [SizeProposal(regions, why)] if regions in self._before else []


def _tables(world: ClusterState) -> list[Table]:
    """Return the tables with settings whose regions can be split and merged."""
    return [
        table
        for table in world.tables.values()
        if (table.record.split_above or table.record.merge_below) and not objection_to_table(table, KNOWN)
    ]
