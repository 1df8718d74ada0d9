"""The narrow interface of the active master that its parts use.

Operations on tables, purging, fencing and plans get an `ActiveContext` instead of the whole `ActiveMaster`. Tests pass
a small object with the attributes that the part uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from twisted.internet.defer import Deferred

from coord.client.ops import WriteOp
from master.leadership.fence import Fence
from master.phases import Phases
from master.runs import Runs
from regions.assign.assigner import Assigner
from regions.balance.round_log import RoundLog
from regions.cluster import effects as fx
from regions.cluster import events as ev
from regions.cluster.limits import BalancerConfig
from regions.cluster.state import ClusterState
from regions.liveness.reports import Reports
from regions.messages import PlannedMove, Purged, RowsPrepared, TabletSealed
from regions.records.intents import TabletIntents, TabletMove
from regions.records.model import BarRecord, ServerRecord, TableRecord, TransitionRecord, WorkOrigin
from regions.replication.tablet import TabletTable
from regions.transitions.states import Cause


class HistoryPages(Protocol):
    """The part of the history writer that adds a page of the history to the multi of a change."""

    def page_of_ends(
        self, transitions: Sequence[tuple[TransitionRecord, int]], cause: Cause, origin: WorkOrigin | None = None
    ) -> Any:
        """Return a page that records the deletion of these transitions at their versions."""

    async def write(self, page: Any, ops: Sequence[WriteOp]) -> None:
        """Perform `ops` and write the page in one multi."""

    def page(self, writes: Sequence[Any]) -> Any:
        """Return a page for a multi with these steps, or None if there are no entries to write."""

    def event(self, cause: str, detail: str, *, region_id: str = "", origin: WorkOrigin | None = None) -> Any:
        """Record an event of the master."""


class FormatWork(Protocol):
    """Raises the cluster's format (`master/catalog/formats.py`)."""

    async def look(self) -> None:
        """Raise the format if all processes support a higher one."""


class VoterCounts(Protocol):
    """Number of a table's tablets that have the wanted number of voters (`master/catalog/tablet_progress.py`)."""

    def is_reached(self) -> bool:
        """Return True if all tablets have this number of voters, or the table wants another number by now."""

    def words(self) -> str:
        """Return how many tablets have this number, as a sentence for the operator."""


class PlannedMembers(Protocol):
    """Moves of tablets' members that plans want (`master/tablets/plan_moves.py`)."""

    def move(self, planned: PlannedMove, plan_id: str) -> tuple[str, TabletMove] | str:
        """Return a planned move with the tablet's id, or the reason for skipping it."""

    async def accept(self, moves: Iterable[tuple[str, TabletMove]]) -> None:
        """Persist moves."""

    def left(self, plan_id: str) -> tuple[int, int]:
        """Return how many moves of a plan have not begun, and how many are in progress."""

    async def withdraw(self, plan_id: str) -> None:
        """Cancel the moves of a plan that have not begun."""


class KeptIntents(Protocol):
    """The intents about members of tablets (`master/tablets/intents.py`)."""

    async def change(
        self, changes: Mapping[str, Callable[[TabletIntents], TabletIntents]], table_ids: Mapping[str, str]
    ) -> None:
        """Change the intents of tablets, by region id."""


class Tablets(Protocol):
    """The part of the keeper of tablets (`master/tablets/keeping.py`) that operations on tables use."""

    @property
    def intents(self) -> KeptIntents:
        """Moves and learners that are wanted."""

    @property
    def plan_moves(self) -> PlannedMembers:
        """Moves of members that plans want."""

    def counts(self, table_id: str) -> TabletTable | None:
        """Return a table with the counts of its tablets, or None if the table has no tablets."""

    def is_closed(self, table_id: str) -> bool:
        """Return True if no replica of the table takes part, as all live servers report."""

    def objection_to_replicas(self, table: TableRecord, replicas: int) -> str:
        """Return why a table cannot have that many replicas, "" if it can. 0 means no change of the number."""

    def with_count(self, table: TableRecord) -> VoterCounts:
        """Return a view of the tablets of a table that have another number of voters than the record says."""

    def has_room(self, uuid: str) -> bool:
        """Return False for a server whose disk has less free space than its reserve."""

    async def purge(self, table_id: str) -> int:
        """Have the replicas of a table deleted. Return how many servers still report."""

    def purged(self, table_id: str) -> None:
        """Forget a table whose rows are removed."""

    def forgotten(self, region_id: str) -> None:
        """Forget a region that was replaced, and whose record is deleted."""

    def finish(self, effect: fx.FinishTable) -> None:
        """Write the end of a deleted table once no replica takes part any more."""


