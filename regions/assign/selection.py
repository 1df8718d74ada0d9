"""Selects destinations for replicas that need one, one by one or by a bulk plan.

A waiting replica is in exactly one of four sets: unplaced until the next selection, selected to be placed one by one,
in a plan that is being computed, or unplaceable until a server becomes eligible. Whether the replica still needs a
destination is checked when it is taken from the set.

All replicas of many dead servers are selected at once, and placed PLACED_MAX at a time, so that the master serves its
servers and the store in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from itertools import chain
from typing import Final

from regions.assign.placement import LeastLoaded, choose, is_eligible
from regions.cluster import effects as fx
from regions.cluster.entities import Replica
from regions.cluster.state import ClusterState
from regions.cluster.work import WriteState
from regions.records.kinds import can_open
from regions.records.model import Incarnation, RegionState
from regions.transitions.states import Cause

# Members of enums: a compiled module reads its own constant several times as fast.
_ASSIGN: Final = Cause.ASSIGN
_CLOSING: Final = RegionState.CLOSING
_IDLE: Final = WriteState.IDLE

#: Replicas that get destinations in one turn, one by one.
PLACED_MAX: Final = 300


class Selection:
    """The replicas that wait for a destination."""

    def __init__(self, world: ClusterState, bulk_min: int) -> None:
        self._world = world
        self._bulk_min = bulk_min
        #: Replicas for the next selection. The assigner calls `take` only while `unplaced` or `order` has replicas.
        self.unplaced: dict[str, Replica] = {}
        #: Replicas to be placed one by one, in their order.
        self.selected: dict[str, Replica] = {}
        self.order: deque[str] = deque()
        self._planning: dict[str, Replica] = {}
        self._unplaceable: dict[str, Replica] = {}
        #: Between `begin_many` and `placed`: servers by load, of a group, a kind, and with or without flapping ones.
        self._by_load: dict[tuple[str, str, bool], LeastLoaded] | None = None

    def __contains__(self, replica: Replica) -> bool:
        """Return True if the replica waits for the next selection, for a plan, or for an eligible server."""
        key = replica.key
        places = (self.unplaced, self.selected, self._planning, self._unplaceable)
        return any(place.get(key) is replica for place in places)

    def __len__(self) -> int:
        return len(self.unplaced) + len(self.selected) + len(self._planning) + len(self._unplaceable)

    def add(self, replica: Replica) -> None:
        """Add the replica to the next selection, unless it is selected or waits for a plan."""
        key = replica.key
        if self.selected.get(key) is replica or self._planning.get(key) is replica:
            return
        for place in (self.selected, self._planning, self._unplaceable):
            place.pop(key, None)  # another replica has this key if its region was dropped, and has come again
        self.unplaced[key] = replica

    def add_unplaceable(self, replica: Replica) -> None:
        """Add a replica for which no server is eligible now."""
        key = replica.key
        is_elsewhere = self.selected.get(key) is replica or self._planning.get(key) is replica
        assert not is_elsewhere, f"{key} is about to get a server, and counts as unplaceable"
        self._unplaceable[key] = replica

    def take_unplaceable(self) -> list[Replica]:
        """Remove and return the unplaceable replicas, because the servers have changed."""
        unplaceable, self._unplaceable = self._unplaceable, {}
        return list(unplaceable.values())

    def unplaceable(self) -> list[Replica]:
        """Return the replicas without an eligible server that still need one."""
        return [replica for replica in self._unplaceable.values() if self.wants(replica)]

    def planned(self, keys: list[str]) -> list[Replica]:
        """Remove the replicas of a finished plan, and return those that still need a destination."""
        found = [self._planning.pop(key, None) for key in keys]
        return [one for one in found if one is not None and self._may_place(one)]

    def validate(self) -> None:
        """Raise AssertionError if a replica waits in two places, or under another key."""
        places = {
            "unplaced": self.unplaced,
            "selected": self.selected,
            "in a plan": self._planning,
            "without a server": self._unplaceable,
        }
        assert set(self.order) >= self.selected.keys(), "a selected replica would never be placed"
        found: dict[str, str] = {}
        for place, replicas in places.items():
            for key, replica in replicas.items():
                assert replica.key == key, f"{replica.key} waits {place} as {key}"
                assert key not in found, f"{key} waits {place} and {found[key]}"
                found[key] = place

    def wants(self, replica: Replica) -> bool:
        """Return True if the replica still needs a destination."""
        if not replica.wants_open or self._world.replicas.get(replica.key) is not replica:
            return False  # the region is to stay closed, or was dropped
        transition = replica.transition
        if transition is None:
            return replica.open_on is None
        if transition.state is _CLOSING and self._world.alive(transition.source) is not None:
            return False  # the source must close the replica first, even if the destination has died (X1)
        return self._world.alive(transition.destination) is None

    def _may_place(self, replica: Replica) -> bool:
        """Return True if the replica needs a destination and can get one now.

        A replica cannot while a write is in flight or its transition is being read; the reply adds it again.
        """
        return replica.write_state is _IDLE and self.wants(replica)

    def take(self, effects: list[fx.Effect]) -> list[Replica]:
        """Return the replicas to be placed one by one now, those of system tables first (RT-05), at most PLACED_MAX.

        Many replicas without a former place become one request for a bulk plan, which is appended to `effects`. System
        tables are never placed by a plan.
        """
        self.begin_many()
        if self.unplaced:
            self._select(effects)
        taken: list[Replica] = []
        while self.order and len(taken) < PLACED_MAX:
            replica = self.selected.pop(self.order.popleft(), None)
            if replica is not None and self._may_place(replica):
                taken.append(replica)
        return taken

    def _select(self, effects: list[fx.Effect]) -> None:
        """Divide the unplaced replicas between those to be placed one by one and a plan."""
        waiting, self.unplaced = self.unplaced, {}
        wanting = [one for one in waiting.values() if self._may_place(one)]
        urgent = [one for one in wanting if one.region.table.record.system]
        rest = [one for one in wanting if not one.region.table.record.system]
        fresh = [one for one in rest if one.cause is _ASSIGN and not one.plan_id]
        if len(fresh) >= self._bulk_min and self._world.servers:
            for replica in fresh:
                self._planning[replica.key] = replica
            effects.append(fx.RequestPlan([one.key for one in fresh], _ASSIGN.value, origin=fresh[0].origin))
            rest = [one for one in rest if one.key not in self._planning]
        self.order.extendleft(one.key for one in reversed(urgent))
        self.order.extend(one.key for one in rest)
        for replica in chain(urgent, rest):
            self.selected[replica.key] = replica
        assert len(self.order) >= len(self.selected), "a selected replica would never be placed"

    def begin_many(self) -> None:
        """Begin to place many replicas, until `placed` is called. Until then no server is added, removed or altered."""
        assert self._by_load is None, "the servers by load of another placement would be lost"
        self._by_load, self._world.unloaded = {}, set()

    def placed(self) -> None:
        """End the placement of many replicas."""
        assert self._by_load is not None, "no placement of many replicas has begun"
        self._by_load = self._world.unloaded = None

    def target_of_move(self, replica: Replica) -> Incarnation | None:
        """Return the destination for a CLOSE order. Return None if there is none now: then the destination is chosen at
        CLOSED."""
        if not replica.move:
            chosen = self.choose(replica, exclude_home=True)
            if chosen is not None and self._by_load is not None:
                # The server's load includes the replica only when the server has begun to close it. Count it now, so
                # that the next replica goes elsewhere.
                for known in self._by_load.values():
                    known.promise(chosen.uuid)
            return chosen
        server = self._world.servers.get(replica.move)
        if server is None or server.has_ended or not can_open(server.kind, replica.region.table.record.kind):
            return None
        return server.incarnation

    def choose(self, replica: Replica, *, exclude_home: bool = False) -> Incarnation | None:
        """Choose a destination for one replica. With `exclude_home`, choose another server than its current one.

        Servers that failed to open the replica, and flapping servers, are chosen only if no other server is eligible.
        """
        if self._by_load is not None and len(replica.region.replicas) == 1:
            found = self._choose_by_load(replica, self._by_load, exclude_home=exclude_home)
            if found is not None or exclude_home:
                return found
        home = {replica.home.uuid} if exclude_home and replica.home is not None else set()
        doubtful = {*(replica.failed or ()), *self._world.flapping}
        peers, racks = self._world.peers(replica) if len(replica.region.replicas) > 1 else ((), ())
        table = replica.region.table.record
        group, kind = table.group, table.kind
        prefer = None if exclude_home else replica.last_uuid
        servers = self._world.servers
        uuid = choose(
            servers.values(),
            group=group,
            kind=kind,
            prefer=prefer,
            exclude=home | doubtful,
            peers=peers,
            peer_racks=racks,
        )
        if uuid is None and doubtful and not exclude_home:
            # Retry one of the doubtful servers rather than none: the number of attempts is limited.
            uuid = choose(servers.values(), group=group, kind=kind, peers=peers, peer_racks=racks)
        if uuid is None and not exclude_home:
            # An open replica on a draining server is better than a closed one. The replica moves as soon as another
            # server is eligible. Barred servers and servers that have ended get nothing, even if regions stay closed.
            out = {*self._world.bars, *(one.uuid for one in servers.values() if one.has_ended)}
            uuid = choose(
                servers.values(),
                group=group,
                kind=kind,
                exclude=out,
                peers=peers,
                peer_racks=racks,
                include_draining=True,
            )
        assert uuid is None or uuid not in home, f"{replica.key} would move to the server that it leaves"
        return None if uuid is None else servers[uuid].incarnation

    def _choose_by_load(
        self, replica: Replica, by_load: dict[tuple[str, str, bool], LeastLoaded], *, exclude_home: bool
    ) -> Incarnation | None:
        """Choose a server for one of many replicas, as `choose` does.

        Return None if no server is eligible. Without `exclude_home`, draining servers are not considered.
        """
        servers, flapping = self._world.servers, self._world.flapping
        self._notice_unloaded(by_load)
        table, failed = replica.region.table.record, replica.failed or ()
        if exclude_home:
            home = () if replica.home is None else (replica.home.uuid,)
            uuid = self._least_loaded(by_load, table.group, table.kind, (*failed, *home), with_flapping=False)
            return None if uuid is None else servers[uuid].incarnation
        last = servers.get(replica.last_uuid or "")
        if (
            last is not None
            and last.uuid not in flapping
            and is_eligible(last, group=table.group, kind=table.kind, exclude=failed, peers=())
        ):
            return last.incarnation
        uuid = self._least_loaded(by_load, table.group, table.kind, failed, with_flapping=False)
        if uuid is None:
            uuid = self._least_loaded(by_load, table.group, table.kind, (), with_flapping=True)
        return None if uuid is None else servers[uuid].incarnation

    def _least_loaded(
        self,
        by_load: dict[tuple[str, str, bool], LeastLoaded],
        group: str,
        kind: str,
        exclude: Collection[str],
        *,
        with_flapping: bool,
    ) -> str | None:
        key = (group, kind, with_flapping)
        if key not in by_load:
            by_load[key] = LeastLoaded(self._world.servers, group, kind, () if with_flapping else self._world.flapping)
        return by_load[key].choose(exclude)

    def _notice_unloaded(self, by_load: dict[tuple[str, str, bool], LeastLoaded]) -> None:
        """Report to the heaps which servers have lost replicas, because these have been parked, or go elsewhere."""
        unloaded = self._world.unloaded
        if unloaded:
            for known in by_load.values():
                for uuid in unloaded:
                    known.changed(uuid)
            unloaded.clear()
