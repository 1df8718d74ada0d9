"""The transitions that the active master must read, by the events of its watch. Pure.

An event only says that a znode was created, changed or deleted. Two kinds of events need no read, or no early read:

- The event of a write of this master that is in flight. If another process made the change, the write is refused, and
  the znode is read then.
- A server takes OFFLINE only to OPENING, and OPENING needs no action of the master (RT-18). Mostly OPENED follows soon.
"""

from __future__ import annotations

from collections.abc import Container
from itertools import islice
from typing import Final

from coord.wire.records import EVENT_CREATED, EVENT_DATA_CHANGED, EVENT_DELETED
from regions.cluster.entities import Replica
from regions.cluster.state import ClusterState
from regions.records.model import RegionState, TransitionRecord
from regions.records.replica_key import key_begin, key_in, parse_replica_key, replica_key

# Members of enums: a compiled module reads its own constant several times as fast.
_OFFLINE: Final = RegionState.OFFLINE

#: A transition that has probably become OPENING is read after this time, unless another event comes first.
OPENING_UNREAD_MS: Final = 1_500


class ChangedTransitions:
    """The transitions to be read, by the replica's key, each once and in the order of `put`."""

    def __init__(self) -> None:
        #: Transitions to be read now.
        self.queued: dict[str, None] = {}
        #: Transitions to be read at a later time unless `put` comes first. Insertion order is order of time.
        self._later: dict[str, int] = {}

    def put(self, region_id: str, replica: int) -> None:
        """Queue a transition."""
        self.put_key(replica_key(region_id, replica))

    def put_key(self, key: str) -> None:
        """Queue the transition of the replica with this key."""
        self._later.pop(key, None)
        self.queued[key] = None
        assert key not in self._later, f"{key} is to be read now and later"

    def put_later(self, region_id: str, replica: int, when_ms: int) -> bool:
        """Queue a transition for `when_ms`, unless `put` queues it earlier. Return False if it is queued."""
        return self._put_later(replica_key(region_id, replica), when_ms)

    def _put_later(self, key: str, when_ms: int) -> bool:
        if key in self._later or key in self.queued:
            return False
        self._later[key] = when_ms
        return True

    def due(self, now_ms: int) -> None:
        """Queue the transitions of `put_later` whose time has come."""
        while self._later:
            key, when_ms = next(iter(self._later.items()))
            if when_ms > now_ms:
                return
            self.put_key(key)  # takes the key out of `_later`

    def take(self, most: int) -> list[str]:
        """Remove and return the keys of up to `most` transitions, the oldest first."""
        keys = list(islice(self.queued, most))
        for key in keys:
            del self.queued[key]
        return keys

    def clear(self) -> None:
        """Forget everything."""
        self.queued.clear()
        self._later.clear()

    def see(
        self,
        events: list[tuple[int, str, int]],
        directory: str,
        world: ClusterState,
        tablets: Container[str],
        now_ms: int,
    ) -> list[tuple[int, str, int]]:
        """Queue the transitions that `events` below `directory` report as changed: (event type, path, zxid).

        Return the events of `tablets`' members, which are not queued, as (event type, region id, replica).
        """
        others: list[tuple[int, str, int]] = []
        begin = key_begin(directory)
        for event_type, path, _ in events:
            replica = world.find(path[begin:])
            if replica is None:
                self._see_unknown(event_type, key_in(path, directory), tablets, others)
            elif not is_own_write(replica, event_type) and (
                event_type != EVENT_DATA_CHANGED
                or not is_only_begun(replica)
                or not self._put_later(replica.key, now_ms + OPENING_UNREAD_MS)
            ):
                self.put_key(replica.key)
        return others

    def _see_unknown(
        self, event_type: int, key: str | None, tablets: Container[str], others: list[tuple[int, str, int]]
    ) -> None:
        """Queue a transition of a replica that is not in memory, or add its event to `others`."""
        if key is None:
            return  # a folder of the directory
        region_id, number = parse_replica_key(key)
        if region_id in tablets:
            others.append((event_type, region_id, number))
        else:
            self.put_key(key)


def is_own_write(replica: Replica, event_type: int) -> bool:
    """Return True if a watch event of the transition reports the write that is in flight for `replica`."""
    return replica.write is not None and event_type == event_of_write(replica.transition, replica.write.record)


def event_of_write(before: TransitionRecord | None, after: TransitionRecord | None) -> int:
    """Return the type of the watch event of a write that makes `after` out of `before`; None stands for no znode."""
    if before is None:
        return EVENT_CREATED
    return EVENT_DELETED if after is None else EVENT_DATA_CHANGED


def is_only_begun(replica: Replica) -> bool:
    """Return True if a change of the transition's data can only be the server's step from OFFLINE to OPENING."""
    transition = replica.transition
    if transition is None or transition.state is not _OFFLINE or replica.is_writing:
        return False
    if replica.failure is not None:  # the master's next step depends on the value of the znode
        return False
    return replica.order is not None and replica.order.first_sent_ms > 0