class ActiveContext(Protocol):
    """The active master's state and operations that its parts use."""

    fence: Fence
    assigner: Assigner
    phases: Phases
    runs: Runs
    is_over: bool

    @property
    def formats(self) -> FormatWork:
        """Raises the cluster's format."""

    @property
    def keeper(self) -> Tablets:
        """The keeper of tablets."""

    @property
    def world(self) -> ClusterState:
        """The cluster state on which the assigner bases its decisions."""

    @property
    def history_writer(self) -> HistoryPages:
        """The writer of the history."""

    def observe(self, event: ev.Event) -> None:
        """Hand an event to the assigner and carry out its effects before returning."""

    def persist(self, write: Callable[[], Any]) -> None:
        """Start `retry_write` in the background."""

    async def retry_write(self, write: Callable[[], Any]) -> Any:
        """Perform an idempotent write, repeated after each lost connection. Raise Deposed at the end of the tenure."""

    async def wait(self, holds: Callable[[], bool], wait_ms: int, so_far: Callable[[], str]) -> None:
        """Wait until `holds()`, if `wait_ms` is positive. Raise RpcError(TIMED_OUT), or Deposed."""

    async def room_for_placements(self, are_wanted: Callable[[], bool]) -> None:
        """Wait for a later turn in which few writes of transitions are queued, so that more can follow. Raise
        Deposed."""

    def bar_of(self, server: ServerRecord, reason: str, bar_ms: int) -> BarRecord:
        """Return the bar that keeps regions from `server` for `bar_ms`."""

    def order_purge(self, server: ServerRecord, table_id: str) -> Deferred[Purged]:
        """Order `server` to remove the rows of a deleted table; the result fails with RpcError."""


class ReshardingOrders(Protocol):
    """The part of the dispatcher that orders the work of splits and merges (`master/assignment/dispatch.py`)."""

    def prepare_rows(self, effect: fx.PrepareDaughters | fx.GiveUpDaughters) -> Deferred[RowsPrepared]:
        """Order the parents' server to copy rows into the daughters' files."""

    def seal_tablet(self, effect: fx.SealParent) -> Deferred[TabletSealed]:
        """Order a tablet's leader to seal it."""

    def remove_regions(self, effect: fx.RemoveParents) -> Deferred[Purged]:
        """Order a server to remove the files of replaced regions."""


class ReshardingContext(ActiveContext, Protocol):
    """The part of the active master that `master/resharding/work.py` uses."""

    @property
    def dispatcher(self) -> ReshardingOrders:
        """Sends orders to region servers."""

    @property
    def operations(self) -> TableWork:
        """Operations on tables."""

    def handle_soon(self, event: ev.Event) -> None:
        """Hand an event to the assigner, and carry out its effects in the next reactor turn."""


class ReshardingEffects(Protocol):
    """Carries out effects about splits and merges (`master/resharding/work.py`)."""

    def carry_out(self, effect: fx.Effect) -> None:
        """Begin to carry out an effect."""


class CatalogWork(Protocol):
    """Background work on tables (`master/catalog/janitor.py`)."""

    async def finish_table(self, effect: fx.FinishTable) -> None:
        """Write the end of a deleted table."""

    async def replace_region(self, effect: fx.ReplaceRegion) -> None:
        """Replace a region in one write."""


class TableWork(Protocol):
    """Operations on tables that effects begin (`master/catalog/ddl.py`)."""

    async def refresh_table(self, table_id: str) -> None:
        """Read a table again."""

    async def finish_altering(self, effect: fx.FinishAltering) -> None:
        """Set an ALTERING table to RUNNING."""


class PlanWork(Protocol):
    """Bulk plans (`master/plans/bulk.py`)."""

    async def make(self, request: fx.RequestPlan) -> None:
        """Compute a plan and hand the placements to the assigner."""


class BalancerSwitch(Protocol):
    """The balancer's switch and limits (`master/assignment/balancer.py`)."""

    @property
    def is_automatic(self) -> bool:
        """Return True if rounds begin by themselves now."""

    @property
    def is_asked(self) -> bool:
        """Return True while a round is decided for an operator: no other round is decided meanwhile."""

    @property
    def period_ms(self) -> int:
        """Time between two rounds."""

    @property
    def config(self) -> BalancerConfig:
        """Limits of a round."""

    @property
    def rounds(self) -> RoundLog:
        """The last rounds."""


class EffectContext(ActiveContext, Protocol):
    """The active master, for the modules that carry out effects of the assigner and of the keeper of tablets."""

    reports: Reports

    @property
    def balancing(self) -> BalancerSwitch:
        """The balancer's switch and limits."""

    @property
    def janitor(self) -> CatalogWork:
        """Background work on tables."""

    @property
    def operations(self) -> TableWork:
        """Operations on tables."""

    @property
    def resharding(self) -> ReshardingEffects:
        """Splits and merges."""

    @property
    def bulk_plans(self) -> PlanWork:
        """Bulk plans."""

    def schedule(self) -> None:
        """Carry out effects, and send queued writes and reads, in the next reactor turn."""

    def handle_soon(self, event: ev.Event) -> None:
        """Hand an event to the assigner and the keeper, and carry out their effects in the next reactor turn."""

    def check_epoch(self, message: str) -> None:
        """Read the epoch from the store because a server has reported a higher one."""

    async def read_region(self, table_id: str, region_id: str) -> None:
        """Read a region's record again."""
