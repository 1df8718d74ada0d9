"""Replaces a region that cannot be created by a new region (DD-03, DD-04). Pure.

A region is CREATING from the choice of its first server until a server has opened it. If that takes too long, or if all
attempts are used up, the region is given up: the assigner sends no more orders for it. When no server works on the
region any more, one write sets it to REPLACED, deletes its transitions, and creates a new region with a new id for the
same range. A server that is about to open the former region then finds no transition. If the store rejects the write,
nothing has changed, and the former region is retried.

The number of replacements for one range is limited. The last region is parked like any other region (X11).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from regions.cluster import effects as fx
from regions.cluster.entities import Region, Replica
from regions.cluster.state import ClusterState
from regions.records.model import RegionState, TabletState
from regions.transitions.table_states import VISIBLE, successor

# Members of enums: a compiled module reads its own constant several times as fast.
_OFFLINE: Final = RegionState.OFFLINE
_PREPARING: Final = TabletState.PREPARING

#: Pause between the step that takes a transition off its server and its deletion, so that auditors can read the
#: transition in between (`regions/diagnose/invariants.py`).
REST_MS: Final = 1_000


class Replacements:
    """The regions that are given up, until they are replaced or wanted again."""

    def __init__(
        self, world: ClusterState, emit: Callable[[fx.Effect], None], *, timeout_ms: int, replacements_max: int
    ) -> None:
        self._world = world
        self._emit = emit
        self._timeout_ms = timeout_ms
        self._replacements_max = replacements_max
        self._given_up: dict[str, Region] = {}

    def server_chosen(self, region: Region, now_ms: int) -> None:
        """Start the time of a region: a server has been chosen for one of its replicas, so it is CREATING."""
        if region.record.state is _PREPARING and not region.creating_since_ms:
            region.creating_since_ms = max(1, now_ms)
        has_begun = region.record.state is not _PREPARING or region.creating_since_ms > 0
        assert has_begun, f"region {region.record.region_id} is created without a time limit"

    def transition_ended(self, region: Region) -> None:
        """Reset the time of a region when its last transition has ended."""
        if region.creating_since_ms and all(one.transition is None for one in region.replicas):
            region.creating_since_ms = 0

    def give_up_if_due(self, region: Region, now_ms: int, *, used_up: bool) -> bool:
        """Give the region up if its time or its attempts are used up. Return True if it is given up by now."""
        if region.record.state is not _PREPARING or region.table.record.state not in VISIBLE:
            return False
        if region.record.generation >= self._replacements_max:
            return False
        late = region.creating_since_ms > 0 and now_ms - region.creating_since_ms >= self._timeout_ms
        if late or used_up:
            region.is_given_up = True
            self._given_up[region.record.region_id] = region
        is_known = not region.is_given_up or region in self
        assert is_known, f"region {region.record.region_id} is given up, and nobody would replace it"
        return region.is_given_up

    def still_given_up(self, region: Region) -> bool:
        """Return True if the region is still given up. Return False if it must be closed, or has been opened after
        all."""
        if region.is_replacing:
            return True
        if not region.wants_open or region.record.state is not _PREPARING:
            region.is_given_up = False
        return region.is_given_up

    def tick(self, now_ms: int) -> list[Region]:
        """Replace the given-up regions on which no server has worked for REST_MS.

        Return the regions that are not given up any more, for example because one of several replicas has opened after
        all. The caller decides about their other replicas.
        """
        kept: list[Region] = []
        for region_id, region in list(self._given_up.items()):
            if self._world.regions.get(region_id) is not region:
                del self._given_up[region_id]
            elif not self.still_given_up(region):
                del self._given_up[region_id]
                kept.append(region)
            elif not region.is_replacing and all(_is_put_down(one, now_ms) for one in region.replicas):
                self._replace(region)
        return kept

    def failed(self, region: Region) -> None:
        """Make the region wanted again after the store has refused its replacement (DD-04)."""
        region.is_given_up = region.is_replacing = False
        region.creating_since_ms = 0
        self._given_up.pop(region.record.region_id, None)
        assert region not in self, f"region {region.record.region_id} is wanted, and would be replaced"

    def __contains__(self, region: Region) -> bool:
        """Return True if the region was given up, and has neither been replaced nor returned by `tick` since."""
        return self._given_up.get(region.record.region_id) is region

    def validate(self) -> None:
        """Raise AssertionError if a region that is given up will never be replaced."""
        for region_id, region in self._world.regions.items():
            assert not region.is_given_up or region in self, f"region {region_id} is given up, and will not be replaced"

    def _replace(self, region: Region) -> None:
        assert region.is_given_up, f"region {region.record.region_id} is wanted, and would be replaced"
        assert not region.is_replacing, f"region {region.record.region_id} is being replaced already"
        for one in region.replicas:
            assert one.open_on is None, f"{one.key} is open, and its region would be replaced"
        region.is_replacing = True
        transitions = [(one.transition, one.version) for one in region.replicas if one.transition is not None]
        fresh = successor(region.record)
        effect = fx.ReplaceRegion(region.record, region.version, region.table.version, transitions, fresh)
        effect.origin = region.replicas[0].origin
        self._emit(effect)


def _is_put_down(replica: Replica, now_ms: int) -> bool:
    """Return True if no server has the replica or works on it, for at least REST_MS."""
    if replica.is_writing or replica.open_on is not None:
        return False
    transition = replica.transition
    if transition is None:
        return True
    is_free = transition.state is _OFFLINE and transition.destination is None
    return is_free and now_ms - replica.seen_ms >= REST_MS
