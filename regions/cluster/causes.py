"""Cause ids: the id of the request, znode event, heartbeat, timer or takeover that began a chain of work. Pure.

The active master numbers the chains of its tenure: `e12-3f` is the 63rd chain under epoch 12. The ids contain nothing
random, so a simulation gives the same ids every time. The id goes with everything that follows:

    event -> effects of the assigner -> transition record, orders to servers -> the servers' steps -> history

A transition keeps the id of the work that began it, also under later masters. It gets a new id when new work takes it
over: its server dies, or an operator retries a parked region.

The text of an origin describes what began the chain. Its first word is the sort: request, znode, heartbeat, timer or
takeover.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from regions.cluster import events as ev
from regions.cluster.entities import Replica, Server
from regions.cluster.state import ClusterState
from regions.records.model import ServerRecord, TransitionRecord, WorkOrigin
from regions.transitions.writes import TransitionRead, WriteDone, WriteFailed


@mypyc_attr(acyclic=True)
class ActingEvent:
    """An event that is being handled, and the origin of the resulting work; the origin is None until its first use."""

    __slots__ = ("origin", "what")

    def __init__(self, origin: WorkOrigin | None, what: ev.Event | str) -> None:
        self.origin = origin
        self.what = what


class Causes:
    """The origins of one active master, and the assigner's current origin.

    Most events only continue the work on a replica. So a new origin gets its id at its first use.
    """

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._last = 0
        #: The event that is being handled.
        self.acting = ActingEvent(None, f"takeover: epoch {epoch} begins")
        #: Origins that have begun and are not in the log. Their only reader empties the list.
        self.begun: list[WorkOrigin] = []

    def begin(self, text: str) -> WorkOrigin:
        """Return the origin of a new chain of work, described by `text`."""
        assert text.partition(":")[0] in SORTS, text
        self._last += 1
        origin = WorkOrigin(f"e{self._epoch}-{self._last:x}", text)
        self.begun.append(origin)
        return origin

    def act_for(self, origin: WorkOrigin | None, what: ev.Event | str) -> None:
        """Set the current origin. None begins a new origin, described by `what`."""
        self.acting = ActingEvent(origin, what)

    def current(self) -> WorkOrigin:
        """Return the current origin. Begin a new one if there is none, or if it has an id without a text."""
        acting = self.acting
        if acting.origin is None or not acting.origin.text:
            acting.origin = self.begin(acting.what if isinstance(acting.what, str) else describe(acting.what))
        return acting.origin

    def with_text(self, known: WorkOrigin | None) -> WorkOrigin:
        """Return `known` if it has a text for the history, else the current origin."""
        return known if known is not None and known.text else self.current()


def replica_of(event: ev.Event, world: ClusterState) -> Replica | None:
    """Return the replica whose work `event` continues; None for other events, and if the replica does not exist any
    more."""
    if isinstance(event, TransitionRead):
        return world.find(event.key)
    if isinstance(event, WriteDone):
        return world.find(event.key)
    if isinstance(event, WriteFailed):
        return world.find(event.key)
    return None


def continued(event: ev.Event) -> WorkOrigin | None:
    """Return the origin of the work that `event` continues, or None if the event begins new work.

    The events of one replica's transition continue the work of this replica (`replica_of`).
    """
    match event:
        case ev.MovesAccepted():
            return event.batch.origin
        case ev.ServerFenced():
            return event.fence.origin
        case ev.ReshardingSeen() | ev.ParentsReplaced():
            return event.record.origin
        case _:
            return None


def is_part_of(origin: WorkOrigin | None, transition: TransitionRecord) -> bool:
    """Return True if the transition is part of the work that `origin` began (None: of any work)."""
    return origin is None or (transition.origin is not None and origin.cause_id == transition.origin.cause_id)


def origin_of_close(replica: Replica, server: Server) -> WorkOrigin | None:
    """Return the origin of closing a replica at rest, or None for the assigner's current origin."""
    if not replica.region.table.wants_open:
        return replica.region.table.origin
    if not replica.wants_open or replica.is_damaged:
        return None
    return replica.origin if replica.move is not None else server.origin


#: First words of an origin's text.
SORTS = frozenset({"request", "znode", "heartbeat", "timer", "takeover"})


def describe(event: ev.Event) -> str:
    """Return the text of the origin that `event` begins."""
    match event:
        case ev.ServerUp():
            leaving = " is about to stop" if event.record.leaving else " has registered"
            return f"znode: server {_address(event.record)}{leaving}"
        case ev.ServersEnded():
            return f"znode: the registrations of {len(event.starts)} servers are gone"
        case ev.ServerDown():
            return f"znode: the registration of server {event.uuid} is gone"
        case ev.ServerFenced():
            return f"znode: server {_address(event.fence.server)} is fenced"
        case ev.DrainingSeen():
            return "znode: the list of draining servers has changed"
        case ev.BarsSeen():
            return "znode: the bars of fenced servers have changed"
        case ev.TableSeen():
            return f"znode: the record of table {event.record.name} has changed"
        case ev.RegionSeen():
            return f"znode: the record of region {event.record.region_id} has changed"
        case ev.TransitionRead():
            return f"znode: the transition of {event.key} has changed"
        case ev.ReplicasReported():
            return f"heartbeat: report of server {event.server}"
        case ev.OrdersAnswered() | ev.OrdersLost() | ev.AltersAnswered() | ev.AltersLost():
            return "timer: a server's orders were answered or timed out"
        case ev.MovesAccepted():
            return f"request: batch {event.batch.move_id} of moves ({event.batch.reason})"
        case ev.MoveRequested() | ev.RetryRequested():
            return f"request: {type(event).__name__} {event.key}"
        case ev.FenceRequested():
            return f"request: FenceRequested {event.uuid}"
        case ev.MovesWithdrawn() | ev.PlanReady():
            return f"request: {type(event).__name__} {event.plan_id}"
        case ev.WriteDone() | ev.WriteFailed():
            return f"znode: reply to the write of {event.key}"
        case ev.FenceFailed():
            return f"znode: server {event.uuid} could not be fenced"
        case ev.FinishAnswered():
            return f"znode: reply to the end of closed table {event.table_id}"
        case ev.ReshardingSeen() | ev.ParentsReplaced():
            return f"znode: {event.record.words} is {event.record.state.value}"
        case ev.ReshardingEnded() | ev.DaughtersPrepared() | ev.ParentSealed() | ev.ParentsRemoved():
            return f"znode: reply about the split or merge of region {event.region_id}"
        case _:
            return f"znode: reply to the replacement of region {event.region_id}"


def _address(record: ServerRecord) -> str:
    return f"{record.host}:{record.port}"
