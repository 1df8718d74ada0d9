"""What servers have reported to the active master, and where that contradicts the catalogue (HB-03, HB-15). Pure.

One `Reports` lives as long as a reign: a new leader begins with nothing and is sent a full report by every server
(HB-10), so whatever an earlier leader was told and did not get round to is found again (KUDU-1374, DD-09).

A *suspect* is a replica that a server serves although the catalogue does not put it there. Most are no more than a
step that the master has not read yet, so a suspect is looked into only when it has been one for `PATIENCE_MS`, by
reading the store (`ruling`):

- the store puts it there after all: our picture was behind;
- it belongs to somebody else, or to nobody, being deleted, replaced or closed: the server is told to have the store
  asked, and to drop what is not its own; again and again until its reports say that it is gone;
- the store knows nothing of it at all: an *orphan*. It is reported and left alone, for it may be another cluster's,
  or all that is left of a catalogue that was lost (FN-04).

Of a replica at rest on the server that reports it nothing is kept but a version: heartbeats of which nothing has
changed cost nothing here, and a full report a few words per replica.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Final

from regions.cluster.entities import Replica
from regions.cluster.state import ClusterState
from regions.messages.heartbeat import OPEN, ReplicaReport, Report
from regions.records.model import Incarnation, RegionRecord, TabletState, TransitionRecord
from regions.records.replica_key import replica_key

#: A contradiction that lasts for so long is no step under way any more.
PATIENCE_MS: Final = 3_000
#: How often a suspect that was looked into is looked into again; an orphan less often.
RECHECK_MS: Final = 5_000
ORPHAN_RECHECK_MS: Final = 60_000
#: Suspects looked into at a time.
CHECKS_MAX: Final = 200


class Ruling(enum.Enum):
    """What the store says of a suspect."""

    OWNED = "owned"  #: it is where it should be, or is about to be: no suspect
    DISOWNED = "disowned"  #: somebody else's, or nobody's any more: to be dropped
    ORPHAN = "orphan"  #: nothing is known of it: to be left alone


class Holding:
    """What one start of one server has, as it has told this leader."""

    __slots__ = ("incarnation", "is_complete", "others", "versions")

    def __init__(self, incarnation: Incarnation) -> None:
        self.incarnation = incarnation
        #: The full report has ended.
        self.is_complete = False
        #: Schema version of each replica that it serves, by the replica's key.
        self.versions: dict[str, int] = {}
        #: State of each replica that it is opening or closing.
        self.others: dict[str, str] = {}


class Suspect:
    """A replica that is served where the catalogue does not put it."""

    __slots__ = ("due_ms", "is_orphan", "region_id", "replica", "server", "since_ms", "table_id")

    def __init__(self, server: Incarnation, report: ReplicaReport, now_ms: int) -> None:
        self.server = server
        self.table_id = report.table_id
        self.region_id = report.region_id
        self.replica = report.replica
        self.since_ms = now_ms
        #: When to look into it (again).
        self.due_ms = now_ms + PATIENCE_MS
        self.is_orphan = False

    @property
    def key(self) -> str:
        """`<region_id>-<replica>`."""
        return replica_key(self.region_id, self.replica)


class Reports:
    """Everything that servers have reported in one reign."""

    def __init__(self, world: ClusterState) -> None:
        self._world = world
        self._holdings: dict[str, Holding] = {}
        self._suspects: dict[tuple[str, str], Suspect] = {}
        #: Requests per second of replicas by key; those that nobody asks anything are left out.
        self.loads: dict[str, float] = {}
        #: Who told of them: a former owner's farewell says nothing about the present one.
        self._load_from: dict[str, str] = {}
        #: Heartbeats with a report, full ones that have ended, and replicas told of.
        self.count = 0
        self.full_count = 0
        self.replica_count = 0

    # --- what is known --------------------------------------------------------------------------------------------

    def holding(self, server: Incarnation) -> Holding | None:
        """What that start of a server has told, None before the beginning of its full report."""
        found = self._holdings.get(server.uuid)
        return found if found is not None and found.incarnation == server else None

    def lists(self) -> dict[Incarnation, Holding]:
        """Everything told by servers whose full report has ended."""
        return {one.incarnation: one for one in self._holdings.values() if one.is_complete}

    def version_of(self, replica: Replica) -> int:
        """The schema version that a replica's own server has told of it; -1: nothing yet."""
        holding = None if replica.home is None else self.holding(replica.home)
        return -1 if holding is None else holding.versions.get(replica.key, -1)

    def wants_full(self, server: Incarnation) -> bool:
        """Whether a full report must be begun."""
        return self.holding(server) is None

    # --- reports --------------------------------------------------------------------------------------------------

    def take(self, server: Incarnation, report: Report, now_ms: int) -> None:
        """A report of a heartbeat that is not out of date."""
        holding = self._holdings.get(server.uuid)
        if report.begins:
            if holding is not None:
                self._drop(holding)
            holding = self._holdings[server.uuid] = Holding(server)
        elif holding is None or holding.incarnation != server:
            return  # changes of something that we do not know: the reply asks for everything
        self.count += 1
        self.replica_count += len(report.replicas)
        for one in report.replicas:
            self._take_one(holding, one, now_ms)
        for key in report.gone:
            self._gone(holding, key)
        if report.ends:
            holding.is_complete = True
            self.full_count += 1

    def forget(self, uuid: str) -> None:
        """That server is gone, or has started anew."""
        holding = self._holdings.pop(uuid, None)
        if holding is not None:
            self._drop(holding)

    def _take_one(self, holding: Holding, report: ReplicaReport, now_ms: int) -> None:
        replica = self._world.replicas.get(report.key)
        key = report.key if replica is None else replica.key
        if report.load:
            self.loads[key] = report.load
            self._load_from[key] = holding.incarnation.uuid
        else:
            self._forget_load(holding, key)
        if report.state != OPEN:
            holding.versions.pop(key, None)
            holding.others[key] = report.state
            self._suspects.pop((holding.incarnation.uuid, key), None)
            return
        holding.others.pop(key, None)
        holding.versions[key] = report.schema_version
        if replica is None or replica.home != holding.incarnation:
            name = (holding.incarnation.uuid, key)
            if name not in self._suspects:
                self._suspects[name] = Suspect(holding.incarnation, report, now_ms)

    def _gone(self, holding: Holding, key: str) -> None:
        holding.versions.pop(key, None)
        holding.others.pop(key, None)
        self._forget_load(holding, key)
        self._suspects.pop((holding.incarnation.uuid, key), None)

    def _drop(self, holding: Holding) -> None:
        for key in (*holding.versions, *holding.others):
            self._forget_load(holding, key)
            self._suspects.pop((holding.incarnation.uuid, key), None)

    def _forget_load(self, holding: Holding, key: str) -> None:
        if self._load_from.get(key) == holding.incarnation.uuid:
            del self._load_from[key], self.loads[key]

    # --- contradictions -------------------------------------------------------------------------------------------

    @property
    def orphans(self) -> list[Suspect]:
        """Replicas that are served and of which the store knows nothing, in the order in which they were told of."""
        return [one for one in self._suspects.values() if one.is_orphan]

    def due(self, now_ms: int) -> list[Suspect]:
        """Suspects that are to be looked into now; those that have explained themselves are dropped."""
        found: list[Suspect] = []
        for name, one in list(self._suspects.items()):
            replica = self._world.replicas.get(name[1])
            if replica is not None and (replica.home == one.server or _concerns(replica.transition, one.server)):
                if replica.home == one.server:
                    del self._suspects[name]
                else:
                    one.due_ms = now_ms + PATIENCE_MS  # under way there: its transition will settle it
                continue
            if one.due_ms <= now_ms and len(found) < CHECKS_MAX:
                one.due_ms = now_ms + RECHECK_MS
                found.append(one)
        return found

    def set_ruling(self, suspect: Suspect, ruling: Ruling, now_ms: int) -> bool:
        """The store was read; True if an orphan was found that was none before."""
        name = (suspect.server.uuid, suspect.key)
        if self._suspects.get(name) is not suspect:
            return False
        if ruling is Ruling.OWNED:
            del self._suspects[name]
            return False
        was_orphan, suspect.is_orphan = suspect.is_orphan, ruling is Ruling.ORPHAN
        suspect.due_ms = now_ms + (ORPHAN_RECHECK_MS if suspect.is_orphan else RECHECK_MS)
        return suspect.is_orphan and not was_orphan


def _concerns(transition: TransitionRecord | None, server: Incarnation) -> bool:
    return transition is not None and server in (transition.source, transition.destination)


def ruling(suspect: Suspect, region: RegionRecord | None, transition: TransitionRecord | None) -> Ruling:
    """What the store says of a suspect: its region's record and its transition, None if there is no such znode.

    The order matters. A transition that names the server settles the matter by itself. Without any record of the
    region it is an orphan. What is deleted or replaced is nobody's, whatever its location still says.
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
    """Suspects by the server that has them."""
    found: dict[Incarnation, list[Suspect]] = {}
    for one in suspects:
        found.setdefault(one.server, []).append(one)
    return found
