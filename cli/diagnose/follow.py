"""Follow a cluster through watches: every transition, the epoch, the active master, the servers.

A recursive persistent watch reports each change below `/unassigned`; a read sent at once returns the value. The store
answers the reads of one session in order, so the observed states of a znode never go back in time. After a lost
connection (the client reports a gap) everything is read again, and `History` counts the missed steps.

Everything here runs on the reactor's thread. `ReactorThread` gives commands with their own control flow, such as
drills, a reactor on another thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec
from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from cli.common.names import Names
from coord.client.access import OPEN_ACCESS, StoreAccess
from coord.client.requests import gather
from coord.client.session import EVENT_GAP, SessionState, ZkClient
from coord.errors import NoNode, OperationError, RetryableError
from coord.wire.records import EVENT_CREATED, EVENT_DELETED
from regions.records.model import ActiveRecord, RegionRecord, RegionState, ServerRecord, TransitionRecord
from regions.records.replica_key import parse_replica_key
from regions.records.znodes import (
    CorruptZnode,
    Layout,
    decode_active,
    decode_region,
    decode_server,
    decode_table,
    decode_transition,
)
from regions.transitions.observed import NONE, UNKNOWN, Change, History, ObservedTransition, actor_of

T = TypeVar("T")

SESSION_TIMEOUT_MS: Final = 6000
#: Pause before a new session is begun after the former one has ended.
RETRY_S: Final = 0.5
#: Reason of a transition whose znode was deleted before it could be read.
UNREAD: Final = "too quick to be read"


class Stopwatch:
    """Wall-clock milliseconds that never jump: the wall clock at the start, then the monotonic clock."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def now_ms(self) -> int:
        """Return milliseconds since the epoch."""
        return int((time.monotonic() + self._offset_s) * 1000)


class MembershipChange(msgspec.Struct, frozen=True):
    """A change other than a transition: `what` is "active", "no-active", "server-up" or "server-down"."""

    at_ms: int
    what: str
    uuid: str = ""
    address: str = ""
    epoch: int = 0


class Line(msgspec.Struct, frozen=True):
    """A step of a transition as it is printed: one line of `rk watch --json`."""

    time_ms: int
    table: str
    region: str
    replica: int
    start_key: str
    end_key: str
    before: str
    after: str
    server: str
    actor: str
    why: str
    attempt: int
    epoch: int
    plan: str
    error: str
    missed: int
    #: Not observed itself: the only legal step between the states before and after.
    inferred: bool = False
    #: Parked: no master tries to open it before an operator asks.
    parked: bool = False
    event: str = "transition"


