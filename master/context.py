"""What the parts of the active master use of the active master: one narrow context.

Operations on tables, purging, fencing and plans get an `ActiveContext` instead of the whole `ActiveMaster`. Tests give
them a small object with the attributes that they use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from twisted.internet.defer import Deferred

from coord.client.ops import WriteOp
from master.leadership.fence import Fence
from master.phases import Phases
from master.runs import Runs
from regions.assign.assigner import Assigner
from regions.cluster import events as ev
from regions.cluster.state import ClusterState
from regions.messages import Purged
from regions.records.model import BarRecord, ServerRecord, TransitionRecord
from regions.transitions.states import Cause


class HistoryPages(Protocol):
    """Pages of the history that go into the same multi as a change."""

    def page_of_ends(self, transitions: Sequence[tuple[TransitionRecord, int]], cause: Cause) -> Any:
        """Return a page for a multi that deletes these transitions at their versions."""

    async def write(self, page: Any, ops: Sequence[WriteOp]) -> None:
        """Perform `ops` and write the page in one multi."""


class ActiveContext(Protocol):
    """The active master, as its parts see it."""

    fence: Fence
    assigner: Assigner
    phases: Phases
    runs: Runs
    is_over: bool

    @property
    def world(self) -> ClusterState:
        """The cluster state on which the assigner bases its decisions."""

    @property
    def history_writer(self) -> HistoryPages:
        """Writes the history."""

    def observe(self, event: ev.Event) -> None:
        """Hand an event to the assigner and carry out what follows before returning."""

    def persist(self, write: Callable[[], Any]) -> None:
        """`retry_write` for a write that nobody waits for."""

    async def retry_write(self, write: Callable[[], Any]) -> Any:
        """Repeat a write until the store has answered. Raise Deposed when this master is no longer active."""

    async def wait(self, holds: Callable[[], bool], wait_ms: int, so_far: Callable[[], str]) -> None:
        """Wait until `holds()`, if `wait_ms` is positive. Raise RpcError(TIMED_OUT), or Deposed."""

    def bar_of(self, server: ServerRecord, reason: str, bar_ms: int) -> BarRecord:
        """Return the bar that keeps regions from `server` for `bar_ms`."""

    def order_purge(self, server: ServerRecord, table_id: str) -> Deferred[Purged]:
        """Order `server` to remove the rows of a deleted table; fails with RpcError."""
