"""Checks the writes of all masters and servers, and raises an alarm when they break a rule.

`regions/diagnose/invariants.py` has the rules. Every master has an auditor, in every role and on its own session. So a
standby audits the active master and the servers, and the cluster is audited without an active master, too. The
session's watcher (`master/standby/watcher.py`) passes every event of a transition, and every transition that it reads.
During a bulk assignment most transitions end before they are read, and only the number of their steps is checked.

The active master's auditor also compares the replicas that servers report with the store: every DOUBTS_S those whose
owner is in doubt after a report or the end of a transition, and all of them in rounds, a few servers at a time. A
standby's auditor checks the number of regions in each server's heartbeats instead (`master/standby/shortfall.py`). And
every auditor reads a slice of the regions again every CACHE_S, compares it with the copy on which its master bases, or
will base, its decisions, and checks that the copy has every key of a table exactly once
(`regions/diagnose/live/key_space.py`).

An alarm is a log line, a count in the metrics, and a znode `/alarms/<id>` with the steps that led to it. `rk audit` and
`rk status` show the alarm until an operator acknowledges it. The auditor writes no other znode.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

import msgspec
from twisted.internet.defer import ensureDeferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.client.requests import gather
from coord.client.session import EVENT_GAP, SessionState, ZkClient
from coord.client.watches import Event
from coord.errors import CoordError, NodeExists, NoNode
from coord.wire.records import Stat
from master.catalog import store
from master.standby.shortfall import ShortfallCheck
from regions.cluster.state import ClusterState
from regions.diagnose.invariants import Audit, Rule
from regions.diagnose.live.cache_check import CacheCheck
from regions.diagnose.live.check_log import AuditCheck, CheckLog
from regions.diagnose.live.doubts import OwnerDoubts, SettledList
from regions.diagnose.live.key_space import KeySpaceCheck
from regions.diagnose.live.owner_round import REST_MS, AtRest, HomeOf, OwnerRound
from regions.records.alarms import Alarm
from regions.records.model import Incarnation
from regions.records.replica_key import parse_replica_key
from regions.records.znodes import (
    CorruptZnode,
    Layout,
    decode_region,
    decode_server,
    decode_table,
    decode_transition,
    encode,
)
from regions.transitions.observed import UNKNOWN, ObservedTransition, SeenVersions

log = Logger()

TICK_S: Final = 2.0
#: From the end of one comparison of all replicas that servers report to the end of the next, in a small cluster.
OWNERS_S: Final = 30.0
#: Interval between two checks of replicas whose owner is in doubt, so that a region that is not served raises an alarm
#: within 3 s.
DOUBTS_S: Final = 0.5
#: Period of comparing a slice of the master's copy with the store.
CACHE_S: Final = 1.0
#: Alarms that stay in the store. The oldest are deleted.
ALARMS_MAX: Final = 200
#: Alarms in memory while the store does not answer.
UNSENT_MAX: Final = 1_000

#: Returns the keys of the replicas that servers have reported, for servers with recent heartbeats and a full report.
Held = Callable[[], "dict[Incarnation, Collection[str]]"]
#: As above, with the time of each server's last heartbeat, only for servers whose reports are settled; None on a
#: standby.
Settled = Callable[[], "dict[Incarnation, SettledList] | None"]
#: Returns the active master's state or a standby's complete mirror; None without one.
Copy = Callable[[], "ClusterState | None"]
#: Returns those of the given znodes whose changes the copy has not read yet.
UnreadOf = Callable[[Collection[str]], "Collection[str]"]


class Sources(NamedTuple):
    """Data that the auditor compares: owners that the master knows, the servers' reports, and the master's copy."""

    at_rest: AtRest = lambda _: None
    served: Held = dict
    home_of: HomeOf = lambda _: None
    #: Of servers whose reports are settled.
    settled: Settled = dict
    copy: Copy = lambda: None
    unread: UnreadOf = lambda _: ()


class Auditor:
    """See the module docstring. One per session: `start`, then `stop`."""

    def __init__(
        self,
        reactor: Any,
        client: ZkClient,
        layout: Layout,
        now_ms: Callable[[], int],
        uuid: str,
        sources: Sources,
        shortfall: ShortfallCheck | None = None,
    ) -> None:
        self._reactor = reactor
        self._client = client
        self._layout = layout
        self._now_ms = now_ms
        self._uuid = uuid
        self._sources = sources
        self._shortfall = shortfall
        self.session_id = client.session_id
        self.audit = Audit()
        #: Alarms raised by this auditor.
        self.alarms = 0
        #: Latest version of each transition's znode, counted by its events; absent if events may have been missed.
        self._versions = SeenVersions()
        self._watching = False
        #: True while watches are set and no event can have been missed.
        self._is_current = False
        self._stop_listening: Callable[[], None] | None = None
        self._syncing = False
        self._sync_again = False
        self._doubts = OwnerDoubts()
        self.checks = CheckLog()
        self.cache = CacheCheck(layout)
        self.key_space = KeySpaceCheck()
        self._is_reading_slice = False
        self._compared_ms = 0
        #: The comparison of all owners that has begun; None between comparisons.
        self._owners: OwnerRound | None = None
        self._unsent: deque[Alarm] = deque(maxlen=UNSENT_MAX)
        self._sending = False
        self._stopped = False
        self._timers: dict[str, IDelayedCall] = {}

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Set the watches and read the current state."""
        self._stop_listening = self._client.on_state(self._session_changed)
        self._later("tick", TICK_S, self._tick)
        self._later("doubts", DOUBTS_S, self._look_at_doubts)
        self._later("cache", CACHE_S, self._check_cache)
        self._compared_ms = self._now_ms()
        ensureDeferred(self._begin()).addErrback(self._failed)

    def stop(self) -> None:
        """Stop auditing: the session has ended, or the process is stopping."""
        self._stopped = True
        stop_listening, self._stop_listening = self._stop_listening, None
        if stop_listening is not None:
            stop_listening()
        for timer in self._timers.values():
            if timer.active():
                timer.cancel()

    def _session_changed(self, state: SessionState) -> None:
        """Record that events may be missed until the state has been read again after a reconnection."""
        if state is not SessionState.CONNECTED:
            self._is_current = False

    async def _begin(self) -> None:
        await self._watch()
        await self._sync(is_first=True)

    async def _watch(self) -> None:
        layout = self._layout
        await gather(
            self._client.add_watch(path, callback, recursive=True)
            for path, callback in (
                (layout.epoch, self._epoch_event),
                (layout.servers, self._servers_event),
                (layout.tables, self._tables_event),
            )
        )
        self._watching = True

    def _failed(self, failure: Failure) -> None:
        """Log an internal error and continue. After a lost connection the gap event starts a new read."""
        if not self._stopped and not isinstance(failure.value, CoordError):
            log.failure("internal error in the auditor", failure=failure)

    def _later(self, name: str, seconds: float, action: Callable[[], object]) -> None:
        if not self._stopped:
            self._timers[name] = self._reactor.callLater(seconds, action)

    def _tick(self) -> None:
        self._later("tick", TICK_S, self._tick)
        if self._is_current:
            self._report(self.audit.tick(self._now_ms()))
        self._send()

    # --- reading the whole state --------------------------------------------------------------------------------------

    def gap(self) -> None:
        """Read everything again after events may have been missed."""
        self._is_current = False
        self._versions.clear()
        self.audit.forget_servers()
        self.audit.epoch_changes()
        self._sync_again = True
        if not self._syncing:
            ensureDeferred(self._sync_until_done()).addErrback(self._failed)

    async def _sync_until_done(self) -> None:
        while self._sync_again and not self._stopped and self._client.state is SessionState.CONNECTED:
            self._sync_again = False
            if not self._watching:
                await self._watch()
            await self._sync(is_first=False)

    async def _sync(self, *, is_first: bool) -> None:
        self._syncing = True
        try:
            await self._read_epoch()
            await self._read_servers(await store.list_all(self._client, [self._layout.servers]))
            await self._read_tables(await self._client.children(self._layout.tables))
            paths = await store.list_all(self._client, self._layout.shard_paths())
            observations = [self._observed(*found) for found in await store.read_all(self._client, paths)]
        finally:
            self._syncing = False
        present = [one for one in observations if one is not None]
        self._is_current = not self._sync_again
        if is_first:
            self.audit.begin(present)
            return
        keys = {one.key for one in present}
        for key in self.audit.in_transition:
            if key not in keys:
                self._report(self.audit.ended(key, UNKNOWN, self._now_ms()))
        for one in present:
            self._report(self.audit.see(one))

    # --- transitions --------------------------------------------------------------------------------------------------

    def transition_events(self, events: list[Event]) -> None:
        """Process events: transitions' znodes were created, changed or deleted."""
        if self._stopped:
            return
        now_ms, gone = self._now_ms(), self._versions.see(events)
        for key, version in gone:
            if alarms := self.audit.ended(key, version, now_ms):
                self._report(alarms)
        if gone:
            self.doubt([key for key, _ in gone])

    def transition_read(self, path: str, data: bytes, stat: Stat) -> None:
        """Process a transition that was read after its latest event."""
        if not self._stopped:
            observed = self._observed(path, data, stat)
            if observed is not None:
                self._report(self.audit.see(observed))

    def _observed(self, path: str, data: bytes, stat: Stat) -> ObservedTransition | None:
        key = path.rpartition("/")[2]
        self._versions.read(key, stat.version)
        try:
            record = decode_transition(data, path)
        except CorruptZnode as error:
            log.error("cannot audit a damaged znode: {error}", error=error)
            return None
        return ObservedTransition(self._now_ms(), key, record, stat.version, stat.czxid, stat.mzxid)

    # --- epoch, servers, tables ---------------------------------------------------------------------------------------

    def _epoch_event(self, event_type: int, path: str, zxid: int) -> None:  # noqa: ARG002
        self.audit.epoch_changes()
        if not self._stopped and event_type != EVENT_GAP:
            ensureDeferred(self._read_epoch()).addErrback(self._failed)

    async def _read_epoch(self) -> None:
        try:
            _, stat = await self._client.get(self._layout.epoch)
        except NoNode:
            return
        self._report(self.audit.epoch(stat.version, stat.mzxid, self._now_ms()))

    def _servers_event(self, event_type: int, path: str, zxid: int) -> None:  # noqa: ARG002
        if self._stopped or event_type == EVENT_GAP:
            return
        uuid = path.rpartition("/")[2]
        self.audit.server(uuid, None)
        # Only the replicas of this server: reading all replicas at the start of each of a thousand servers would be a
        # million reads.
        ensureDeferred(self._read_servers([self._layout.server(uuid)])).addErrback(self._failed)

    async def _read_servers(self, paths: list[str]) -> None:
        for path, data, _ in await store.read_all(self._client, paths):
            try:
                record = decode_server(data, path)
            except CorruptZnode as error:
                log.error("cannot audit a damaged znode: {error}", error=error)
                continue
            self.audit.server(record.uuid, record)

    def _tables_event(self, event_type: int, path: str, zxid: int) -> None:  # noqa: ARG002
        if self._stopped or event_type == EVENT_GAP:
            return
        table_id = path.rpartition("/")[2]
        self.audit.table(table_id, None, self._now_ms())
        ensureDeferred(self._read_tables([table_id])).addErrback(self._failed)

    async def _read_tables(self, table_ids: list[str]) -> None:
        paths = [self._layout.table(table_id) for table_id in table_ids]
        for path, data, _ in await store.read_all(self._client, paths):
            try:
                record = decode_table(data, path)
            except CorruptZnode as error:
                log.error("cannot audit a damaged znode: {error}", error=error)
                continue
            self.audit.table(record.table_id, record, self._now_ms())

    # --- owners -------------------------------------------------------------------------------------------------------

    def _compare_owners(self) -> None:
        """Compare some servers with the store: replicas that are long at rest must be where the store says (N5)."""
        now_ms = self._now_ms()
        if self._owners is None:
            if now_ms - self._compared_ms < OWNERS_S * 1000 - REST_MS:
                return
            self._owners = OwnerRound(self._sources.served())
        going = self._owners
        is_valid = going.step(self._sources.at_rest, self._sources.served(), self._sources.home_of, now_ms)
        if is_valid and not going.is_over:
            return
        self._owners, self._compared_ms = None, now_ms
        if is_valid and going.servers:
            self._found(AuditCheck.OWNERS, self.audit.compared(going.found, now_ms))

    def doubt(self, keys: list[str]) -> None:
        """Check soon whether these replicas are served where the store has them (N5)."""
        if not self._stopped:
            self._doubts.put(keys, self._now_ms())

    def _look_at_doubts(self) -> None:
        self._later("doubts", DOUBTS_S, self._look_at_doubts)
        self._compare_owners()
        if self._doubts:
            now_ms, before = self._now_ms(), self._doubts.compared
            found = self._doubts.look(self._sources.home_of, self._sources.settled(), now_ms)
            alarms = [alarm for key, (rule, text) in found for alarm in self.audit.owner(key, rule, text, now_ms)]
            if self._doubts.compared > before:  # a standby compares nothing, and drops its doubts
                self._found(AuditCheck.DOUBTS, alarms)
        for server in [] if self._shortfall is None else self._shortfall.due(self.audit.epoch_changed_ms):
            ensureDeferred(self._look_for_unserved(server)).addErrback(self._failed)

    async def _look_for_unserved(self, server: Incarnation) -> None:
        """Report the regions that a server must serve and that its list lacks. Report all of them for a dead server."""
        assert self._shortfall is not None
        found = await self._shortfall.unserved(server)
        if not self._stopped and self._is_current:
            for key, (rule, text) in found:
                self._report(self.audit.owner(key, rule, text, self._now_ms()))

    # --- the master's copy --------------------------------------------------------------------------------------------

    def _check_cache(self) -> None:
        """Check a slice of the key space; read a slice of the regions again unless the former is still being read."""
        self._later("cache", CACHE_S, self._check_cache)
        copy = self._sources.copy()
        if copy is not None:
            now_ms = self._now_ms()
            holes = self.key_space.step(copy, now_ms)
            raised = [self.audit.key_space(one.table_id, one.version, one.text, now_ms) for one in holes]
            self._found(AuditCheck.KEYS, [alarm for alarms in raised for alarm in alarms])
        if copy is None or self._is_reading_slice or self._client.state is not SessionState.CONNECTED:
            return
        self._is_reading_slice = True
        ensureDeferred(self._compare_slice(copy)).addErrback(self._failed)

    async def _compare_slice(self, copy: ClusterState) -> None:
        try:
            regions = self.cache.next_slice(copy)
            paths = self.cache.paths(copy, regions)
            found = await store.read_all(self._client, paths)
        finally:
            self._is_reading_slice = False
        if self._stopped or self._sources.copy() is not copy:
            return  # another copy has taken its place meanwhile
        now_ms = self._now_ms()
        stored = {path: stat.version for path, _, stat in found}
        stale = self.cache.see(copy, regions, stored, now_ms, self._sources.unread(paths))
        raised = [self.audit.stale_copy(one.path, f"{one} (master {self._uuid})", now_ms) for one in stale]
        self._found(AuditCheck.COPY, [alarm for alarms in raised for alarm in alarms])

    def orphan(self, key: str, server: Incarnation) -> None:
        """Raise the alarm for a server that serves a replica which no table has (FN-04)."""
        self._report(self.audit.orphan(key, server, self._now_ms()))

    # --- alarms -------------------------------------------------------------------------------------------------------

    def _found(self, check: AuditCheck, alarms: list[Alarm]) -> None:
        """Record that a check was made, and raise alarms for its findings."""
        self.checks.note(check, self._now_ms(), [f"{one.rule}: {one.text}" for one in alarms])
        self._report(alarms)

    def _report(self, alarms: list[Alarm]) -> None:
        for alarm in alarms:
            if alarm.rule == Rule.VANISHED:
                ensureDeferred(self._report_if_open(alarm)).addErrback(self._failed)
            else:
                self._raise(alarm)

    async def _report_if_open(self, alarm: Alarm) -> None:
        """Raise the alarm unless the region was unassigned, replaced or deleted, which end a transition, too.

        A number that is not in the tablet's configuration raises no alarm either.
        """
        region_id, number = parse_replica_key(alarm.key)
        path = self._layout.region(region_id.rpartition(".")[0], region_id)
        for _, data, _ in await store.read_all(self._client, [path]):
            try:
                region = decode_region(data, path)
                is_wanted = not region.unassigned and not region.is_replaced
                if region.is_tablet and region.member(number) is None:
                    is_wanted = False  # the replica of a removed member was closed, or the member was given up
            except CorruptZnode:
                is_wanted = True
            if is_wanted:
                self._raise(alarm)

    def _raise(self, alarm: Alarm) -> None:
        self.alarms += 1
        log.error("ALARM {id}: {rule}: {text}", id=alarm.alarm_id, rule=alarm.rule, text=alarm.text)
        for step in alarm.steps:
            log.error("ALARM {id}: previous step {step}", id=alarm.alarm_id, step=step)
        self._unsent.append(msgspec.structs.replace(alarm, raised_by=self._uuid))
        self._send()

    def _send(self) -> None:
        if self._unsent and not self._sending and self._client.state is SessionState.CONNECTED:
            self._sending = True
            ensureDeferred(self._store_alarms()).addErrback(self._failed)

    async def _store_alarms(self) -> None:
        try:
            while self._unsent:
                alarm = self._unsent[0]
                try:
                    await self._client.create(self._layout.alarm(alarm.alarm_id), encode(alarm))
                except NodeExists:
                    log.info("another auditor has already raised alarm {id}", id=alarm.alarm_id)
                self._unsent.popleft()
            await self._prune()
        finally:
            self._sending = False

    async def _prune(self) -> None:
        """Delete the oldest alarms beyond ALARMS_MAX."""
        paths = await store.list_all(self._client, [self._layout.alarms])
        if len(paths) <= ALARMS_MAX:
            return
        found = await store.read_all(self._client, paths)
        for _, path in sorted((stat.czxid, path) for path, _, stat in found)[:-ALARMS_MAX]:
            try:
                await self._client.delete(path)
            except NoNode:
                continue  # another auditor has deleted the alarm
