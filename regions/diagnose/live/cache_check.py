"""Comparison of a master's state, or of a standby's mirror, with the store, a slice at a time (N5). Pure.

A master decides by its copy of the regions and transitions. If an event were lost, or applied wrongly, the copy would
differ from the store for ever, and nobody would notice before a compare-and-set fails. So every master reads a slice of
the regions again each second, and compares. The copy always lags a little, so a difference counts only if the same one
is found again CONFIRM_MS later. A standby's mirror may be late by minutes while many regions move, so a znode whose
change it has noticed and not read yet is not compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from regions.cluster.state import ClusterState
from regions.records.znodes import Layout

#: Regions in one slice. With their transitions this is one request of some tens of kilobytes.
SLICE: Final = 100
#: A difference must last for this long.
CONFIRM_MS: Final = 5_000
#: Differences that wait for their second look. More are found in the next round.
SUSPECTS_MAX: Final = 1_000


class CacheDifference(NamedTuple):
    """A znode whose versions in the store and in the copy differ; -1 stands for no znode."""

    path: str
    stored: int
    cached: int

    def __str__(self) -> str:
        return f"{self.path} has {_version(self.stored)} in the store and {_version(self.cached)} in this master's copy"


class _Suspect(NamedTuple):
    """A difference that was found once."""

    difference: CacheDifference
    region_id: str
    since_ms: int


class CacheCheck:
    """Goes through all regions of a copy, slice by slice, again and again."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        #: Regions that are still to be compared in this round.
        self._round: list[str] = []
        #: By path.
        self._suspects: dict[str, _Suspect] = {}
        #: Number of regions that were compared.
        self.compared = 0

    def next_slice(self, world: ClusterState) -> list[str]:
        """Return the regions to read next: the next ones of the round, and those with a suspect."""
        if not self._round:
            self._round = [region_id for table in world.tables.values() for region_id in table.regions]
        found = self._round[-SLICE:]
        del self._round[-SLICE:]
        self._suspects = {path: one for path, one in self._suspects.items() if one.region_id in world.regions}
        again = {one.region_id for one in self._suspects.values()}.difference(found)
        return found + sorted(again)[:SLICE]

    def paths(self, world: ClusterState, region_ids: Iterable[str]) -> list[str]:
        """Return the paths of the regions and of their replicas' transitions."""
        return list(self._cached(world, region_ids))

    def see(
        self,
        world: ClusterState,
        region_ids: Iterable[str],
        stored: Mapping[str, int],
        now_ms: int,
        unread: Collection[str] = (),
    ) -> list[CacheDifference]:
        """Compare the versions in the store with those in the copy; return the differences that have lasted.

        `stored` has the version of each znode that exists. The time of a difference begins again if the znode agrees,
        if it differs in another way than before, or if it is in `unread`, because the copy is about to read its change.
        """
        lasting = []
        for path, (region_id, cached) in self._cached(world, region_ids).items():
            difference = CacheDifference(path, stored.get(path, -1), cached)
            known = self._suspects.pop(path, None)
            if difference.stored == cached or path in unread:
                continue
            if known is None or known.difference != difference:
                known = _Suspect(difference, region_id, now_ms)
            elif now_ms - known.since_ms >= CONFIRM_MS:
                lasting.append(difference)
                continue
            if len(self._suspects) < SUSPECTS_MAX:
                self._suspects[path] = known
        self.compared += len(set(region_ids))
        return lasting

    def _cached(self, world: ClusterState, region_ids: Iterable[str]) -> dict[str, tuple[str, int]]:
        """Return region and version in the copy of each znode of these regions; version -1: no znode."""
        found: dict[str, tuple[str, int]] = {}
        for region_id in region_ids:
            region = world.regions.get(region_id)
            if region is None:
                continue  # the region has ended since
            found[self._layout.region(region.record.table_id, region_id)] = (region_id, region.version)
            for replica in region.replicas:
                version = -1 if replica.transition is None else replica.version
                found[self._layout.transition(region_id, replica.number)] = (region_id, version)
        return found


def _version(version: int) -> str:
    return "no znode" if version < 0 else f"version {version}"
