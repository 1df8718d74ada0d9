"""Regions that cannot be created: another one takes the place (DD-03, DD-04). Pure.

A region is CREATING from the choice of its first server until one has opened it. When that lasts too long, or all
attempts are used up, it is given up: nobody is asked any more, and as soon as no server is at work on it, one write
makes it REPLACED, deletes its transitions and puts a new region, with an id of its own, in its place. Who was about to
open the former one finds its transition gone. A write that is refused leaves everything as it was, and it is tried on.

That happens a bounded number of times for one range; the last of them is parked like any other region (X11).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from regions.cluster import effects as fx
from regions.cluster.entities import Region, Replica
from regions.cluster.state import ClusterState
from regions.records.model import RegionRecord, RegionState, TabletState
from regions.transitions.table_states import VISIBLE

_MARK: Final = "r"
#: Between the step that puts a transition down and the deletion, for those who follow what happens
#: (`regions/diagnose/invariants.py`).
REST_MS: Final = 1_000


class Replacements:
    """The regions that are CREATING, and what is to become of them."""

    def __init__(
        self, world: ClusterState, emit: Callable[[fx.Effect], None], *, timeout_ms: int, replacements_max: int
    ) -> None:
        self._world = world
        self._emit = emit
        self._timeout_ms = timeout_ms
        self._replacements_max = replacements_max
        self._given_up: dict[str, Region] = {}

    def offered(self, region: Region, now_ms: int) -> None:
        """A server has been chosen for one of its replicas: from here on it is CREATING."""
        if region.record.state is TabletState.PREPARING and not region.creating_since_ms:
            region.creating_since_ms = max(1, now_ms)

    def ended(self, region: Region) -> None:
        """A transition of one of its replicas has ended: with the last one a region that is not open is not CREATING
        any
        more, and should it be wanted again, its time begins anew."""
        if region.creating_since_ms and all(one.transition is None for one in region.replicas):
            region.creating_since_ms = 0

    def gives_up(self, region: Region, now_ms: int, *, used_up: bool) -> bool:
        """Whether the region is given up, now that an attempt to open it has failed."""
        if region.record.state is not TabletState.PREPARING or region.table.record.state not in VISIBLE:
            return False
        if region.record.generation >= self._replacements_max:
            return False
        late = region.creating_since_ms > 0 and now_ms - region.creating_since_ms >= self._timeout_ms
        if late or used_up:
            region.is_given_up = True
            self._given_up[region.record.region_id] = region
        return region.is_given_up

    def holds(self, region: Region) -> bool:
        """Whether the region is given up still: not if it is not wanted any more, or has been opened after all."""
        if region.is_replacing:
            return True
        if not region.wants_open or region.record.state is not TabletState.PREPARING:
            region.is_given_up = False
        return region.is_given_up

    def tick(self, now_ms: int) -> list[Region]:
        """Have those replaced at which nobody is at work any more, and was not a moment ago.

        Returns those that are not given up any more, say because one of several replicas has been opened after all:
        the others, which were put down meanwhile, are to be settled.
        """
        kept: list[Region] = []
        for region_id, region in list(self._given_up.items()):
            if self._world.regions.get(region_id) is not region:
                del self._given_up[region_id]
            elif not self.holds(region):
                del self._given_up[region_id]
                kept.append(region)
            elif not region.is_replacing and all(_is_put_down(one, now_ms) for one in region.replicas):
                self._replace(region)
        return kept

    def failed(self, region: Region) -> None:
        """It was not replaced: it is tried on (DD-04)."""
        region.is_given_up = region.is_replacing = False
        region.creating_since_ms = 0
        self._given_up.pop(region.record.region_id, None)

    def __contains__(self, region: Region) -> bool:
        """Whether the region was given up, and has neither been replaced nor handed back by `tick` since."""
        return self._given_up.get(region.record.region_id) is region

    def validate(self) -> None:
        """Raise AssertionError if a region that is given up will never be replaced."""
        for region_id, region in self._world.regions.items():
            assert not region.is_given_up or region in self, f"region {region_id} is given up, and will not be replaced"

    def _replace(self, region: Region) -> None:
        region.is_replacing = True
        transitions = [(one.transition, one.version) for one in region.replicas if one.transition is not None]
        fresh = successor(region.record)
        effect = fx.ReplaceRegion(region.record, region.version, region.table.version, transitions, fresh)
        effect.origin = region.replicas[0].origin
        self._emit(effect)


def _is_put_down(replica: Replica, now_ms: int) -> bool:
    """Whether no server has the replica, or is at work on it, and whoever watches has had time to see that."""
    if replica.is_writing or replica.open_on is not None:
        return False
    transition = replica.transition
    if transition is None:
        return True
    is_free = transition.state is RegionState.OFFLINE and transition.destination is None
    return is_free and now_ms - replica.seen_ms >= REST_MS


def successor(record: RegionRecord) -> RegionRecord:
    """The region that takes the place of one that could not be created: a new id, the next in order, the same range."""
    generation = record.generation + 1
    stem = record.region_id[: -len(f"{_MARK}{record.generation}")] if record.generation else record.region_id
    return msgspec.structs.replace(
        record,
        region_id=f"{stem}{_MARK}{generation}",
        state=TabletState.PREPARING,
        replicas=(),
        replaces=record.region_id,
        generation=generation,
    )
