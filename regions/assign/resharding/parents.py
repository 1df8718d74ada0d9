"""The requirements of a split or merge on its parents, and how shared regions meet them. Pure.

`Parents` contains every difference between shared regions and tablets. `regions/assign/resharding/tablets.py`
implements it for tablets. The steps in `regions/assign/resharding/book.py` are the same for both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from regions.assign.moves import MoveBook
from regions.assign.resharding import objections
from regions.assign.resharding.daughters import with_parents
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.entities import Region, Replica, Server, Table
from regions.cluster.state import ClusterState
from regions.records.acts.resharding import ReshardingRecord
from regions.records.kinds import can_open
from regions.records.model import Incarnation, RegionRecord, RegionState, ServerRecord, TransitionRecord, WorkOrigin

#: Reason of the moves that bring the parents of a merge together.
MERGE: Final = "merge"


class Resharding:
    """A split or merge, and this master's part in it."""

    __slots__ = (
        "asked", "began_ms", "first_sealed_ms", "is_cleaning", "is_ready", "is_writing", "next_ms", "not_sealed",
        "preparing", "record", "refusals", "sealed", "sealing", "version",
    )  # fmt: skip

    def __init__(self, record: ReshardingRecord, version: int, now_ms: int) -> None:
        self.record = record
        self.version = version
        #: When the present state began, as far as this master saw.
        self.began_ms = now_ms
        #: True while a write of the znode is in flight, and until the records have been read again after a refusal.
        self.is_writing = False
        #: The server that has been ordered to prepare the daughters of shared regions, and whether it has.
        self.asked: Incarnation | None = None
        self.is_ready = False
        #: Per server that was ordered to prepare the daughters of tablets: True once the work does not wait for the
        #: server any more; and how often it has refused.
        self.preparing: dict[Incarnation, bool] = {}
        self.refusals: Counter[Incarnation] = Counter()
        #: Per tablet: the server that was ordered to seal it, and the server's answer once it is sealed.
        self.sealing: dict[str, Incarnation] = {}
        self.sealed: dict[str, ev.ParentSealed] = {}
        #: When the first of two tablets was sealed, and why the other one is not yet.
        self.first_sealed_ms = 0
        self.not_sealed = ""
        #: True while a server removes the parents' files.
        self.is_cleaning = False
        #: Time of the next order, after one has failed.
        self.next_ms = 0


class Handover(NamedTuple):
    """Contents of the write in which the daughters replace the parents, without the parents' own records."""

    daughters: tuple[RegionRecord, ...]
    #: The parents' transitions with their versions, which end, and the daughters' transitions, which begin.
    ended: list[tuple[TransitionRecord, int]]
    begun: list[TransitionRecord]


class Parents(Protocol):
    """See the module docstring."""

    def objection_now(self, region: Region) -> str:
        """Return why a region cannot be split or merged at the moment, "" if it can."""

    def objection_to_pair(self, left: Region, right: Region) -> str:
        """Return why two regions cannot be merged at the moment, although each of them could be."""

    def home(self, region: Region) -> ServerRecord | None:
        """Return the server that has the region's rows, None if there is none at the moment."""

    def objection_to_work(self, work: Resharding, parents: Sequence[Region], now_ms: int) -> str:
        """Return why the work must be canceled, "" if it need not."""

    def prepared(self, work: Resharding, parents: Sequence[Region], now_ms: int) -> bool:
        """Return True if the parents can be closed. Otherwise start the missing preparations, unless they are under
        way."""

    def handover(self, work: Resharding, parents: Sequence[Region], now_ms: int) -> Handover | None:
        """Return the contents of the write that replaces the parents, None while a server serves them. In that case
        start the missing steps."""

    def is_open(self, daughter: Region) -> bool:
        """Return True if clients can use a daughter."""

    def cleaned(self, work: Resharding, table: Table, daughters: Sequence[Region], now_ms: int) -> bool:
        """Return True if the work is done. Otherwise start the missing steps, unless they are under way."""

    def replaced(self, event: ev.ParentsReplaced, parents: Sequence[Region], now_ms: int) -> None:
        """The daughters have replaced the parents."""

    def canceled(self, work: Resharding) -> None:
        """The work was canceled."""

    def mark(self, region_id: str, *, is_leaving: bool) -> None:
        """A parent is to be closed, or is replaced; or neither any more."""


