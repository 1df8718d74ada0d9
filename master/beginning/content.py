"""What a new active master reads before it acts, and what it deletes when the whole cluster starts."""

from __future__ import annotations

from collections.abc import Callable

from master.assignment.history_writer import HistoryWriter
from master.assignment.registry import Registry
from master.assignment.transitions import wipe_ops
from master.catalog import store
from master.leadership.fence import Fence, in_batches
from master.phases import Phases
from regions.cluster.state import ClusterState
from regions.records.model import WorkOrigin
from regions.replication.recovery import is_startup, to_wipe
from regions.transitions.states import Cause


async def read_content(fence: Fence, registry: Registry, kept: ClusterState | None) -> tuple[store.Loaded, bool]:
    """Read the store, except for what a standby has `kept`. Return its content and whether the cluster starts."""
    loaded = await store.load(fence.client, fence.layout, kept, cluster_id=fence.cluster_id)
    alive = [one.incarnation for one in registry.servers]
    # A fenced server may serve until its lease ends, so the cluster is not starting up.
    alive += [one.server.incarnation for one in registry.fences]
    return loaded, is_startup(loaded.region_records(), [one for one, _ in loaded.transitions], alive)


async def wipe(
    fence: Fence, history: HistoryWriter, phases: Phases, loaded: store.Loaded, origin: Callable[[], WorkOrigin]
) -> None:
    """Delete every transition by version: no region is open anywhere (RT-04). May be repeated (X8)."""
    wiped = to_wipe(loaded.region_records(), loaded.transitions)
    if not wiped:
        return
    phases.begin("wipe")
    at = 0
    for batch in in_batches(wipe_ops(fence.layout, wiped)):
        ends = wiped[at : at + len(batch)]
        at += len(batch)
        await history.write(history.page_of_ends(ends, Cause.STARTUP_WIPE, origin()), batch)
