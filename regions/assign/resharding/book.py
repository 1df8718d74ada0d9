"""The splits and merges under way, and the next step of each (X11). Pure.

A split or merge is one znode (`regions/records/acts/resharding.py`), written before the request is acknowledged.
The next step depends only on the znode and on the state of the parents, so any master that becomes active continues:

    PREPARING  The parents are open. The two parents of a merge are brought to one server by a move. That server is
               ordered to copy their rows into the daughters' files, and goes on serving them.
    CLOSING    The parents must be closed. When no server has them any more, one write replaces them by the daughters.
    CLEANING   The daughters are opened like any closed region, on the parents' server if possible. When all of them
               have been open, they have files of their own, and a server is ordered to remove the parents' files.

Until the daughters have replaced the parents, the work can be canceled, and then nothing has changed.

The requests to the regions' servers differ for tablets: see `Parents` in `regions/assign/resharding/parents.py`. All
parents of one work have the same seal, and one write replaces all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

import msgspec

from regions.assign.moves import MoveBook
from regions.assign.resharding.daughters import covers
from regions.assign.resharding.parents import Handover, Parents, Resharding, SharedParents, is_put_down
from regions.assign.resharding.tablets import TabletParents
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.entities import Region, Table
from regions.cluster.state import ClusterState
from regions.records.acts.resharding import ReshardingRecord, ReshardingState, seal_of
from regions.records.model import TableState
from regions.replication.keeper import Keeper
from regions.transitions.resharding import resharding_after

#: Canceled works whose reason is kept.
CANCELED_MAX: Final = 100
#: Pause before a tablet's leader is asked again to seal the tablet, and the time after which the split is canceled.
#: Until the seal the tablet is served, but its members do not change.
SEAL_AGAIN_MS: Final = 500
SEAL_WITHIN_MS: Final = 60_000
#: Number of refusals by a server after which a split does not wait any more until this server has prepared the
#: daughters.
PREPARE_TRIES: Final = 3


class Reshardings:
    """The splits and merges that are in the store."""

    def __init__(
        self,
        world: ClusterState,
        emit: Callable[[fx.Effect], None],
        moves: MoveBook,
        epoch: int,
        *,
        timeout_ms: int,
        retry_ms: int,
    ) -> None:
        self._world = world
        self._emit = emit
        self._epoch = epoch
        self._timeout_ms = timeout_ms
        self._retry_ms = retry_ms
        self.shared = SharedParents(world, emit, moves)
        self.tablets: Parents = self.shared
        self._seals = itertools.count(1)
        self._works: dict[str, Resharding] = {}
        #: Why the latest canceled works were canceled, by first parent, for those who wait for it.
        self.canceled: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._works)

    def serve_tablets(self, keeper: Keeper, start_timeout_ms: int) -> None:
        """Have the keeper's tablets split as well."""
        self.tablets = TabletParents(keeper, self._emit, self._epoch, start_timeout_ms)

    def parents_of(self, table: Table) -> Parents:
        """Return who answers for the regions of a table."""
        return self.tablets if table.record.is_tablet else self.shared

    def _parents_of(self, record: ReshardingRecord) -> Parents:
        """Return the `Parents` for the regions of a work. Their table may be forgotten."""
        return self.tablets if record.seal else self.shared

    def next_seal(self) -> str:
        """Return the name of the seal of a new split. No master uses a name twice."""
        return seal_of(self._epoch, next(self._seals))

    @property
    def begun(self) -> int:
        """Number of splits and merges whose daughters are not all open."""
        return sum(not self._are_open(work.record) for work in self._works.values())

    def _are_open(self, record: ReshardingRecord) -> bool:
        found = [self._world.regions.get(one.region_id) for one in record.daughters]
        return all(one is not None and self._parents_of(record).is_open(one) for one in found)

    def records(self) -> list[ReshardingRecord]:
        """Return the splits and merges under way."""
        return [work.record for work in self._works.values()]

    def find(self, region_id: str) -> ReshardingRecord | None:
        """Return the work whose first parent this is, or None."""
        work = self._works.get(region_id)
        return None if work is None else work.record

    # --- observe ------------------------------------------------------------------------------------------------------

    def load(self, record: ReshardingRecord, version: int, now_ms: int) -> None:
        """Set a split or merge that a new master has read, without decisions yet."""
        assert record.region_id not in self._works, f"the {record.words} is loaded twice"
        work = self._works[record.region_id] = Resharding(record, version, now_ms)
        self._mark(work)

    def seen(self, record: ReshardingRecord, version: int, now_ms: int) -> None:
        """Set a split or merge as it is in the store."""
        work = self._works.get(record.region_id)
        if work is None:
            work = self._works[record.region_id] = Resharding(record, version, now_ms)
            self.canceled.pop(record.region_id, None)
        if work.record.state is not record.state:
            work.began_ms = now_ms
            work.asked, work.is_ready, work.next_ms = None, False, 0
        work.record, work.version, work.is_writing = record, version, False
        self._mark(work)
        if record.state is ReshardingState.CLEANING and any(self._parents(record)):
            self._read(record)
        self._decide_parents(record, now_ms)
        self._advance(work, now_ms)

    def _read(self, record: ReshardingRecord) -> None:
        """Read the regions of a work that has replaced its parents while this master still has the parents: the reply
        to its write was lost."""
        self._emit(fx.ReadTable(record.table_id, origin=record.origin))
        for region_id in (*record.parents, *(one.region_id for one in record.daughters)):
            self._emit(fx.ReadRegion(record.table_id, region_id, origin=record.origin))

    def ended(self, region_id: str, now_ms: int) -> None:
        """Forget a split or merge whose znode is gone. Parents that still exist must be open again."""
        work = self._works.pop(region_id, None)
        if work is None:
            return
        for found in (*work.record.parents, *(one.region_id for one in work.record.daughters)):
            region = self._world.regions.get(found)
            if region is not None and region.resharding == region_id:
                region.resharding = ""
                region.is_leaving = False
        for found in work.record.parents:
            self._parents_of(work.record).mark(found, is_leaving=False)
        if work.record.state is not ReshardingState.CLEANING:
            self._parents_of(work.record).canceled(work)
        self._decide_parents(work.record, now_ms)

    def prepared(self, event: ev.DaughtersPrepared, now_ms: int) -> None:
        """Note a server's answer; cancel the work if the server cannot do it."""
        known = self._works.get(event.region_id)
        if known is not None and known.record.seal:
            self._member_prepared(known, event, now_ms)
            return
        work = self._answered(event, ReshardingState.PREPARING, now_ms + self._retry_ms)
        if work is not None:
            work.is_ready = True
            self._advance(work, now_ms)

    def _member_prepared(self, work: Resharding, event: ev.DaughtersPrepared, now_ms: int) -> None:
        """Record that a server with a member of a tablet has prepared the daughters, or has refused.

        A server that refuses repeatedly makes the daughters after the seal, as servers of earlier builds do.
        """
        is_asked = not work.preparing.get(event.server, True)
        if not is_asked or work.is_writing or work.record.state is not ReshardingState.PREPARING:
            return
        if event.error and event.is_final:
            self._cancel(work, event.error)
            return
        if event.error:
            work.refusals[event.server] += 1
        if event.error and work.refusals[event.server] < PREPARE_TRIES:
            del work.preparing[event.server]
            work.next_ms = now_ms + self._retry_ms
            return
        work.preparing[event.server] = True
        self._advance(work, now_ms)

    def sealed(self, event: ev.ParentSealed, now_ms: int) -> None:
        """Note a leader's answer; cancel the work if its tablet cannot be sealed."""
        work = self._works.get(event.region_id)
        if work is None or work.record.state is not ReshardingState.CLOSING:
            return
        if work.sealing.get(event.parent) != event.server:
            return
        if not event.error:
            work.first_sealed_ms = work.first_sealed_ms or now_ms
            work.sealed[event.parent] = event
            self._advance(work, now_ms)
        elif event.is_final and not work.is_writing:
            self._cancel(work, event.error)
        else:
            del work.sealing[event.parent]
            work.not_sealed = f"tablet {event.parent}: {event.error}"
            work.next_ms = now_ms + SEAL_AGAIN_MS

    def _answered(self, event: ev.DaughtersPrepared, state: ReshardingState, again_ms: int) -> Resharding | None:
        """Return the work in this state whose order a server has carried out. Otherwise cancel the work, or send the
        order again at `again_ms`, and return None."""
        work = self._works.get(event.region_id)
        if work is None or work.asked != event.server or work.record.state is not state:
            return None
        if not event.error:
            return work
        if event.is_final and not work.is_writing:
            self._cancel(work, event.error)
        else:
            work.asked = None
            work.next_ms = again_ms
        return None

    def replaced(self, event: ev.ParentsReplaced, now_ms: int) -> None:
        """Pass on that the daughters have replaced the parents. `seen` follows."""
        parents = [one for one in self._parents(event.record) if one is not None]
        self._parents_of(event.record).replaced(event, parents, now_ms)

    def removed(self, event: ev.ParentsRemoved, now_ms: int) -> None:
        """End the work when the parents' files are removed, or order it again later."""
        work = self._works.get(event.region_id)
        if work is None or not work.is_cleaning:
            return
        work.is_cleaning = False
        if event.error:
            work.next_ms = now_ms + self._retry_ms
        else:
            self._end(work, "files removed", "the former files are removed")

    # --- decide -------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Continue all work. Level-triggered, so calling it more often is harmless."""
        for work in list(self._works.values()):
            self._advance(work, now_ms)

    def parent_changed(self, region: Region, now_ms: int) -> None:
        """Continue the work in which the region takes part."""
        work = self._works.get(region.resharding)
        if work is not None:
            self._advance(work, now_ms)

    def validate(self) -> None:
        """Raise AssertionError if the marks at the regions and the work differ, or if nobody replaces closed
        parents."""
        for region_id, region in self._world.regions.items():
            work = self._works.get(region.resharding)
            assert not region.resharding or work is not None, f"{region_id} takes part in {region.resharding}"
            is_leaving = work is not None and self._is_leaving(work, region)
            assert region.is_leaving == is_leaving, f"{region_id}: is_leaving is {region.is_leaving}"
        for work in self._works.values():
            parents = self._parents(work.record)
            if work.record.state is ReshardingState.CLOSING and None not in parents:
                is_down = not work.record.seal and all(one is not None and is_put_down(one) for one in parents)
                is_stuck = is_down and not work.is_writing
                assert not is_stuck, f"the parents of the {work.record.words} are closed, and nobody replaces them"

    def _advance(self, work: Resharding, now_ms: int) -> None:
        if work.is_writing:
            return
        self._mark(work)
        table = self._world.tables.get(work.record.table_id)
        if work.record.state is ReshardingState.CLEANING:
            self._clean(work, table, now_ms)
            return
        parents = [one for one in self._parents(work.record) if one is not None]
        if table is None or table.record.state is TableState.REMOVED or len(parents) < len(work.record.parents):
            self._cancel(work, "the table is deleted")
        elif not table.wants_open:
            self._cancel(work, "the table is disabled")
        elif why := self._not_possible(work, parents, now_ms):
            self._cancel(work, why)
        elif work.record.state is ReshardingState.CLOSING:
            found = self._parents_of(work.record).handover(work, parents, now_ms)
            if found is not None:
                self._replace(work, table, parents, found, now_ms)
        elif self._parents_of(work.record).prepared(work, parents, now_ms):
            self._write(work, "prepared")

    def _not_possible(self, work: Resharding, parents: list[Region], now_ms: int) -> str:
        """Return why the work must be canceled, "" if it need not. Closing shared regions is no reason, however long it
        takes."""
        is_closing = work.record.state is ReshardingState.CLOSING
        if is_closing and not work.record.seal:
            return ""
        for region in parents:
            if region.record.unassigned:
                return f"region {region.record.region_id} is to be closed"
            if any(one.transition is not None and one.transition.parked for one in region.replicas):
                return f"region {region.record.region_id} is parked"
        limit_ms = SEAL_WITHIN_MS if is_closing else self._timeout_ms
        if now_ms - work.began_ms >= limit_ms:
            why = f" ({work.not_sealed})" if is_closing and work.not_sealed else ""
            return f"it could not be {'sealed' if is_closing else 'prepared'} within {limit_ms // 1000} s{why}"
        return self._parents_of(work.record).objection_to_work(work, parents, now_ms)

    def _replace(self, work: Resharding, table: Table, parents: list[Region], found: Handover, now_ms: int) -> None:
        whole = covers(tuple(one.record for one in parents), found.daughters)
        assert whole, f"the {work.record.words} would leave a hole or an overlap"
        count = table.record.regions - len(parents) + len(found.daughters)
        record = self._after(work, "replaced")
        record = msgspec.structs.replace(record, daughters=found.daughters, replaced_ms=now_ms)
        assert not work.is_writing, f"a write of the {work.record.words} is in flight"
        work.is_writing = True
        self._emit(
            fx.ReplaceParents(
                record,
                work.version,
                msgspec.structs.replace(table.record, regions=count),
                table.version,
                [(one.record, one.version) for one in parents],
                found.ended,
                found.begun,
                origin=record.origin,
            )
        )

    def _clean(self, work: Resharding, table: Table | None, now_ms: int) -> None:
        # A removed table can be brought back until its purge begins. A shared daughter then copies its rows when it is
        # opened; a tablet's members need the parent's replicas.
        if table is None or (
            table.record.state is TableState.REMOVED and (table.record.purging_ms or not work.record.seal)
        ):
            self._end(work, "table deleted", "the table is deleted")
            return
        daughters = [self._world.regions.get(one.region_id) for one in work.record.daughters]
        there = [one for one in daughters if one is not None]
        if len(there) == len(daughters) and self._parents_of(work.record).cleaned(work, table, there, now_ms):
            self._end(work, "made", "all members of the daughters are made")

    # --- writes -------------------------------------------------------------------------------------------------------

    def _after(self, work: Resharding, event: str) -> ReshardingRecord:
        after = resharding_after(work.record.state, event, subject=work.record.region_id)
        assert after is not None, f"{event} ends the work"
        return msgspec.structs.replace(work.record, state=after, epoch=self._epoch)

    def _write(self, work: Resharding, event: str) -> None:
        record = self._after(work, event)
        assert not work.is_writing, f"a write of the {work.record.words} is in flight"
        work.is_writing = True
        self._emit(fx.WriteResharding(record, work.version, origin=record.origin))

    def _end(self, work: Resharding, event: str, outcome: str) -> None:
        after = resharding_after(work.record.state, event, subject=work.record.region_id)
        assert after is None, f"{event} does not end the work"
        work.is_writing = True
        self._emit(fx.EndResharding(work.record, work.version, outcome, origin=work.record.origin))

    def _cancel(self, work: Resharding, why: str) -> None:
        region_id = work.record.region_id
        self.canceled[region_id] = why
        if len(self.canceled) > CANCELED_MAX:
            del self.canceled[next(iter(self.canceled))]
        self._emit(fx.Note(f"the {work.record.words} is canceled: {why}", region_id, origin=work.record.origin))
        self._end(work, "canceled", f"canceled: {why}")

    # --- marks --------------------------------------------------------------------------------------------------------

    def _mark(self, work: Resharding) -> None:
        """Mark the regions that take part in a work. They may have been loaded after the work."""
        record = work.record
        for found in (*record.parents, *(one.region_id for one in record.daughters)):
            region = self._world.regions.get(found)
            if region is not None:
                region.resharding = record.region_id
                region.is_leaving = self._is_leaving(work, region)
        for found in record.parents:
            self._parents_of(record).mark(found, is_leaving=record.state is not ReshardingState.PREPARING)

    @staticmethod
    def _is_leaving(work: Resharding, region: Region) -> bool:
        """Return True for a parent that must be closed, or is replaced and only not forgotten yet."""
        record = work.record
        return record.state is not ReshardingState.PREPARING and region.record.region_id in record.parents

    def _parents(self, record: ReshardingRecord) -> list[Region | None]:
        return [self._world.regions.get(one) for one in record.parents]

    def _decide_parents(self, record: ReshardingRecord, now_ms: int) -> None:
        for region in self._parents(record):
            for replica in () if region is None else region.replicas:
                self.shared.decide(replica, now_ms)
