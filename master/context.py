"""The narrow interface of the active master that its parts use.

Operations on tables, purging, fencing and plans get an `ActiveContext` instead of the whole `ActiveMaster`. Tests pass
a small object with the attributes that the part uses.
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
    """The part of the history writer that adds a page of the history to the multi of a change."""

    def page_of_ends(self, transitions: Sequence[tuple[TransitionRecord, int]], cause: Cause) -> Any:
        """Return a page that records the deletion of these transitions at their versions."""

    async def write(self, page: Any, ops: Sequence[WriteOp]) -> None:
        """Perform `ops` and write the page in one multi."""


class ActiveContext(Protocol):
    """The active master's state and operations that its parts use."""

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
        """The writer of the history."""

    def observe(self, event: ev.Event) -> None:
        """Hand an event to the assigner and carry out its effects before returning."""

    def persist(self, write: Callable[[], Any]) -> None:
        """Start `retry_write` in the background."""

    async def retry_write(self, write: Callable[[], Any]) -> Any:
        """Perform an idempotent write, repeated after each lost connection. Raise Deposed at the end of the tenure."""

    async def wait(self, holds: Callable[[], bool], wait_ms: int, so_far: Callable[[], str]) -> None:
        """Wait until `holds()`, if `wait_ms` is positive. Raise RpcError(TIMED_OUT), or Deposed."""

    def bar_of(self, server: ServerRecord, reason: str, bar_ms: int) -> BarRecord:
        """Return the bar that keeps regions from `server` for `bar_ms`."""

    def order_purge(self, server: ServerRecord, table_id: str) -> Deferred[Purged]:
        """Order `server` to remove the rows of a deleted table; the result fails with RpcError."""