class Follower:
    """One session that follows one cluster. Set `on_change` and `on_membership` before `start`."""

    def __init__(
        self, reactor: Any, hosts: str, root: str, *, access: StoreAccess = OPEN_ACCESS, wipe_allowed: bool = False
    ) -> None:
        self._reactor = reactor
        self.client = ZkClient(reactor, hosts, SESSION_TIMEOUT_MS, name="rk-follow", access=access)
        self.layout = Layout("" if root == "/" else root)
        self.history = History(wipe_allowed=wipe_allowed)
        self.clock = Stopwatch()
        #: (version of /epoch, zxid of the write), in the order of observation.
        self.epochs: list[tuple[int, int]] = []
        self.memberships: list[MembershipChange] = []
        self.active: ActiveRecord | None = None
        #: False until the state at the start, which is not reported, has been read.
        self._following = False
        self.servers: dict[str, ServerRecord] = {}
        self.on_change: Callable[[Change], None] = _ignore
        self.on_membership: Callable[[MembershipChange], None] = _ignore
        self._regions: dict[tuple[str, str], Deferred[RegionRecord | None]] = {}
        self._tables: dict[str, str] = {}
        self._table_of: dict[str, str] = {}
        #: Latest version of each transition's znode according to its events; missing if events may have been lost.
        self._versions: dict[str, int] = {}

    async def start(self) -> None:
        """Connect, watch, and read the present state; after the return no later change can be missed."""
        await self._watch()
        await self._learn_tables()
        self.history.begin(await self._observe_all())
        self._following = True
        self.client.on_state(self._state_changed)

    async def _watch(self) -> None:
        await self.client.connect()
        await self.client.add_watch(self.layout.unassigned, self._transition_event, recursive=True)
        await self.client.add_watch(self.layout.active, self._active_event, recursive=False)
        await self.client.add_watch(self.layout.epoch, self._epoch_event, recursive=False)
        await self.client.add_watch(self.layout.servers, self._servers_event, recursive=True)
        await self._read_epoch()
        await _or_none(self._read_active(), CorruptZnode)
        await self._read_servers()

    def _state_changed(self, state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            _background(self._begin_again())

    async def _begin_again(self) -> None:
        """Watch in a new session, and find the changes since the end of the former one."""
        self._versions.clear()
        while True:
            try:
                await self._watch()
                await self._catch_up()
            except RetryableError:  # a watch may be missing, so set all of them again
                await deferLater(self._reactor, RETRY_S)
            else:
                return

    async def stop(self) -> None:
        """Close the session."""
        await self.client.close()

    # --- transitions ---

    def _transition_event(self, event_type: int, path: str, _zxid: int) -> None:
        if event_type == EVENT_GAP:
            self._versions.clear()
            _background(self._catch_up())
            return
        named = self.layout.parse_transition(path)
        if named is None:
            return
        key = path.rpartition("/")[2]
        if event_type == EVENT_DELETED:
            # Replies to reads of the znode have arrived before: an event precedes any newer data.
            self._report(self._gone(key, *named, self._versions.pop(key, UNKNOWN)))
            return
        if event_type == EVENT_CREATED:
            self._versions[key] = 0
        elif key in self._versions:
            self._versions[key] += 1
        _background(self._read_transition(path))

    async def _read_transition(self, path: str) -> None:
        found = await self._observe(path)
        if found is not None:
            self._report(found)

    async def _observe(self, path: str) -> ObservedTransition | None:
        """Read a transition; None if it was deleted, which an event reports."""
        found = await _or_none(self.client.get(path))
        if found is None:
            return None
        data, stat = found
        key = path.rpartition("/")[2]
        record = decode_transition(data, path)
        self._prefetch(record.table_id, record.region_id)
        self._versions[key] = max(stat.version, self._versions.get(key, UNKNOWN))
        return ObservedTransition(self.clock.now_ms(), key, record, stat.version, stat.czxid, stat.mzxid)

    def _gone(self, key: str, region_id: str, replica: int, version: int) -> ObservedTransition:
        """Return the end of a transition. If it was never read, the record only names the replica."""
        table_id = self._table_of.get(region_id, "")
        record = TransitionRecord(region_id, table_id, replica, RegionState.OPENED, reason=UNREAD)
        return ObservedTransition(self.clock.now_ms(), key, record, version, exists=False)

    def _report(self, observed: ObservedTransition) -> None:
        for change in self.history.see(observed):
            self.on_change(change)

    async def _observe_all(self) -> list[ObservedTransition]:
        shards = self.layout.shard_paths()
        listings = await gather(ensureDeferred(_or_none(self.client.children(shard))) for shard in shards)
        paths = [f"{shard}/{name}" for shard, names in zip(shards, listings, strict=True) for name in names or []]
        found = await gather(ensureDeferred(_or_none(self._observe(path), CorruptZnode)) for path in paths)
        return [observed for observed in found if observed is not None]

    async def _learn_tables(self) -> None:
        """Read the table of each region, for transitions that are deleted before they can be read."""
        for table_id in await _or_none(self.client.children(self.layout.tables)) or []:
            for region_id in await _or_none(self.client.children(self.layout.table_regions(table_id))) or []:
                self._table_of[region_id] = table_id

    async def _catch_up(self) -> None:
        """Report the changes during a gap: which transitions exist now, and which were deleted."""
        present = await self._observe_all()
        keys = {observed.key for observed in present}
        for key in self.history.in_transition:
            if key not in keys:
                region_id, replica = parse_replica_key(key)
                self._report(self._gone(key, region_id, replica, UNKNOWN))
        for observed in present:
            self._report(observed)

    # --- epoch, active master, servers ---

    def _epoch_event(self, _event_type: int, _path: str, _zxid: int) -> None:
        _background(self._read_epoch())

    async def _read_epoch(self) -> None:
        found = await _or_none(self.client.get(self.layout.epoch))
        if found is not None and (not self.epochs or self.epochs[-1][1] != found[1].mzxid):
            self.epochs.append((found[1].version, found[1].mzxid))

    def _active_event(self, event_type: int, _path: str, _zxid: int) -> None:
        if event_type == EVENT_DELETED:
            self._active_gone()  # a read might already find the successor
        _background(self._read_active())

    def _active_gone(self) -> None:
        before, self.active = self.active, None
        if before is not None:
            self._note(MembershipChange(self.clock.now_ms(), "no-active", before.uuid, f"{before.host}:{before.port}"))

    async def _read_active(self) -> None:
        found = await _or_none(self.client.get(self.layout.active))
        now = None if found is None else decode_active(found[0], self.layout.active)
        if self.active is not None and (now is None or now.uuid != self.active.uuid):
            self._active_gone()
        before, self.active = self.active, now
        if now is not None and now.epoch and (before is None or before.epoch != now.epoch):
            self._note(MembershipChange(self.clock.now_ms(), "active", now.uuid, f"{now.host}:{now.port}", now.epoch))

    def _servers_event(self, event_type: int, path: str, _zxid: int) -> None:
        gone = self.servers.pop(path.rpartition("/")[2], None) if event_type == EVENT_DELETED else None
        if gone is not None:
            # Reported at once, before the masters' reaction.
            self._note(MembershipChange(self.clock.now_ms(), "server-down", gone.uuid, f"{gone.host}:{gone.port}"))
        _background(self._read_servers())

    async def _read_servers(self) -> None:
        names = await _or_none(self.client.children(self.layout.servers)) or []
        records = await gather(ensureDeferred(_or_none(self._read_server(name), CorruptZnode)) for name in names)
        now = {one.uuid: one for one in records if one is not None}
        before, self.servers = self.servers, now
        for one in before.values():
            if one.uuid not in now or now[one.uuid].start_code != one.start_code:
                self._note(MembershipChange(self.clock.now_ms(), "server-down", one.uuid, f"{one.host}:{one.port}"))
        for one in now.values():
            if one.uuid not in before or before[one.uuid].start_code != one.start_code:
                self._note(MembershipChange(self.clock.now_ms(), "server-up", one.uuid, f"{one.host}:{one.port}"))

    async def _read_server(self, uuid: str) -> ServerRecord | None:
        found = await _or_none(self.client.get(self.layout.server(uuid)))
        return None if found is None else decode_server(found[0], uuid)

    def _note(self, membership: MembershipChange) -> None:
        if self._following:
            self.memberships.append(membership)
            self.on_membership(membership)

    # --- content of a line besides the transition ---

    def _prefetch(self, table_id: str, region_id: str) -> None:
        key = (table_id, region_id)
        if key in self._regions:
            return
        self._regions[key] = reading = ensureDeferred(self._read_region(table_id, region_id))

        def failed(failure: Failure) -> None:
            """Drop the failed read: present callers get None, the next caller reads again."""
            failure.trap(RetryableError, CorruptZnode)  # type: ignore[no-untyped-call]
            self._regions.pop(key, None)

        reading.addErrback(failed)

    async def _read_region(self, table_id: str, region_id: str) -> RegionRecord | None:
        found = await _or_none(self.client.get(self.layout.region(table_id, region_id)))
        if table_id not in self._tables:
            table = await _or_none(self.client.get(self.layout.table(table_id)))
            self._tables[table_id] = table_id if table is None else decode_table(table[0], table_id).name
        return None if found is None else decode_region(found[0], region_id)

    async def line(self, change: Change, names: Names) -> Line:
        """Return the change with everything that people and programs need, as far as it can be read now."""
        record = change.record
        if not record.table_id:
            await _or_none(self._learn_tables(), RetryableError, CorruptZnode)
            record = msgspec.structs.replace(record, table_id=self._table_of.get(record.region_id, ""))
        self._prefetch(record.table_id, record.region_id)
        waiting = self._regions.get((record.table_id, record.region_id))
        region = None if waiting is None else await _shared(waiting)
        actor = actor_of(change.before, change.after)
        server = record.source if record.state.value in ("CLOSING", "CLOSED") else record.destination
        if record.reason == UNREAD:
            reading = self._read_region(record.table_id, record.region_id)
            now = await _or_none(reading, RetryableError, CorruptZnode)
            server = None if now is None else now.location(record.replica).incarnation
        return Line(
            time_ms=change.at_ms,
            table=self._tables.get(record.table_id, record.table_id),
            region=record.region_id,
            replica=record.replica,
            start_key=region.start_key if region is not None else "",
            end_key=region.end_key if region is not None else "",
            before=change.before,
            after=change.after,
            server=names.of(server),
            actor=actor.value if actor is not None and not change.missed else "",
            inferred=change.inferred,
            parked=record.parked,
            why=record.reason,
            attempt=record.attempt,
            epoch=record.epoch,
            plan=record.plan_id,
            error=names.in_sentence(record.last_error),
            missed=change.missed,
        )


async def _shared(result_of: Deferred[T]) -> T:
    """Return the result of a Deferred with several waiters. The Deferred does not fail."""
    waiting: Deferred[T] = Deferred()

    def pass_on(result: T) -> T:
        waiting.callback(result)
        return result

    result_of.addCallback(pass_on)
    return await waiting


async def _or_none(reading: Awaitable[T], *also: type[Exception]) -> T | None:
    """Return the result of a read; None for a missing znode, or for one of the errors `also`."""
    lacks: tuple[type[Exception], ...] = (NoNode, *also)
    try:
        return await reading
    except lacks:
        return None


def _ignore(_: object) -> None:
    pass


def _background(work: Any) -> None:
    """Run a coroutine in the background. A lost connection ends it silently: after the gap everything is read again."""

    def failed(failure: Failure) -> None:
        failure.trap(OperationError, CorruptZnode)  # type: ignore[no-untyped-call]

    ensureDeferred(work).addErrback(failed)


class ReactorThread:
    """The reactor on its own thread. One per process: a reactor cannot be restarted."""

    def __init__(self) -> None:
        from twisted.internet import reactor

        self.reactor: Any = reactor
        self._thread = threading.Thread(
            target=self.reactor.run, kwargs={"installSignalHandlers": False}, name="reactor", daemon=True
        )

    def __enter__(self) -> ReactorThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.reactor.callFromThread(self.reactor.stop)
        self._thread.join(timeout=5.0)

    def run(self, work: Callable[[], Awaitable[T]], timeout_s: float = 30.0) -> T:
        """Run a coroutine on the reactor's thread and return its result; raise its exception, or TimeoutError."""
        done = threading.Event()
        outcome: list[Any] = []

        def finish(result: Any) -> None:
            outcome.append(result)
            done.set()

        self.reactor.callFromThread(lambda: ensureDeferred(work()).addBoth(finish))  # type: ignore[arg-type]
        if not done.wait(timeout_s):
            raise TimeoutError(f"no answer within {timeout_s:g} s")
        if isinstance(outcome[0], Failure):
            outcome[0].raiseException()
        result: T = outcome[0]
        return result


def describe(before: str, after: str) -> str:
    """Return a step in words, such as `OFFLINE -> OPENING`."""
    return f"{before or '(none)'} -> {'(done)' if after == NONE else after}"
