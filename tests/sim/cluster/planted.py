"""Planted bugs of masters and region servers. A simulation is credible only if it finds them.

Each bug is a set of patches of the real classes for the time of one run, with the kind of run that reveals it.
`tests/support/planted.py` plants them and searches for them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest import mock

from twisted.internet.defer import succeed

from coord.client.ops import Check, Delete, SetData
from coord.client.session import EVENT_GAP, SessionState
from coord.client.watches import Event
from coord.wire.records import EVENT_DATA_CHANGED
from master.assignment.write_queue import WriteQueue
from master.beginning import content as beginning
from master.catalog.purging import Purging
from master.leadership.election import Election
from master.leadership.fence import Fence
from master.plans.bulk import BulkPlans
from master.standby.watcher import StoreWatcher, Warm
from regions.assign import transition_writes
from regions.assign.selection import Selection
from regions.assign.servers import ServerTracker
from regions.cluster.mirror import StandbyMirror
from regions.cluster.state import ClusterState as Picture
from regions.liveness.reports import Reports
from regions.records.model import RegionState
from regions.transitions import next_action
from regions.transitions.next_action import Action, Party
from regions.transitions.states import Cause
from regionserver.replica.machine import Replicas
from regionserver.replica.states import Phase
from regionserver.replica.step_writer import StepWriter
from regionserver.server import RegionServer
from regionserver.session import master_link as tie_module
from regionserver.session.lease import Lease
from regionserver.session.master_link import MasterLink
from regionserver.storage import purging as server_purging
from simulation.cluster.cluster import SimulatedCluster
from simulation.drills import DRILLS, come_up, operate
from simulation.engine.timeline import SECOND
from simulation.run import Options, RunVerdict, run
from tests.support.planted import Found, Patch, PlantedBug, first_lately, hunt, instead


class Bug(PlantedBug):
    """One planted bug. One of the seeds 1 to `seeds` must find it."""

    seeds = 10
    #: The seed that last found the bug, tried first to save time; 0: seeds in order.
    lately = 0
    #: Number of masters; 0: chosen by the seed.
    masters = 0

    def script(self, cluster: SimulatedCluster) -> None:
        """Put the cluster through the situation that reveals the bug."""
        DRILLS["random"](cluster)

    def options(self, seed: int) -> Options:
        """Return the options of a run."""
        return Options(seed, masters=self.masters)

    def try_seed(self, seed: int, *, planted: bool = True) -> RunVerdict:
        """Run once, with the bug or without it."""
        with self.planted() if planted else nullcontext():
            return run(self.options(seed), script=self.script)

    def hunt(self) -> Found | None:
        """Return the first seed that finds the bug."""
        return hunt(lambda seed: self.try_seed(seed).violation, first_lately(self.lately, self.seeds))


def trouble(
    cluster: SimulatedCluster,
    kinds: list[str],
    pause_s: float,
    prepare: Callable[[SimulatedCluster], None] | None = None,
) -> None:
    """Simulate a run with only these faults, and an active operator."""
    come_up(cluster)
    cluster.setting.work.until = cluster.timeline.now + int(cluster.options.duration_s * SECOND)
    if prepare is not None:
        prepare(cluster)
    cluster.faults.choose(kinds)
    cluster.faults.pause_s = pause_s
    cluster.faults.start()
    operate(cluster, 0.5)
    cluster.run_for(cluster.options.duration_s)


# --- fencing ---


class NoEpochCheck(Bug):
    """Masters write without a check of their epoch.

    The end of the session protects as well. The check matters for a master that was killed and restarted at once, while
    its earlier requests are still in flight.
    """

    seeds = 40

    def patches(self) -> list[Patch]:
        def send(self: Fence, ops: Any) -> Any:
            return self.client.multi(list(ops)) if ops else succeed([])

        return [instead(Fence, "send", send)]

    def script(self, cluster: SimulatedCluster) -> None:
        come_up(cluster)
        cluster.setting.work.until = cluster.timeline.now + 15 * SECOND
        chance = cluster.timeline.chance
        while cluster.timeline.now < cluster.setting.work.until:
            active = cluster.faults.active()
            for node in cluster.store.nodes:
                hosts = [one.address for one in node.pipeline.clients.connections.values()]
                if active is not None and active.process is not None and active.host in hosts:
                    cluster.operator.create(2)
                    cluster.run_for(chance.between(0, 0.01))
                    node.cut_off()
                    cluster.run_for(chance.between(0, 0.03))
                    active.process.kill()
                    active.start()
                    cluster.run_for(1.2)
                    node.rejoin()
            cluster.run_for(chance.between(0, 1))


class ActiveIsEnough(Bug):
    """The winner of /active becomes active without raising the epoch."""

    def patches(self) -> list[Patch]:
        async def keep_epoch(self: Election, _now_ms: int) -> int:
            _, stat = await self._client.get(self._layout.epoch)
            return int(stat.version)

        return [instead(Election, "_raise_epoch", keep_epoch)]


class LowerEpochsObeyed(Bug):
    """A server executes orders of any master, whatever its epoch."""

    seeds = 40

    def patches(self) -> list[Patch]:
        def admit(self: RegionServer, command: Any) -> None:
            self._epoch = command.epoch
            real(self, command)

        real = RegionServer._admit
        return [instead(RegionServer, "_admit", admit)]

    def script(self, cluster: SimulatedCluster) -> None:
        trouble(cluster, ["freeze-active", "master-session-ends", "slow-network", "cut-one-way"], 0.4)


# --- compare and set ---


def _any_version(op: Any) -> Any:
    if isinstance(op, SetData):
        return SetData(op.path, op.data)
    if isinstance(op, Check):
        return Check(op.path, -1)
    return Delete(op.path) if isinstance(op, Delete) else op


class NoVersionByServers(Bug):
    """Servers write their steps without checking the version that they have read."""

    seeds = 60

    def patches(self) -> list[Patch]:
        def operations(self: StepWriter, step: Any) -> Any:
            return [_any_version(op) for op in real(self, step)]

        real = StepWriter._operations
        return [instead(StepWriter, "_operations", operations)]


class NoVersionByMasters(Bug):
    """Masters write and delete transitions without checking the version that they have read."""

    seeds = 60

    def patches(self) -> list[Patch]:
        def operations(self: WriteQueue, effect: Any) -> Any:
            return [_any_version(op) for op in real(self, effect)]

        real = WriteQueue._ops
        return [instead(WriteQueue, "_ops", operations)]

    def script(self, cluster: SimulatedCluster) -> None:
        def slow(cluster: SimulatedCluster) -> None:
            cluster.setting.work.slow_open = cluster.setting.work.hanging_open = 0.3

        trouble(cluster, ["slow-network", "freeze-active", "kill-server", "store-pause"], 0.5, slow)


class LocationApart(Bug):
    """OPENED is written without the location, which follows in a separate write."""

    def patches(self) -> list[Patch]:
        def operations(self: StepWriter, step: Any) -> Any:
            ops = real(self, step)
            return ops if step.cause is not Cause.OPEN_DONE else [ops[0], Check(ops[1].path, ops[1].version)]

        def taken(self: StepWriter, results: Any, *rest: Any) -> Any:
            return was(self, [one or results[0] for one in results], *rest)

        real, was = StepWriter._operations, StepWriter._taken
        return [instead(StepWriter, "_operations", operations), instead(StepWriter, "_taken", taken)]


# --- the matrices ---


class X1Literally(Bug):
    """CLOSING is forced to OFFLINE when its destination dies, although its source lives."""

    seeds = 30

    def patches(self) -> list[Patch]:
        row = (RegionState.CLOSING, Party.ALIVE, Party.DEAD)
        literal = next_action.NextStep(Action.REASSIGN, Cause.SERVER_DEATH, "RF-05")

        def wants(self: Selection, replica: Any) -> bool:
            transition = replica.transition
            if transition is None or transition.state is not RegionState.CLOSING:
                return bool(real(self, replica))
            return self._world.alive(transition.destination) is None

        real = Selection.wants
        return [mock.patch.dict(next_action._REOPEN_TABLE, {row: literal}), instead(Selection, "wants", wants)]

    def script(self, cluster: SimulatedCluster) -> None:
        def slow(cluster: SimulatedCluster) -> None:
            cluster.setting.work.slow_close = 0.7

        trouble(cluster, ["kill-server"], 1.0, slow)


class WipeOnFailover(Bug):
    """Every new master takes its takeover for a cluster startup, and deletes all transitions."""

    seeds = 30
    lately = 6

    def patches(self) -> list[Patch]:
        return [instead(beginning, "is_startup", lambda *_: True)]

    def script(self, cluster: SimulatedCluster) -> None:
        trouble(cluster, ["kill-active"], 1.0)


class ClosedWithoutIntent(Bug):
    """A CLOSED transition is deleted without a check of the intent that allows it."""

    seeds = 30

    def patches(self) -> list[Patch]:
        def delete(*arguments: Any, **more: Any) -> Any:
            effect = real(*arguments, **more)
            effect.table_check = None
            return effect

        real = transition_writes.delete
        return [instead(transition_writes, "delete", delete)]

    def script(self, cluster: SimulatedCluster) -> None:
        come_up(cluster)
        cluster.setting.work.until = cluster.timeline.now + 15 * SECOND
        chance, network = cluster.timeline.chance, cluster.network
        network.heavy = 0.3
        while cluster.timeline.now < cluster.setting.work.until:
            cluster.operator.switch()
            cluster.run_for(chance.between(0, 0.1))


class PlanForgotten(Bug):
    """A new master forgets the unfinished bulk plan of its predecessor (X8)."""

    seeds = 30

    def patches(self) -> list[Patch]:
        return [instead(BulkPlans, "load", lambda *_: None)]

    def script(self, cluster: SimulatedCluster) -> None:
        DRILLS["master-during-bulk"](cluster)


# --- standbys ---


class MirrorMissesAnEvent(Bug):
    """A standby ignores changes of regions, and keeps their former servers."""

    def patches(self) -> list[Patch]:
        def of_records(self: StandbyMirror, events: list[Event]) -> list[Event]:
            return [
                one
                for one in real(self, events)
                if one[0] != EVENT_DATA_CHANGED or not one[1].startswith(f"{self._layout.regions}/")
            ]

        real = StandbyMirror.of_records
        return [instead(StandbyMirror, "of_records", of_records)]


class MirrorKeepsWhatIsGone(Bug):
    """A standby ignores the deletion of transitions."""

    def patches(self) -> list[Patch]:
        def gone(self: StandbyMirror, path: str) -> None:
            if self._layout.parse_transition(path) is None:
                real(self, path)

        real = StandbyMirror.gone
        return [instead(StandbyMirror, "gone", gone)]


class HandedOverUnread(Bug):
    """A new active master uses its mirror before the pending reads have finished."""

    seeds = 30
    masters = 3

    def patches(self) -> list[Patch]:
        async def hand_over(self: StoreWatcher) -> Warm | None:
            mirror = self.mirror
            self._release()
            return None if mirror is None or not mirror.is_complete else Warm(mirror.world, [])

        return [instead(StoreWatcher, "hand_over", hand_over)]

    def script(self, cluster: SimulatedCluster) -> None:
        """Kill masters while servers open regions one after the other, so that some changes are not read yet."""
        come_up(cluster)
        chance = cluster.timeline.chance
        cluster.setting.work.until = cluster.timeline.now + 15 * SECOND
        while cluster.timeline.now < cluster.setting.work.until:
            cluster.operator.create(100)
            until = cluster.timeline.now + 2 * SECOND
            while cluster.timeline.now < until and len(cluster.observer.shadow.transitions) < 50:
                cluster.run_for(0.01)
            cluster.run_for(chance.between(0, 0.1))
            active = cluster.faults.active()
            if active is not None:
                cluster.faults.kill(active)
            cluster.run_for(3)


class ProvedByWordAlone(Bug):
    """A standby counts as up to date when it has received all events, before it has read the changes."""

    seeds = 30

    def patches(self) -> list[Patch]:
        async def prove(self: StoreWatcher) -> None:
            sent_ms = self._now_ms()
            await self._client.sync("/")
            if self.mirror is not None and self.mirror.is_complete:
                self.proven_ms, self.proven_zxid = sent_ms, self._client.last_zxid

        return [instead(StoreWatcher, "_prove_once", prove)]


class ProvedByAPing(Bug):
    """A standby takes any answer of its store node as proof that its mirror is fresh, although the node may lag."""

    seeds = 30

    def patches(self) -> list[Patch]:
        async def prove(self: StoreWatcher) -> None:
            sent_ms = self._now_ms()
            await self._client.get(self._layout.cluster)
            zxid = self._client.last_zxid
            await self._read_up()
            if self.mirror is not None and self.mirror.is_complete:
                self.proven_ms, self.proven_zxid = sent_ms, zxid

        return [instead(StoreWatcher, "_prove_once", prove)]

    def script(self, cluster: SimulatedCluster) -> None:
        trouble(cluster, ["store-node-alone"], 0.5)


class GapIgnored(Bug):
    """A standby keeps its mirror after a gap in its watches."""

    seeds = 30

    def patches(self) -> list[Patch]:
        def receive(self: StoreWatcher, events: list[Event]) -> None:
            if events[0][0] != EVENT_GAP:
                real(self, events)

        real = StoreWatcher._events
        return [instead(StoreWatcher, "_events", receive)]

    def script(self, cluster: SimulatedCluster) -> None:
        trouble(cluster, ["store-node-restart", "cut-from-store", "break-connection"], 0.3)


def sessions_end(cluster: SimulatedCluster) -> None:
    """End sessions of masters, start the next ones slowly, and change the tables all the time."""
    come_up(cluster)
    cluster.setting.work.until = cluster.timeline.now + 15 * SECOND
    cluster.network.heavy = 0.3
    operate(cluster, 0.1)
    while cluster.timeline.now < cluster.setting.work.until:
        cluster.faults.end_master_session()
        cluster.run_for(cluster.timeline.chance.between(0.5, 3))


class MirrorOutlivesItsSession(Bug):
    """A standby proves the mirror of its former session with a `sync` of the next session, which has no watches yet."""

    seeds = 20
    masters = 3

    def patches(self) -> list[Patch]:
        def changed(self: StoreWatcher, state: SessionState) -> None:
            if state is not SessionState.EXPIRED:
                real(self, state)

        real = StoreWatcher._session_changed
        return [instead(StoreWatcher, "_session_changed", changed)]

    def script(self, cluster: SimulatedCluster) -> None:
        sessions_end(cluster)


# --- servers ---


class LeaseIgnored(Bug):
    """A server serves until the store reports the end of its session."""

    seeds = 30

    def patches(self) -> list[Patch]:
        def holds(self: Lease, _now_s: float) -> bool:
            return self._until_s > float("-inf")

        return [instead(Lease, "holds", holds)]

    def script(self, cluster: SimulatedCluster) -> None:
        cluster.setting.work.locks = False
        trouble(cluster, ["freeze-server", "cut-from-store"], 1.0)


class BarOfOneStart(Bug):
    """The fence of a server covers only the fenced start code: the server joins again, and gets regions."""

    def patches(self) -> list[Patch]:
        def only_that_start(cluster: Any) -> None:
            for server in cluster.servers.values():
                if server.bar is not None and server.bar.start_code != server.incarnation.start_code:
                    server.bar = None

        def set_bars(self: Picture, bars: Any) -> Any:
            changed = real_set(self, bars)
            only_that_start(self)
            return changed

        def up(self: ServerTracker, event: Any, now_ms: int) -> None:
            real_up(self, event, now_ms)
            only_that_start(self._world)

        real_set, real_up = Picture.set_bars, ServerTracker.up
        return [instead(Picture, "set_bars", set_bars), instead(ServerTracker, "up", up)]

    def script(self, cluster: SimulatedCluster) -> None:
        DRILLS["fencing"](cluster)


class PurgedUnclaimed(Bug):
    """Rows are removed after the grace period without a write that prevents the restoration of the table."""

    def patches(self) -> list[Patch]:
        async def claimed(self: Purging, table_id: str) -> Any:
            found = await self._latest(table_id)
            return found if found is not None and self._now_ms() >= found.purge_at_ms else None

        return [
            instead(Purging, "_claimed", claimed),
            instead(server_purging, "objection_to_purge", lambda _: ""),
        ]

    def script(self, cluster: SimulatedCluster) -> None:
        DRILLS["purging"](cluster)


class KeepsRegionsOfLostSession(Bug):
    """A server keeps serving the regions of a lost session."""

    def patches(self) -> list[Patch]:
        def keep(self: Replicas, _now_ms: int) -> None:
            self._replicas.clear()
            self._counts = dict.fromkeys(Phase, 0)  # Otherwise `validate` would find the bug before the observer.

        return [instead(Replicas, "session_lost", keep)]

    def script(self, cluster: SimulatedCluster) -> None:
        trouble(cluster, ["freeze-server"], 1.0)


# --- heartbeats ---


class LostReports(Bug):
    """Reports in an unanswered heartbeat count as received (HB-01)."""

    def patches(self) -> list[Patch]:
        def failed(self: MasterLink, why: str, **more: Any) -> None:
            flight = self._flight
            if flight is not None and not flight.begins and not more.get("is_other_master"):
                self._flight, self.trouble = None, why
            else:
                real(self, why, **more)

        real = MasterLink.failed
        return [instead(MasterLink, "failed", failed)]

    def script(self, cluster: SimulatedCluster) -> None:
        """Open and close regions while the connections that carry the reports break again and again."""
        come_up(cluster)
        cluster.setting.work.until = cluster.timeline.now + 12 * SECOND
        masters = {master.host for master in cluster.masters}
        servers = {server.host for server in cluster.servers}
        network, chance = cluster.network, cluster.timeline.chance
        network.heavy = 0.3
        operate(cluster, 0.2)
        while cluster.timeline.now < cluster.setting.work.until:
            for end in [one for one in network.ends if one.host in servers and one.peer.host in masters]:
                if not end.is_closed and chance.happens(0.3):
                    network.break_connection(end)
            cluster.run_for(chance.between(0.05, 0.3))


class NewLeaderNotTold(Bug):
    """A new active master receives only changes, and does not request a full report (HB-10, KUDU-1374)."""

    def patches(self) -> list[Patch]:
        real = tie_module._STEPS
        edges = {key: (role, False) for key, (role, _) in real.items()}
        return [mock.patch.object(tie_module, "_STEPS", edges), instead(Reports, "wants_full", lambda *_: False)]

    def script(self, cluster: SimulatedCluster) -> None:
        trouble(cluster, ["kill-active", "master-session-ends"], 1.0)


def _all(root: type[Bug]) -> list[type[Bug]]:
    return [root, *(found for child in root.__subclasses__() for found in _all(child))]


BUGS = [bug for bug in _all(Bug) if bug is not Bug]
