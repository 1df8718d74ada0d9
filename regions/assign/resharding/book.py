"""The splits and merges under way, and what each needs next (X11). Pure.

A split or merge is one znode (`regions/records/acts/resharding.py`), written before the request is acknowledged.
The next step depends only on the znode and on the state of the parents, so any master that becomes active continues:

    PREPARING  The parents are open. The two parents of a merge are brought to one server by a move. That server is
               ordered to copy their rows into the daughters' files, and goes on serving them.
    CLOSING    The parents must be closed. When no server has them any more, one write replaces them by the daughters.
    CLEANING   The daughters are opened like any closed region, on the parents' server if possible. When all of them
               have been open, they have files of their own, and a server is ordered to remove the parents' files.

Before the daughters have replaced the parents the work can be canceled: then nothing has changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from regions.assign.moves import MoveBook
from regions.assign.resharding.daughters import covers, with_parents
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.entities import Region, Replica, Server, Table
from regions.cluster.state import ClusterState
from regions.records.acts.resharding import ReshardingRecord, ReshardingState
from regions.records.kinds import can_open
from regions.records.model import Incarnation, RegionState, TableState, WorkOrigin
from regions.transitions.resharding import resharding_after

#: Reason of the moves that bring the parents of a merge together.
MERGE: Final = "merge"
#: Canceled works whose reason is kept.
CANCELED_MAX: Final = 100


class _Resharding:
    """A split or merge, and this master's part in it."""

    __slots__ = ("asked", "began_ms", "is_cleaning", "is_ready", "is_writing", "next_ms", "record", "version")

    def __init__(self, record: ReshardingRecord, version: int, now_ms: int) -> None:
        self.record = record
        self.version = version
        self.began_ms = now_ms
        #: True while a write of the znode is in flight, and until the records have been read again after a refusal.
        self.is_writing = False
        #: The server that has been ordered to prepare the daughters, and whether it has done so.
        self.asked: Incarnation | None = None
        self.is_ready = False
        #: True while a server removes the parents' files.
        self.is_cleaning = False
        #: Time of the next order, after one has failed.
        self.next_ms = 0


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
        self._moves = moves
        self._epoch = epoch
        self._timeout_ms = timeout_ms
        self._retry_ms = retry_ms
        self._works: dict[str, _Resharding] = {}
        #: Why the latest canceled works were canceled, by first parent, for those who wait for it.
        self.canceled: dict[str, str] = {}
        #: Decides what a replica needs; set by the assigner.
        self.decide: Callable[[Replica, int], None] = lambda _replica, _now_ms: None

    def __len__(self) -> int:
        return len(self._works)

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
        work = self._works[record.region_id] = _Resharding(record, version, now_ms)
        self._mark(work)

    def seen(self, record: ReshardingRecord, version: int, now_ms: int) -> None:
        """Set a split or merge as it is in the store."""
        work = self._works.get(record.region_id)
        if work is None:
            work = self._works[record.region_id] = _Resharding(record, version, now_ms)
            self.canceled.pop(record.region_id, None)
        if work.record.state is not record.state:
            work.began_ms = now_ms
        work.record, work.version, work.is_writing = record, version, False
        self._mark(work)
        if record.state is ReshardingState.CLEANING and any(self._parents(record)):
            self._read(record)
        self._decide_parents(record, now_ms)
        self._advance(work, now_ms)

    def _read(self, record: ReshardingRecord) -> None:
        """Read the regions of work that has replaced its parents, although this master still has them: the reply to its
        own write was lost."""
        self._emit(fx.ReadTable(record.table_id, origin=record.origin))
        for region_id in (*record.parents, *(one.region_id for one in record.daughters)):
            self._emit(fx.ReadRegion(record.table_id, region_id, origin=record.origin))

    def ended(self, region_id: str, now_ms: int) -> None:
        """Forget a split or merge whose znode is gone. Its parents that are still there are wanted again."""
        work = self._works.pop(region_id, None)
        if work is None:
            return
        for found in (*work.record.parents, *(one.region_id for one in work.record.daughters)):
            region = self._world.regions.get(found)
            if region is not None and region.resharding == region_id:
                region.resharding = ""
                region.is_leaving = False
        self._decide_parents(work.record, now_ms)

    def prepared(self, event: ev.DaughtersPrepared, now_ms: int) -> None:
        """Note a server's answer; cancel the work if the server cannot do it."""
        work = self._works.get(event.region_id)
        if work is None or work.asked != event.server or work.record.state is not ReshardingState.PREPARING:
            return
        if not event.error:
            work.is_ready = True
            self._advance(work, now_ms)
        elif event.is_final:
            self._cancel(work, event.error)
        else:
            work.asked = None
            work.next_ms = now_ms + self._retry_ms

    def removed(self, event: ev.ParentsRemoved, now_ms: int) -> None:
        """End the work when the parents' files are removed, or order it again later."""
        work = self._works.get(event.region_id)
        if work is None or not work.is_cleaning:
            return
        work.is_cleaning = False
        if event.error:
            work.next_ms = now_ms + self._retry_ms
        else:
            self._end(work, "files removed")

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
                is_stuck = not work.is_writing and all(one is not None and is_put_down(one) for one in parents)
                assert not is_stuck, f"the parents of the {work.record.words} are closed, and nobody replaces them"

    def _advance(self, work: _Resharding, now_ms: int) -> None:
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
        elif work.record.state is ReshardingState.CLOSING:
            if all(is_put_down(one) for one in parents):
                self._replace(work, table, parents)
        elif why := self._not_possible(work, parents, now_ms):
            self._cancel(work, why)
        else:
            self._prepare(work, parents, now_ms)

    def _not_possible(self, work: _Resharding, parents: list[Region], now_ms: int) -> str:
        """Return why work that is being prepared must be canceled, "" if it need not."""
        for region in parents:
            if not region.wants_open:
                return f"region {region.record.region_id} is to be closed"
            if any(one.transition is not None and one.transition.parked for one in region.replicas):
                return f"region {region.record.region_id} is parked"
        if now_ms - work.began_ms >= self._timeout_ms:
            return f"it could not be prepared within {self._timeout_ms // 1000} s"
        return ""

    def _prepare(self, work: _Resharding, parents: list[Region], now_ms: int) -> None:
        replicas = [replica for region in parents for replica in region.replicas]
        if not all(_is_at_rest(one) for one in replicas):
            work.asked, work.is_ready = None, False
            return
        home = _home_of(replicas)
        apart = [one for one in replicas if one.open_on is not home]
        if apart:
            for replica in apart:
                self._gather(replica, home, work, now_ms)
            return
        if work.asked != home.incarnation:
            work.asked, work.is_ready = None, False
            if now_ms >= work.next_ms:
                work.asked = home.incarnation
                self._emit(fx.PrepareDaughters(work.record, home.record, origin=work.record.origin))
        elif work.is_ready:
            self._write(work, "prepared")

    def _gather(self, replica: Replica, home: Server, work: _Resharding, now_ms: int) -> None:
        """Move a parent of a merge to the server of the other one."""
        if replica.move is None:
            self._moves.want(replica, home.uuid, "", MERGE, work.record.origin or WorkOrigin(""))
            self.decide(replica, now_ms)

    def _replace(self, work: _Resharding, table: Table, parents: list[Region]) -> None:
        whole = covers(tuple(one.record for one in parents), work.record.daughters)
        assert whole, f"the {work.record.words} would leave a hole or an overlap"
        count = table.record.regions - len(parents) + len(work.record.daughters)
        records = tuple(one.record for one in parents)
        record = self._after(work, "replaced")
        record = msgspec.structs.replace(
            record, daughters=tuple(with_parents(one, records) for one in record.daughters)
        )
        transitions = [
            (one.transition, one.version) for region in parents for one in region.replicas if one.transition is not None
        ]
        work.is_writing = True
        self._emit(
            fx.ReplaceParents(
                record,
                work.version,
                msgspec.structs.replace(table.record, regions=count),
                table.version,
                [(one.record, one.version) for one in parents],
                transitions,
                origin=record.origin,
            )
        )

    def _clean(self, work: _Resharding, table: Table | None, now_ms: int) -> None:
        """Have the parents' files removed when all daughters have files of their own."""
        if table is None or table.record.state is TableState.REMOVED:
            self._end(work, "table deleted")
            return
        if work.is_cleaning or now_ms < work.next_ms:
            return
        homes: list[Server] = []
        for daughter in work.record.daughters:
            region = self._world.regions.get(daughter.region_id)
            home = None if region is None else region.replicas[0].open_on
            if home is None:
                return
            homes.append(home)
        if can_open(homes[0].kind, table.record.kind):
            work.is_cleaning = True
            self._emit(fx.RemoveParents(work.record, homes[0].record, origin=work.record.origin))

    # --- writes -------------------------------------------------------------------------------------------------------

    def _after(self, work: _Resharding, event: str) -> ReshardingRecord:
        after = resharding_after(work.record.state, event, subject=work.record.region_id)
        assert after is not None, f"{event} ends the work"
        return msgspec.structs.replace(work.record, state=after, epoch=self._epoch)

    def _write(self, work: _Resharding, event: str) -> None:
        record = self._after(work, event)
        work.is_writing = True
        self._emit(fx.WriteResharding(record, work.version, origin=record.origin))

    def _end(self, work: _Resharding, event: str, error: str = "") -> None:
        after = resharding_after(work.record.state, event, subject=work.record.region_id)
        assert after is None, f"{event} does not end the work"
        work.is_writing = True
        self._emit(fx.EndResharding(work.record, work.version, error, origin=work.record.origin))

    def _cancel(self, work: _Resharding, why: str) -> None:
        region_id = work.record.region_id
        self.canceled[region_id] = why
        if len(self.canceled) > CANCELED_MAX:
            del self.canceled[next(iter(self.canceled))]
        self._emit(fx.Note(f"the {work.record.words} is canceled: {why}", region_id, origin=work.record.origin))
        self._end(work, "canceled", why)

    # --- marks --------------------------------------------------------------------------------------------------------

    def _mark(self, work: _Resharding) -> None:
        """Mark the regions that take part. They may have been loaded after the work."""
        record = work.record
        for found in (*record.parents, *(one.region_id for one in record.daughters)):
            region = self._world.regions.get(found)
            if region is not None:
                region.resharding = record.region_id
                region.is_leaving = self._is_leaving(work, region)

    @staticmethod
    def _is_leaving(work: _Resharding, region: Region) -> bool:
        """Return True for a parent that must be closed, or is replaced and only not forgotten yet."""
        record = work.record
        return record.state is not ReshardingState.PREPARING and region.record.region_id in record.parents

    def _parents(self, record: ReshardingRecord) -> list[Region | None]:
        return [self._world.regions.get(one) for one in record.parents]

    def _decide_parents(self, record: ReshardingRecord, now_ms: int) -> None:
        for region in self._parents(record):
            for replica in () if region is None else region.replicas:
                self.decide(replica, now_ms)


def is_put_down(region: Region) -> bool:
    """Return True if no server has the region, and none can begin to work on it.

    Then each replica is CLOSED, or OFFLINE without a destination, or has neither a transition nor a server in its
    region's record: the multi that replaces the region checks the versions of all these.
    """
    for replica in region.replicas:
        if replica.is_writing or replica.open_on is not None:
            return False
        transition = replica.transition
        if transition is None:
            if replica.home is not None:
                return False
        elif transition.state is RegionState.OFFLINE:
            if transition.destination is not None:
                return False
        elif transition.state is not RegionState.CLOSED:
            return False
    return True


def _is_at_rest(replica: Replica) -> bool:
    is_idle = replica.transition is None and replica.order is None and not replica.is_writing
    return is_idle and replica.move is None and replica.open_on is not None


def _home_of(replicas: list[Replica]) -> Server:
    """Return the server on which the parents shall be: that of the first one that need not leave its server."""
    servers = [one.open_on for one in replicas if one.open_on is not None]
    staying = [one for one in servers if not one.draining]
    return (staying or servers)[0]
