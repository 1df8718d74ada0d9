"""Select: destinations for the replicas that want one, singly or by way of a bulk plan.

A replica that waits is in exactly one place: among the unplaced until the next selection, with a plan that is being
made, or stranded until an eligible server comes. Being in there decides nothing: whether the replica still wants a
destination is looked at when its turn comes.
"""

from __future__ import annotations

from regions.assign.placement import choose
from regions.cluster import effects as fx
from regions.cluster.entities import Replica
from regions.cluster.state import ClusterState
from regions.cluster.work import WriteState
from regions.records.kinds import can_open
from regions.records.model import Incarnation, RegionState
from regions.transitions.states import Cause


class Selection:
    """The replicas that wait for a destination."""

    def __init__(self, world: ClusterState, bulk_min: int) -> None:
        self._world = world
        self._bulk_min = bulk_min
        self._unplaced: dict[str, Replica] = {}
        self._planning: dict[str, Replica] = {}
        self._stranded: dict[str, Replica] = {}

    def __contains__(self, replica: Replica) -> bool:
        """Whether the replica waits for the next selection, for a plan, or for an eligible server."""
        key = replica.key
        return replica in (self._unplaced.get(key), self._planning.get(key), self._stranded.get(key))

    def __len__(self) -> int:
        return len(self._unplaced) + len(self._planning) + len(self._stranded)

    def add(self, replica: Replica) -> None:
        """Let the replica wait for the next selection; one that waits for a plan goes on waiting for it."""
        if replica.key not in self._planning:
            self._stranded.pop(replica.key, None)
            self._unplaced[replica.key] = replica

    def strand(self, replica: Replica) -> None:
        """No server is eligible now."""
        self._stranded[replica.key] = replica

    def release_stranded(self) -> list[Replica]:
        """The stranded, to be settled again because servers have changed."""
        stranded, self._stranded = self._stranded, {}
        return list(stranded.values())

    def stranded(self) -> list[Replica]:
        """The replicas without an eligible server that still want one."""
        return [replica for replica in self._stranded.values() if self.wants(replica)]

    def planned(self, keys: list[str]) -> list[Replica]:
        """Take the replicas whose plan is ready and that still want a destination."""
        found = [self._planning.pop(key, None) for key in keys]
        return [one for one in found if one is not None and self._may_place(one)]

    def validate(self) -> None:
        """Raise AssertionError if a replica waits in two places, or under another key."""
        places = {"unplaced": self._unplaced, "in a plan": self._planning, "without a server": self._stranded}
        found: dict[str, str] = {}
        for place, replicas in places.items():
            for key, replica in replicas.items():
                assert replica.key == key, f"{replica.key} waits {place} as {key}"
                assert key not in found, f"{key} waits {place} and {found[key]}"
                found[key] = place

    def wants(self, replica: Replica) -> bool:
        """Whether the replica still needs a destination."""
        if not replica.wants_open or self._world.replicas.get(replica.key) is not replica:
            return False  # the region is to stay closed, or was dropped
        transition = replica.transition
        if transition is None:
            return replica.open_on is None
        if transition.state is RegionState.CLOSING and self._world.alive(transition.source) is not None:
            return False  # X1: whatever happens to its destination, the source must close it first
        return self._world.alive(transition.destination) is None

    def _may_place(self, replica: Replica) -> bool:
        """Whether the replica needs a destination and may be given one now. While a write is on its way, or the
        transition is being read, it may not; the answer puts it here again."""
        return replica.write_state is WriteState.IDLE and self.wants(replica)

    def take(self, effects: list[fx.Effect]) -> list[Replica]:
        """Replicas to be placed one by one now, those of system tables first and never by way of a plan (RT-05).

        Many that want a first place at once become one request for a bulk plan, appended to `effects`.
        """
        if not self._unplaced:
            return []
        waiting, self._unplaced = self._unplaced, {}
        wanting = [one for one in waiting.values() if self._may_place(one)]
        urgent = [one for one in wanting if one.region.table.record.system]
        rest = [one for one in wanting if not one.region.table.record.system]
        fresh = [one for one in rest if one.cause is Cause.ASSIGN and not one.plan_id]
        if len(fresh) < self._bulk_min or not self._world.servers:
            return urgent + rest
        for replica in fresh:
            self._planning[replica.key] = replica
        effects.append(fx.RequestPlan([one.key for one in fresh], Cause.ASSIGN.value, origin=fresh[0].origin))
        return urgent + [one for one in rest if one.key not in self._planning]

    def target_of_move(self, replica: Replica) -> Incarnation | None:
        """Return the destination for a CLOSE order; None if there is none now, and it is chosen again at CLOSED."""
        if not replica.move:
            return self.choose(replica, exclude_home=True)
        server = self._world.servers.get(replica.move)
        if server is None or not can_open(server.kind, replica.region.table.record.kind):
            return None
        return server.incarnation

    def choose(self, replica: Replica, *, exclude_home: bool = False) -> Incarnation | None:
        """A destination for one replica; `exclude_home`: it is to leave the server that has it.

        Servers that failed it, and servers that come and go, only get it when there is no other.
        """
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
            # Better one of them again than none: the attempts are bounded.
            uuid = choose(servers.values(), group=group, kind=kind, peers=peers, peer_racks=racks)
        if uuid is None and not exclude_home:
            # Open on a server that is to be emptied is better than open nowhere; it moves on once there is a place.
            # A fenced one was taken out by an operator: it gets nothing, whatever that leaves closed.
            out = self._world.bars
            uuid = choose(
                servers.values(),
                group=group,
                kind=kind,
                exclude=out,
                peers=peers,
                peer_racks=racks,
                even_draining=True,
            )
        return None if uuid is None else servers[uuid].incarnation
