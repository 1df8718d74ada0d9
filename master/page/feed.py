"""Follows the cluster state of a master, active or standby, and informs all listeners of the page.

While there is a listener, the cluster state collects the changed replicas (`ClusterState.changed`). Ten times a second
the feed moves them into the model, and sends the model's delta, encoded once, to all listeners. Without a listener the
set does not exist; only the curves get their values, once a second.

Every piece of work is done in slices of SLICE rows, each in a turn of its own with a pause after it: the reactor that
moves regions must not wait for browsers.

A *generation* ends when the cluster state is another object: after a failover, or when a standby has to load its mirror
again. All listeners then get a new snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

import msgspec
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from master.assignment.transition_times import TransitionTimes
from master.heartbeats import HeartbeatReceiver
from master.page.hiding import KeyHider
from master.page.listeners import LISTENERS_MAX, PageListener, event, with_id
from master.process import MasterProcess
from regions.cluster.entities import Replica
from regions.cluster.state import ClusterState
from regions.liveness.roster import SILENT_MS
from regions.messages.tablets import TabletHealth
from regions.page.curves import SERIES, Curves
from regions.page.model import PageModel
from regions.page.pace import WorkPace
from regions.page.replay import PageReplay
from regions.page.rows import row_of_tablet
from regions.transitions.steps import SeenStep

log = Logger()

#: Rows that one turn of the reactor looks at: 2 to 5 ms.
SLICE: Final = 2_000
#: Pause between two slices of a snapshot or of another walk over all rows.
PAUSE_S: Final = 0.005
#: Time between two deltas.
DELTA_S: Final = 0.1
#: Period of curves and figures.
FIGURES_S: Final = 1.0
#: Period of comments, which keep idle connections alive.
COMMENT_S: Final = 10.0
#: Kinds of work: the part of the master's CPU time that each may take, and its shortest and longest pause. A region
#: that passes several states within a pause is sent once. Work that the timer of each second begins has pauses that end
#: before the next second.
PACES: Final = {
    "deltas": (0.013, DELTA_S, 1.5),
    "figures": (0.006, FIGURES_S / 2, 2.5),
    "tablets": (0.0015, FIGURES_S / 2, 2.5),
    "measures": (0.0015, 9.5, 29.5),
}
#: CPU seconds of one write to a listener, and of each byte. The reactor writes later, so no clock around the work sees
#: them; measured on the loopback.
WRITE_S: Final = 40e-6
WRITE_BYTE_S: Final = 0.2e-9
#: Time for which the model is kept after the last listener has left, so that a reloaded page resumes.
LINGER_S: Final = 15.0
#: Steps in one message, the latest ones.
STEPS_MAX: Final = 100

_encoder = msgspec.json.Encoder()


class PageSource(MasterProcess, Protocol):
    """The parts of the master that the feed reads."""

    heartbeats: HeartbeatReceiver
    transition_times: TransitionTimes


class Following:
    """One generation: a cluster state, the model of it, and the work that remains."""

    def __init__(self, generation: str, world: ClusterState | None) -> None:
        self.world = world
        self.model = PageModel()
        self.replay = PageReplay(generation)
        self.work: Iterator[None] = iter(())
        self.is_loaded = False
        #: The changed replicas that are being examined, and the number of those already examined.
        self._unseen: list[Replica] = []
        self._seen = 0
        #: Keys of the rows whose load is above 0.
        self.loaded: set[str] = set()
        #: The latest step that was sent.
        self.last_step: SeenStep | None = None
        if world is not None:
            world.changed = set()
            self.work = self._load(world)
        else:
            self.is_loaded = True

    def end(self) -> None:
        """Stop observing the cluster state."""
        if self.world is not None:
            self.world.changed = None

    def _load(self, world: ClusterState) -> Iterator[None]:
        waiting: list[Replica] = []
        for table in [one for one in world.tables.values() if not one.record.is_tablet]:
            for region in list(table.regions.values()):
                waiting += region.replicas
                if len(waiting) >= SLICE:
                    self.model.look(waiting)
                    waiting = []
                    yield
        self.model.look(waiting)
        self.model.mark_sent()
        self.is_loaded = True

    def begin_looking(self) -> None:
        """Begin to look at all replicas that have changed."""
        if self.world is not None and self.world.changed:
            self._unseen, self._seen, self.world.changed = list(self.world.changed), 0, set()

    @property
    def is_looking(self) -> bool:
        """True if not all replicas that had changed were looked at and sent."""
        return self._seen < len(self._unseen) or self.model.has_changes

    def look_at_changes(self) -> None:
        """Look at up to SLICE changed replicas."""
        self.model.look(self._unseen[self._seen : self._seen + SLICE])
        self._seen = min(self._seen + SLICE, len(self._unseen))
        if self._seen == len(self._unseen):
            self._unseen, self._seen = [], 0


class Feed:
    """See the module docstring."""

    def __init__(
        self,
        reactor: Any,
        master: PageSource,
        figures: Callable[[Feed], object],
        hider: KeyHider | None = None,
        of_store: Callable[[str], float] = lambda _name: float("nan"),
        cpu_s: Callable[[], float] = time.process_time,
    ) -> None:
        """`figures` returns the message of each second. `of_store` returns a figure of the store by name, NaN if it is
        unknown.

        With a `hider` no key is sent. `cpu_s` returns the CPU time that this process has used.
        """
        self._hider = hider
        self._of_store = of_store
        self._cpu_s = cpu_s
        self._paces = {name: WorkPace(*one) for name, one in PACES.items()}
        self._reactor = reactor
        self._master = master
        self._figures = figures
        self.curves = Curves()
        self.listeners: list[PageListener] = []
        self.following: Following | None = None
        self._generations = 0
        self._timers: dict[str, IDelayedCall] = {}
        self._latest_figures = b""
        self._due_s = 0.0
        #: The numbers of steps, and of those that opened a replica, when they were last counted.
        self._counted = (0, 0)
        self._stopped = False

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin with the curves."""
        self._due_s = self._reactor.seconds() + FIGURES_S
        self._later("second", FIGURES_S, self._second)

    def stop(self) -> None:
        """Stop, and end all streams."""
        self._stopped = True
        for timer in self._timers.values():
            if timer.active():
                timer.cancel()
        for listener in list(self.listeners):
            listener.close()
        self._unfollow()

    def _later(self, name: str, seconds: float, action: Callable[[], None]) -> None:
        timer = self._timers.get(name)
        if not self._stopped and (timer is None or not timer.active()):
            self._timers[name] = self._reactor.callLater(seconds, self._guarded, name, seconds, action)

    def _guarded(self, name: str, _seconds: float, action: Callable[[], None]) -> None:
        """Run an action. An error ends the present generation, never the master's work."""
        try:
            action()
        except Exception:  # boundary: the page must not disturb the master
            log.failure("the live page: {name} failed, beginning again", name=name)
            self._unfollow()
            if self.listeners:
                self._later("tick", FIGURES_S, self._tick)
            if name == "second":
                self._later("second", FIGURES_S, self._second)

    # --- listeners ----------------------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """True if no further listener is taken."""
        return len(self.listeners) >= LISTENERS_MAX

    def attach(self, request: Any, last_id: str) -> None:
        """Add a listener. `last_id` is the id of the last message that it has received, "" for a new listener."""
        assert not self.is_full, f"{len(self.listeners)} listeners"
        listener = PageListener(request, self._gone)
        self.listeners.append(listener)
        listener.start()
        following = self._current()
        missed = following.replay.since(last_id) if last_id and following.is_loaded else None
        if missed is not None:
            listener.resume(len(following.model))
            for message in missed:
                listener.send(message)
        if not self._latest_figures:
            self._make_figures()
        listener.send(self._latest_figures)
        self._later("tick", 0, self._tick)
        self._later("comment", COMMENT_S, self._comment)

    def _gone(self, listener: PageListener) -> None:
        if listener in self.listeners:
            self.listeners.remove(listener)
        if not self.listeners:
            self._later("linger", LINGER_S, self._linger_over)

    def _linger_over(self) -> None:
        if not self.listeners:
            self._unfollow()

    def _unfollow(self) -> None:
        following, self.following = self.following, None
        self._latest_figures = b""
        if following is not None:
            following.end()
        for listener in self.listeners:
            listener.begin_anew()

    def world(self) -> ClusterState | None:
        """Return the cluster state of this master in its present role; None while there is none."""
        active = self._master.active_master
        if active is not None:
            return active.world if active.is_open else None
        mirror = None if self._master.watcher is None else self._master.watcher.mirror
        return mirror.world if mirror is not None and mirror.is_complete else None

    def _current(self) -> Following:
        """Return the present generation; begin one if the cluster state is another one."""
        world, following = self.world(), self.following
        is_over = following is not None and (following.world is not world or following.model.is_wasteful)
        if following is None or is_over:
            self._unfollow()
            self._generations += 1
            generation = f"{self._master.uuid[:8]}-{self._master.start_code:x}-{self._generations}"
            following = self.following = Following(generation, world)
        return following

    # --- ticks --------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Do one slice of work, and send the messages that are due."""
        if not self.listeners:
            return  # the linger timer ends the generation
        following = self._current()
        is_busy = next(following.work, self) is not self
        is_busy |= self._send_parts(following)
        if following.is_loaded:
            is_busy |= self._send_changes(following)
        self._later("tick", PAUSE_S if is_busy else DELTA_S, self._tick)

    def _send_parts(self, following: Following) -> bool:
        """Send each listener the next part of its snapshot. Return True if there is more to send now.

        Parts go out while the model is still loaded. A part is encoded once for all listeners that need it now.
        """
        parts: dict[tuple[int, int, int], tuple[bytes, int]] = {}
        is_more = False
        for listener in list(self.listeners):
            if listener.is_complete or listener.is_paused:
                continue
            self._send_part(following, listener, parts)
            is_more |= not listener.is_complete
        return is_more

    def _send_part(
        self, following: Following, listener: PageListener, parts: dict[tuple[int, int, int], tuple[bytes, int]]
    ) -> None:
        model = following.model
        if listener.sent is None:
            listener.sent = 0
            begin = _encoder.encode({"keys_hidden": self._hider is not None})
            # The messages have no id until the snapshot is complete, because a browser that reconnects earlier needs a
            # whole snapshot.
            listener.send(with_id("", event("begin", begin)))
        at = (listener.sent, *listener.named)
        if at not in parts and (listener.sent < len(model) or listener.named < (len(model.tables), len(model.servers))):
            part = model.named_part(*at)
            if self._hider is not None:
                part = self._hider.part(part)
            parts[at] = event("part", _encoder.encode(part)), len(part.key)
        if at in parts:
            listener.send(parts[at][0])
            listener.sent += parts[at][1]
            listener.named = len(model.tables), len(model.servers)
        listener.is_complete = following.is_loaded and listener.sent >= len(model)
        if listener.is_complete:
            listener.send(with_id(following.replay.latest_id, event("end", b"{}")))
            listener.send(event("steps", self._encoded(self._steps(following, is_new=True))))

    def _send_changes(self, following: Following) -> bool:
        """Send a slice of the changes, if a slice is due. Return True if more work is due now.

        While very many regions move, the remaining slices wait until they are due.
        """
        if not self._is_due("deltas", goes_on=following.is_looking):
            return False
        if not following.is_looking:
            following.begin_looking()
        with self._at_pace("deltas"):
            following.look_at_changes()
            self._send_delta(following)
        return following.is_looking

    def _send_delta(self, following: Following) -> None:
        """Send all listeners the changes that were looked at, and the latest steps."""
        delta, message, head = following.model.take(), b"", b""
        if delta is not None:
            if self._hider is not None:
                delta = self._hider.delta(delta)
            message, head = event("delta", _encoder.encode(delta)), with_id(following.replay.next_id(), b"")
            following.replay.add(head + message)
        steps = self._steps(following)
        if steps:
            message += event("steps", self._encoded(steps))
        named = head + message
        for listener in list(self.listeners) if message else ():
            if listener.sent is not None:
                listener.send(named if listener.is_complete else message)
        if message:
            cost_s = len(self.listeners) * (WRITE_S + WRITE_BYTE_S * len(message))
            self._paces["deltas"].spend(cost_s, self._reactor.seconds())

    def _steps(self, following: Following, *, is_new: bool = False) -> list[list[object]]:
        """Return the latest steps since the last call; for a new listener all that are in memory, up to STEPS_MAX."""
        active = self._master.active_master
        if active is None or not active.is_open:
            return []
        found: list[SeenStep] = []
        for one in reversed(active.assigner.history):
            if len(found) == STEPS_MAX or (not is_new and one is following.last_step):
                break
            found.append(one)
        if found and not is_new:
            following.last_step = found[0]
        return [_shown(one) for one in reversed(found)]

    def _comment(self) -> None:
        for listener in list(self.listeners):
            listener.send(b": still here\n\n")
        if self.listeners:
            self._later("comment", COMMENT_S, self._comment)

    # --- each second --------------------------------------------------------------------------------------------------

    def _second(self) -> None:
        now_s = self._reactor.seconds()
        late_ms = max(0.0, (now_s - self._due_s) * 1000)
        self._due_s = now_s + FIGURES_S
        self._later("second", FIGURES_S, self._second)
        self._sample(late_ms)
        following = self.following
        if not self.listeners or following is None:
            return
        if self._is_due("figures"):
            with self._at_pace("figures"):
                self._make_figures()
                for listener in list(self.listeners):
                    listener.send(self._latest_figures)
        self._work("tablets", self._look_at_tablets(following))
        self._work("measures", self._look_at_measures(following))

    def _make_figures(self) -> None:
        self._latest_figures = event("figures", self._encoded(self._figures(self)))

    def _encoded(self, value: object) -> bytes:
        return _encoder.encode(value if self._hider is None else self._hider.value(value))

    def _sample(self, late_ms: float) -> None:
        """Add a value to each curve."""
        world, now_ms = self.world(), self._master.now_ms()
        heard = {one.incarnation: now_ms - one.received_ms for one in self._master.heartbeats.roster.members()}
        values = dict.fromkeys(SERIES, float("nan"))
        steps, opened = self._count_steps()
        values |= {"steps": steps, "opened": opened, "turn": late_ms, "listeners": len(self.listeners)}
        values |= {"sync": self._of_store("p99_fsynctime"), "term": self._of_store("raft_term")}
        figures = [
            one.figures.load for one in self._master.heartbeats.roster.members() if one.received_ms > now_ms - SILENT_MS
        ]
        values["requests"] = sum(figures)
        if world is not None:
            tables = [one for one in world.names.values() if not one.record.is_tablet]
            silent = [one for one in world.servers.values() if heard.get(one.incarnation, SILENT_MS + 1) > SILENT_MS]
            wanted = sum(one.rit + one.open_replicas for one in tables)
            served = sum(len(one.open) for one in world.servers.values()) - sum(len(one.open) for one in silent)
            lost, usable = self._count_tablets()
            values |= {
                "open": sum(one.open_replicas for one in tables) + usable,
                "moving": sum(one.rit for one in tables),
                "unavailable": max(0, wanted - served) + lost,
                "parked": sum(one.parked for one in tables),
                "servers": len(world.servers),
                "silent": len(silent),
                "heard": max((heard.get(one.incarnation, 0) for one in world.servers.values()), default=0),
            }
        self.curves.add(now_ms // 1000, [values[one] for one in SERIES])

    def _count_tablets(self) -> tuple[int, int]:
        """Return the number of tablets without a leader or a majority, and the number that clients can use."""
        active = self._master.active_master
        if active is None:
            return 0, 0
        counts = active.keeper.watch.counts
        lost = counts[TabletHealth.UNAVAILABLE]
        unusable = lost + counts[TabletHealth.UNKNOWN] + counts[TabletHealth.CREATING] + counts[TabletHealth.CLOSED]
        return lost, counts.total() - unusable

    def _count_steps(self) -> tuple[int, int]:
        """Return the number of steps that this master has seen since the last call, and the number of opens among
        them."""
        times, former = self._master.transition_times, self._counted
        self._counted = times.steps, times.opened
        return times.steps - former[0], times.opened - former[1]

    def _look_at_tablets(self, following: Following) -> Iterator[None]:
        active, world = self._master.active_master, following.world
        if active is not None and active.keeper.keeper.tablets:
            yield from self._tablets_of_active(following, active.keeper.keeper.tablets)
        elif active is None and world is not None:
            yield from self._tablets_of_mirror(following, world)

    def _tablets_of_active(self, following: Following, tablets: dict[str, Any]) -> Iterator[None]:
        active = self._master.active_master
        if active is None:
            return
        watch, model = active.keeper.watch, following.model
        listed = set(watch.listed)
        for at, region_id in enumerate(sorted(listed)):
            tablet = tablets.get(region_id)
            if tablet is not None and region_id in watch.listed:
                standing = watch.standing(region_id)
                leader = tablet.view.leader_now()
                uuid = "" if leader is None else leader.server.uuid
                row = row_of_tablet(standing.judgment.health, uuid, standing.since_ms)
                model.put(region_id, tablet.record.table_id, tablet.record.start_key, row)
                measure = tablet.measure
                if measure is not None:
                    model.size(region_id, measure.size_bytes)
                model.load(region_id, 0.0 if leader is None else tablet.view.replicas[uuid].report.load)
            if at % SLICE == SLICE - 1:
                yield
        model.keep_tablets(listed)

    def _tablets_of_mirror(self, following: Following, world: ClusterState) -> Iterator[None]:
        found: set[str] = set()
        for table in [one for one in world.tables.values() if one.record.is_tablet]:
            for region in list(table.regions.values()):
                record = region.record
                found.add(record.region_id)
                row = row_of_tablet(TabletHealth.UNKNOWN, "", 0)
                following.model.put(record.region_id, record.table_id, record.start_key, row)
                if not len(found) % SLICE:
                    yield
        following.model.keep_tablets(found)

    def _look_at_measures(self, following: Following) -> Iterator[None]:
        """Update the sizes and loads of shared regions. Sizes and loads of tablets come with their reports."""
        active, model = self._master.active_master, following.model
        if active is None:
            return
        loads = dict(active.reports.loads)
        for at, (key, measure) in enumerate(list(active.reports.sizes.items())):
            model.size(key, measure.size_bytes)
            if at % SLICE == SLICE - 1:
                yield
        for at, key in enumerate(list(following.loaded | loads.keys())):
            model.load(key, loads.get(key, 0.0))
            if at % SLICE == SLICE - 1:
                yield
        following.loaded = set(loads)

    def _work(self, name: str, work: Iterator[None]) -> None:
        """Do a piece of work in slices if it is due, unless the last one of that name is still under way."""

        def go_on() -> None:
            with self._at_pace(name):
                is_more = next(work, self) is not self
            if is_more:
                self._later(name, PAUSE_S, go_on)

        if self.following is not None and self.following.is_loaded and self._is_due(name):
            self._later(name, 0, go_on)

    # --- pace ---------------------------------------------------------------------------------------------------------

    def _is_due(self, name: str, *, goes_on: bool = False) -> bool:
        return self._paces[name].is_due(self._reactor.seconds(), self._cpu_s(), goes_on=goes_on)

    @contextmanager
    def _at_pace(self, name: str) -> Iterator[None]:
        """Charge the work in the body to its pace."""
        began_s = self._cpu_s()
        yield
        self._paces[name].spend(self._cpu_s() - began_s, self._reactor.seconds())


def _shown(step: SeenStep) -> list[object]:
    return [
        step.at_ms,
        step.key,
        *step.words(),
        step.server,
        step.attempt,
        step.error,
        step.cause_id,
        step.plan_id,
    ]
