"""Replicas that servers have reported to the active master, and contradictions with the catalog (HB-03, HB-15). Pure.

One `Reports` lives for one tenure. A new active master begins without reports, and every server sends it a full report
(HB-10). So contradictions that an earlier master has not resolved are found again (KUDU-1374, DD-09).

A *suspect* is a replica that a server serves although the catalog does not place it there. Most suspects are steps that
the master has not read yet. So a suspect is checked only after PATIENCE_MS, by reading the store (`ruling`):

- The store places the replica there: the master's state was behind.
- The replica belongs to another server, or its region is deleted, replaced or closed. The master orders the server to
  check the store and to drop the replica. It repeats the order until the server reports that the replica is gone.
- The store does not have the region: the replica is an *orphan*. It is reported to the operator and not touched. It may
  belong to another cluster, or be the last copy after the loss of a catalog (FN-04).

For a replica at rest on the server that reports it, only the schema version is kept. So heartbeats without changes cost
nothing here, and a full report costs little memory per replica.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from mypy_extensions import mypyc_attr

from regions.cluster.state import ClusterState
from regions.messages.heartbeat import CLOSING, OPEN, Measure, ReplicaReport, Report
from regions.records.model import Incarnation, RegionRecord, TabletState, TransitionRecord
from regions.records.replica_key import replica_key

#: A suspect is checked after this time. A shorter contradiction may be a step in progress.
PATIENCE_MS: Final = 3_000
#: Period of checking a suspect again.
RECHECK_MS: Final = 5_000
#: Period of checking an orphan again.
ORPHAN_RECHECK_MS: Final = 60_000
#: Number of suspects that are checked at a time, and number that are examined to find them.
CHECKS_MAX: Final = 200
LOOKS_MAX: Final = 5_000


#: Sizes of replicas that are gone, before they are dropped.
SPARE_SIZES: Final = 1_000


class Ruling(enum.Enum):
    """The result of checking a suspect in the store."""

    OWNED = "owned"  #: The replica belongs to the server, or is on its way to or from the server.
    DISOWNED = "disowned"  #: the replica belongs to another server or to none: the server must drop it
    ORPHAN = "orphan"  #: The store does not have the region. The replica is not touched.


class Holding:
    """The replicas that one start of one server has reported to this active master."""

    __slots__ = ("incarnation", "is_complete", "others", "reported_ms", "versions")

    def __init__(self, incarnation: Incarnation) -> None:
        self.incarnation = incarnation
        #: True when the full report is complete.
        self.is_complete = False
        #: Time of the last report that changed which replicas are served. Loads and sizes alone do not count.
        self.reported_ms = 0
        #: Schema version of each replica that the server serves, by key.
        self.versions: dict[str, int] = {}
        #: State of each replica that the server is opening or closing, by key.
        self.others: dict[str, str] = {}


@mypyc_attr(acyclic=True)
class Suspect:
    """A replica that a server serves although the catalog does not place it there."""

    __slots__ = ("due_ms", "is_orphan", "key", "region_id", "replica", "server", "since_ms", "table_id")

    def __init__(self, server: Incarnation, report: ReplicaReport, key: str, now_ms: int) -> None:
        self.server = server
        self.key = key
        self.table_id = report.table_id
        self.region_id = report.region_id
        self.replica = report.replica
        self.since_ms = now_ms
        #: Time of the next check.
        self.due_ms = now_ms + PATIENCE_MS
        self.is_orphan = False


class Reports:
    """Reports received from region servers since this master became active."""

    def __init__(self, world: ClusterState) -> None:
        self._world = world
        self._holdings: dict[str, Holding] = {}
        self._suspects: dict[tuple[str, str], Suspect] = {}
        #: By the time from one check to the next: the suspects that wait so long, in order of time. A time that is not
        #: the suspect's `due_ms` any more is skipped.
        self._waiting: dict[int, deque[tuple[int, Suspect]]] = {
            PATIENCE_MS: deque(),
            RECHECK_MS: deque(),
            ORPHAN_RECHECK_MS: deque(),
        }
        #: Requests per second by replica key, without idle replicas.
        self.loads: dict[str, float] = {}
        #: Uuid of the server that has reported the load, by key. Reports of a former server must not clear it.
        self._load_from: dict[str, str] = {}
        #: Latest measured sizes by replica key. A size is kept after the server's death, because a region that moves
        #: keeps its rows.
        self.sizes: dict[str, Measure] = {}
        #: Number of heartbeats with a report.
        self.count = 0
        #: Number of complete full reports.
        self.full_count = 0
        #: Number of reported replicas.
        self.replica_count = 0

    # --- look-ups -------------------------------------------------------------------------------------------------

    def holding(self, server: Incarnation) -> Holding | None:
        """Return the reported replicas of this start of a server, or None before its full report has begun."""
        found = self._holdings.get(server.uuid)
        return found if found is not None and found.incarnation == server else None

    def lists(self) -> dict[Incarnation, Holding]:
        """Return the reported replicas of all servers with a complete full report."""
        return {one.incarnation: one for one in self._holdings.values() if one.is_complete}

    def is_changing(self, server: Incarnation, key: str) -> bool:
        """Return True if this start of a server has reported that it opens or closes the replica."""
        holding = self.holding(server)
        return holding is not None and key in holding.others

    def home_at_rest(self, key: str) -> Incarnation | None:
        """Return the server of a replica at rest. Return None for any other, and while its server reports OPENING or
        CLOSING."""
        replica = self._world.replicas.get(key)
        if replica is None or replica.transition is not None or replica.is_writing or replica.open_on is None:
            return None
        home = replica.home
        return None if home is None or self.is_changing(home, key) else home

    def closing(self, server: Incarnation) -> list[str]:
        """Return the replicas that this start of a server closes by its reports."""
        holding = self.holding(server)
        return [] if holding is None else [key for key, state in holding.others.items() if state == CLOSING]

    def wants_full(self, server: Incarnation) -> bool:
        """Return True if the server must begin a full report."""
        return self.holding(server) is None

    # --- reports --------------------------------------------------------------------------------------------------

    def take(self, server: Incarnation, report: Report, now_ms: int) -> None:
        """Process the report of an accepted heartbeat."""
        holding = self._holdings.get(server.uuid)
        if report.begins:
            if holding is not None:
                self._drop(holding)
            holding = self._holdings[server.uuid] = Holding(server)
        elif holding is None or holding.incarnation != server:
            return  # changes without a full report before them; the reply will request a full report
        is_change = report.begins or bool(report.gone)
        self.count += 1
        self.replica_count += len(report.replicas)
        for one in report.replicas:
            is_change = self._take_one(holding, one, now_ms) or is_change
        if is_change:
            holding.reported_ms = now_ms
        for key in report.gone:
            self._gone(holding, key)
        if report.ends:
            holding.is_complete = True
            self.full_count += 1
        if len(self.sizes) > len(self._world.replicas) + SPARE_SIZES:
            self.sizes = {key: size for key, size in self.sizes.items() if key in self._world.replicas}

    def forget(self, uuid: str) -> None:
        """Drop the reports of a server that is gone or has restarted."""
        holding = self._holdings.pop(uuid, None)
        if holding is not None:
            self._drop(holding)

    def keep(self, is_kept: Callable[[str], bool]) -> None:
        """Drop the reports of all servers except those whose uuid is to be kept."""
        for uuid in [one for one in self._holdings if not is_kept(one)]:
            self.forget(uuid)

    def _take_one(self, holding: Holding, report: ReplicaReport, now_ms: int) -> bool:
        """Process the report of one replica. Return True if it changes whether the replica is served."""
        key: str = replica_key(report.region_id, report.replica)  # not `report.key`, a call of interpreted code
        replica = self._world.find(key)
        if replica is not None:
            key = replica.key
        if report.load:
            self.loads[key] = report.load
            self._load_from[key] = holding.incarnation.uuid
        else:
            self._forget_load(holding, key)
        if report.rows >= 0 and report.size_bytes >= 0:
            self.sizes[key] = Measure(report.rows, report.size_bytes)
        if report.state != OPEN:
            holding.versions.pop(key, None)
            holding.others[key] = report.state
            self._suspects.pop((holding.incarnation.uuid, key), None)
            return True
        is_change = key not in holding.versions
        holding.others.pop(key, None)
        holding.versions[key] = report.schema_version
        if replica is None or replica.home != holding.incarnation:
            name = (holding.incarnation.uuid, key)
            if name not in self._suspects:
                suspect = self._suspects[name] = Suspect(holding.incarnation, report, key, now_ms)
                self._put_off(suspect, now_ms, PATIENCE_MS)
        return is_change

    def _gone(self, holding: Holding, key: str) -> None:
        holding.versions.pop(key, None)
        holding.others.pop(key, None)
        self._forget_load(holding, key)
        self._suspects.pop((holding.incarnation.uuid, key), None)

    def _drop(self, holding: Holding) -> None:
        for key in [*holding.versions, *holding.others]:
            self._forget_load(holding, key)
            self._suspects.pop((holding.incarnation.uuid, key), None)

    def _forget_load(self, holding: Holding, key: str) -> None:
        if self._load_from.get(key) == holding.incarnation.uuid:
            del self._load_from[key], self.loads[key]

    # --- contradictions -------------------------------------------------------------------------------------------

    @property
    def orphans(self) -> list[Suspect]:
        """The orphans, in the order of their first reports."""
        return [one for one in self._suspects.values() if one.is_orphan]

    def due(self, now_ms: int) -> list[Suspect]:
        """Return the suspects that are due for a check. Drop suspects that the master's state places there now.

        Only suspects whose time has come are examined, because in a bulk assignment the reports of all regions may come
        before the master has read their transitions.
        """
        found: list[Suspect] = []
        looks = 0
        for waiting in self._waiting.values():
            while waiting and waiting[0][0] <= now_ms and len(found) < CHECKS_MAX and looks < LOOKS_MAX:
                due_ms, one = waiting.popleft()
                looks += 1
                name = (one.server.uuid, one.key)
                if self._suspects.get(name) is not one or one.due_ms != due_ms:
                    continue
                replica = self._world.find(one.key)
                if replica is not None and replica.home == one.server:
                    del self._suspects[name]
                elif replica is not None and _concerns(replica.transition, one.server):
                    self._put_off(one, now_ms, PATIENCE_MS)  # a transition names the server: wait for its end
                else:
                    self._put_off(one, now_ms, RECHECK_MS)
                    found.append(one)
        return found

    def _put_off(self, suspect: Suspect, now_ms: int, wait_ms: int) -> None:
        """Set the time of the suspect's next check."""
        suspect.due_ms = now_ms + wait_ms
        self._waiting[wait_ms].append((suspect.due_ms, suspect))

    def set_ruling(self, suspect: Suspect, ruling: Ruling, now_ms: int) -> bool:
        """Record the ruling about a suspect. Return True for a new orphan."""
        name = (suspect.server.uuid, suspect.key)
        if self._suspects.get(name) is not suspect:
            return False
        if ruling is Ruling.OWNED:
            del self._suspects[name]
            return False
        was_orphan, suspect.is_orphan = suspect.is_orphan, ruling is Ruling.ORPHAN
        self._put_off(suspect, now_ms, ORPHAN_RECHECK_MS if suspect.is_orphan else RECHECK_MS)
        return suspect.is_orphan and not was_orphan


def _concerns(transition: TransitionRecord | None, server: Incarnation) -> bool:
    return transition is not None and server in (transition.source, transition.destination)


def ruling(suspect: Suspect, region: RegionRecord | None, transition: TransitionRecord | None) -> Ruling:
    """Return the ruling about a suspect from its region's record and its transition. None stands for a missing znode.

    The order of the checks matters. A transition that names the server is enough for OWNED. A replica without a region
    record is an orphan. A deleted or replaced region belongs to no server, even if its record still names one.
    """
    if _concerns(transition, suspect.server):
        return Ruling.OWNED
    if region is None:
        return Ruling.ORPHAN
    if region.state in (TabletState.REPLACED, TabletState.DELETED):
        return Ruling.DISOWNED
    if region.location(suspect.replica).incarnation == suspect.server:
        return Ruling.OWNED
    return Ruling.DISOWNED


def by_server(suspects: Iterable[Suspect]) -> Mapping[Incarnation, list[Suspect]]:
    """Return the suspects by the server that has reported them."""
    found: dict[Incarnation, list[Suspect]] = {}
    for one in suspects:
        found.setdefault(one.server, []).append(one)
    return found