class SharedParents:
    """One server has the region open. The server closes the region, and the first open of each daughter takes over the
    rows."""

    def __init__(self, world: ClusterState, emit: Callable[[fx.Effect], None], moves: MoveBook) -> None:
        self._world = world
        self._emit = emit
        self._moves = moves
        #: Decides the next action for a replica; set by the assigner.
        self.decide: Callable[[Replica, int], None] = lambda _replica, _now_ms: None

    def objection_now(self, region: Region) -> str:
        """See `Parents`."""
        return objections.objection_now(region)

    def objection_to_pair(self, left: Region, right: Region) -> str:
        """See `Parents`."""
        del left, right
        return ""

    def objection_to_work(self, work: Resharding, parents: Sequence[Region], now_ms: int) -> str:
        """See `Parents`."""
        del work, parents, now_ms
        return ""

    def home(self, region: Region) -> ServerRecord | None:
        """See `Parents`."""
        server = region.replicas[0].open_on
        return None if server is None else server.record

    def prepared(self, work: Resharding, parents: Sequence[Region], now_ms: int) -> bool:
        """Bring the parents to one server, and order the server to copy their rows into the daughters' files."""
        replicas = [replica for region in parents for replica in region.replicas]
        if not all(_is_at_rest(one) for one in replicas):
            work.asked, work.is_ready = None, False
            return False
        home = _home_of(replicas)
        apart = [one for one in replicas if one.open_on is not home]
        if apart:
            for replica in apart:
                self._gather(replica, home, work, now_ms)
            return False
        if work.asked != home.incarnation:
            work.asked, work.is_ready = None, False
            if now_ms >= work.next_ms:
                work.asked = home.incarnation
                self._emit(fx.PrepareDaughters(work.record, home.record, origin=work.record.origin))
        return work.is_ready

    def _gather(self, replica: Replica, home: Server, work: Resharding, now_ms: int) -> None:
        """Move a parent of a merge to the server of the other one."""
        if replica.move is None:
            self._moves.want(replica, home.uuid, "", MERGE, work.record.origin or WorkOrigin(""))
            self.decide(replica, now_ms)

    def handover(self, work: Resharding, parents: Sequence[Region], now_ms: int) -> Handover | None:
        """See `Parents`. The region's marks have it closed."""
        del now_ms
        if not all(is_put_down(one) for one in parents):
            return None
        records = tuple(one.record for one in parents)
        ended = [
            (one.transition, one.version) for region in parents for one in region.replicas if one.transition is not None
        ]
        return Handover(tuple(with_parents(one, records) for one in work.record.daughters), ended, [])

    def is_open(self, daughter: Region) -> bool:
        """See `Parents`."""
        return daughter.replicas[0].open_on is not None

    def cleaned(self, work: Resharding, table: Table, daughters: Sequence[Region], now_ms: int) -> bool:
        """Have the parents' files removed when all daughters have files of their own."""
        assert daughters, f"the {work.record.words} has made no regions"
        if not work.is_cleaning and now_ms >= work.next_ms and all(self.is_open(one) for one in daughters):
            home = daughters[0].replicas[0].open_on
            if home is not None and can_open(home.kind, table.record.kind):
                work.is_cleaning = True
                self._emit(fx.RemoveParents(work.record, home.record, origin=work.record.origin))
        return False  # the server's answer ends the work

    def replaced(self, event: ev.ParentsReplaced, parents: Sequence[Region], now_ms: int) -> None:
        """See `Parents`. The catalog drops the parents."""

    def canceled(self, work: Resharding) -> None:
        """See `Parents`. The parents' server removes the prepared files when it closes the parents or prepares them
        again."""

    def mark(self, region_id: str, *, is_leaving: bool) -> None:
        """See `Parents`. The region's own marks are all that is needed."""


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
    """Return the server to which the parents are brought: that of the first parent that may stay on its server."""
    servers = [one.open_on for one in replicas if one.open_on is not None]
    assert len(servers) == len(replicas), "a parent is closed, and knows no server"
    staying = [one for one in servers if not one.draining]
    return (staying or servers)[0]
