"""The tablet host of a region server: the shell around the pure turn (`regionserver/tablets/host/turn.py`).

One turn of the reactor is one `take()`: one frame per peer, one record of the log, then rounds, reads and answers.

    sockets, timers, threads  ->  turn.frame(), propose(), read(), tick(), persisted(), applied()
    end of the reactor's turn ->  frames to peers, changes to the log's thread, rounds and reads to the rows'
                                  threads, answers to waiting requests

Every method is called on the reactor's thread. This module makes no decisions: `host/`, `disk/`, `floors` and `reports`
decide what to write, send, answer or give up.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from twisted.internet.defer import Deferred, inlineCallbacks, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord import kill_points
from coord.env import Disk, System
from coord.env_os import OsDisk
from coord.errors import ConfigError, CoordError
from coord.storage.shared.items import Change, RecoveredSlot, SlotError
from coord.storage.shared.log import SEGMENT_BYTES, SharedLog, open_shared_log
from regions.messages.heartbeat import TabletReport
from regions.messages.server import ClosePurpose, MemberEndpoint, TabletFigures
from regionserver.session.instance import Instance
from regionserver.tablets import commands
from regionserver.tablets.commands import KvCommand, SealCommand
from regionserver.tablets.disk.files import TabletFiles
from regionserver.tablets.disk.joined import StartingSlots
from regionserver.tablets.disk.layout import LOG, ROWS
from regionserver.tablets.disk.startup import Decision
from regionserver.tablets.disk.superblock import Superblock
from regionserver.tablets.disk.syncing import sync_together
from regionserver.tablets.host.beats import TICK_MS
from regionserver.tablets.host.envelope import BeatFrame, TurnFrame, encode_beat, encode_turn
from regionserver.tablets.host.output import TurnOutput
from regionserver.tablets.host.requests import Fate, TabletAnswer
from regionserver.tablets.host.turn import Turn
from regionserver.tablets.members.work import MembersWork, appended_reached
from regionserver.tablets.offline.steady_points import StartingRows
from regionserver.tablets.process import reports
from regionserver.tablets.process.files_work import FilesWork
from regionserver.tablets.process.interfaces import (
    HostLinks,
    HostSettings,
    ReplicaOpening,
    RowsReader,
    ThreadedReactor,
)
from regionserver.tablets.process.life_work import ReplicaLife, why_of
from regionserver.tablets.process.log_thread import CurrentSlots, LogThread, RunningSlots
from regionserver.tablets.process.opening import ReplicaOpener, close_rows
from regionserver.tablets.process.replica import TabletReplica
from regionserver.tablets.process.reports import ServersSeen
from regionserver.tablets.process.rows_work import RowsWork, WaitingRequest
from regionserver.tablets.rows.self_test import self_test
from regionserver.tablets.rows.tablet_rows import TabletRows
from regionserver.workers import Workers, outcome_of

log = Logger()

#: Ticks between two checks of the work that is due once a second: steady points, floors, the members' health.
SWEEP_TICKS: Final = 1000 // TICK_MS
#: Threads that open files and make steady points.
SLOW_THREADS: Final = 2
#: Time limit for the threads of a stopping host.
STOP_S: Final = 5.0


class TabletHost:
    """All tablets of one server's process."""

    def __init__(
        self,
        reactor: ThreadedReactor,
        system: System,
        instance: Instance,
        links: HostLinks,
        *,
        start_code: int,
        died: Callable[[str], None],
        changed: Callable[[str], None],
        settings: HostSettings | None = None,
        disk: Disk | None = None,
    ) -> None:
        """Everything runs on the thread of `reactor`. The directory of `instance` is locked.

        `links` are the connections to the other servers, `start_code` is that of this process. `died` is called once,
        with a sentence, when the process must end, and `changed` with a tablet whose report differs from the last one.
        `disk` is the data directory, for tests.
        """
        self.settings = settings or HostSettings()
        self._reactor: Any = reactor
        self._system = system
        self._instance = instance
        self._links = links
        self._died = died
        self._changed = changed
        self._disk = disk or OsDisk(instance.directory)
        self.turn = Turn(instance.cluster_id, instance.uuid, start_code, reads_quiet=links.knows_quiet)
        self._replicas: dict[str, TabletReplica] = {}
        self._waiting: dict[int, WaitingRequest] = {}
        self._requests = 0
        self._is_due = False
        self._is_planned = False
        #: True from `start` until everything is closed, or until the process must end.
        self._is_running = False
        self._is_stopping = False
        self._is_log_full = False
        self._is_disk_short = False
        self._entries = 0
        self._changes = reports.ReportChanges()
        self._has_turns = hasattr(reactor, "at_turn_end")
        self._slots = CurrentSlots()
        self._files = TabletFiles(self._disk, self._slots, sync_together)

    # --- start --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Read the directory, and begin to host its tablets. Needs neither store nor master.

        Rows are opened in the background; a replica is ASLEEP until its rows are open.

        Raises:
            ConfigError: The directory cannot be used, with one sentence. Nothing was started.
        """
        try:
            shared, decisions, recovered = self._read_directory()
        except ConfigError:
            raise
        except (CoordError, OSError) as error:
            raise ConfigError(f"the tablets in {self._instance.directory} cannot be opened: {error}") from error
        slow_ticks = max(1, self.settings.slow_write_ms // TICK_MS)
        self._log = LogThread(shared, self._reactor, self, slow_ticks)
        self._running_slots = RunningSlots(self._log, self._reactor)
        self._slots.now = self._running_slots
        self._pool = Workers(self._reactor, self.settings.threads, self._soon, self._fault)
        self._slow_pool = Workers(self._reactor, SLOW_THREADS, self._soon, self._fault)
        self._files_pool = Workers(self._reactor, 1, self._soon, self._fault)
        self._rows = RowsWork(
            self.turn, self._replicas, self._waiting, self._reactor, self._pool, self._slow_pool, self._park
        )
        files_work = FilesWork(self._files, self._running_slots, self._instance.uuid)
        self.life = ReplicaLife(
            self.turn,
            self._replicas,
            self._reactor,
            self._system.clock,
            self._log,
            ReplicaOpener(self._instance.directory, self._system.rng, self.turn.in_flight),
            files_work,
            self._slow_pool,
            self._files_pool,
            changed=self.report_changed,
            soon=self._soon,
            learn=self._learn,
        )
        self.members = MembersWork(
            self.turn, self._replicas, files_work.write_meta, files_work.write_metas, self._files_pool,
            later=self._reactor.callLater, new_request=self._new_request, soon=self._soon,
            changed=self.report_changed, learn=self._learn,
        )  # fmt: skip
        self._log.start()
        if self._has_turns:
            self._reactor.at_turn_end(self.end_turn)
        for decision in decisions:
            self.life.take_found(self._files, decision, recovered)
        self._is_running = True
        self._reactor.callLater(TICK_MS / 1000, self._tick)

    def _read_directory(self) -> tuple[SharedLog, list[Decision], dict[int, RecoveredSlot]]:
        self._files.admit(self._instance)
        self._files.prepare()
        self_test(self._disk.where(ROWS))
        segment_bytes = self.settings.segment_bytes or SEGMENT_BYTES
        shared, recovered = open_shared_log(self._disk, LOG, segment_bytes=segment_bytes)
        try:
            for line in (*recovered.damage, recovered.cut):
                if line:
                    log.warn("{line}", line=line)
            self._slots.now = StartingSlots(shared)
            judge = StartingRows(self._instance.directory)
            decisions = self._files.start(recovered.slots, judge, self._instance.uuid, self._system.clock.wall_ms())
            self._instance.hold_tablets()
        except BaseException:
            shared.close()
            raise
        return shared, decisions, recovered.slots

    def _learn(self, endpoint: MemberEndpoint) -> None:
        """Note where a member's server listens. The first tablet comes after the server has joined its cluster."""
        self.turn.cluster = self._instance.cluster_id
        if endpoint.uuid != self._instance.uuid and endpoint.host:
            self._links.learn(endpoint.uuid, (endpoint.host, endpoint.peer_port))

    # --- links (LinkEvents) -------------------------------------------------------------------------------------------

    def peer_introduced(self, server: str, start_code: int) -> None:
        """A process on `server` has proved its identity over a new connection."""
        self.turn.introduced(server, start_code)
        self._soon()

    def peer_frame(self, server: str, frame: TurnFrame | BeatFrame) -> None:
        """A frame of a peer has arrived. Raise RemoteProtocolError for one in another server's name."""
        self.turn.frame(server, frame)
        self._soon()

    def peer_lost(self, server: str, start_code: int) -> None:
        """The connection to that process broke."""
        self.turn.peer_gone(server, start_code)
        self._soon()

    # --- orders -------------------------------------------------------------------------------------------------------

    def make(self, openings: Sequence[ReplicaOpening]) -> Deferred[list[str]]:
        """Make first replicas, durable together. Return "" or the reason of the failure for each. The replicas are not
        hosted yet."""
        return self.life.make(openings)

    def begin(self, tablet: str) -> Deferred[str]:
        """Host the group of a replica that was made or rests. Return "" once the group is hosted, or the reason of a
        failure."""
        return self.life.begin(tablet)

    def close(self, tablet: str, purpose: ClosePurpose, reason: str = "") -> Deferred[str]:
        """Stop a replica and process its files as `purpose` says. Return "" or the reason of a failure."""
        return self.life.close(tablet, purpose, reason)

    # --- requests -----------------------------------------------------------------------------------------------------

    def propose(self, tablet: str, command: KvCommand) -> Deferred[TabletAnswer]:
        """Write. The command gets the leader's time. Raise CommandError for a broken limit; nothing was done then."""
        return self._append(tablet, commands.encode(msgspec.structs.replace(command, time_ms=self.time_ms(tablet))))

    def propose_seal(self, tablet: str, command: SealCommand) -> Deferred[TabletAnswer]:
        """Change the seal of a tablet, as `propose` writes. Raise CommandError."""
        return self._append(
            tablet, commands.encode_seal(msgspec.structs.replace(command, time_ms=self.time_ms(tablet)))
        )  # fmt: skip

    def _append(self, tablet: str, payload: bytes) -> Deferred[TabletAnswer]:
        request, answer = self._new_request(tablet)
        group = self.turn.groups.get(tablet)
        if self.is_full() and group is not None and group.core.leadership is not None:
            del self._waiting[request]
            return succeed(TabletAnswer(tablet, request, Fate.DISK_FULL))
        self.turn.propose(tablet, request, payload)
        self._soon()
        return answer

    def read(
        self, tablet: str, read: RowsReader, *, at_least: int = 0, max_stale_ms: int = 0, keys: int = 0
    ) -> Deferred[TabletAnswer]:
        """Read from a snapshot. The answer's value is what `read` returned.

        `keys` is the number of rows that `read` looks up; 0 if unknown. A read that is not small runs on a thread.

        Without `at_least` and `max_stale_ms` the read is linearizable, and only the leader serves it. With `at_least`,
        any replica whose rows include that entry serves the read; with `max_stale_ms`, any replica that can prove that
        its rows have every write acknowledged at least that long ago. The snapshot reaches at most to the answer's
        position.
        """
        request, answer = self._new_request(tablet, read, keys)
        if max_stale_ms:
            self.turn.read_stale(tablet, request, max_stale_ms, self._system.clock.monotonic_ms())
        elif at_least:
            self.turn.read_at_least(tablet, request, at_least)
        else:
            self.turn.read(tablet, request)
        self._soon()
        return answer

    def age_ms(self, answer: TabletAnswer) -> int:
        """Return how old the rows of a stale read's answer may be by now."""
        return self._system.clock.monotonic_ms() + 1 - answer.as_of_ms

    def _new_request(
        self, tablet: str, reader: RowsReader | None = None, keys: int = 0
    ) -> tuple[int, Deferred[TabletAnswer]]:
        self._requests += 1
        answer: Deferred[TabletAnswer] = Deferred()
        self._waiting[self._requests] = WaitingRequest(tablet, answer, reader, keys)
        return self._requests, answer

    def leader_of(self, tablet: str) -> tuple[int, int, str]:
        """Return the term, and number and server of its leader: 0 and "" if unknown."""
        group = self.turn.groups.get(tablet)
        if group is None or group.failure:
            return 0, 0, ""
        return group.core.term, group.core.leader, group.servers.get(group.core.leader, "")

    def time_ms(self, tablet: str) -> int:
        """Return this server's time, not below the tablet's clock."""
        rows = self.rows_of(tablet)
        now_ms = self._system.clock.wall_ms()
        return now_ms if rows is None else max(now_ms, rows.state.clock_ms)

    def endpoint_of(self, tablet: str, server: str) -> MemberEndpoint | None:
        """Return where a member's server listened for peers when the tablet was made."""
        replica = self._replicas.get(tablet)
        found = replica.endpoints() if replica is not None else ()
        return next((one for one in found if one.uuid == server), None)

    def rows_of(self, tablet: str) -> TabletRows | None:
        """Return the rows of a running replica, for figures and tests."""
        replica = self._replicas.get(tablet)
        return replica.rows if replica is not None else None

    def key_range(self, tablet: str) -> Superblock | None:
        """Return the superblock, which has the tablet's range; None without files of the tablet."""
        replica = self._replicas.get(tablet)
        return None if replica is None else replica.block

    def is_full(self) -> bool:
        """Return True while the disk has no room. Then writes are refused; acknowledged writes are safe."""
        return self._is_log_full or self._is_disk_short or self._rows.is_full()

    # --- reports ------------------------------------------------------------------------------------------------------

    def replicas(self) -> list[str]:
        """Return the tablets of which this server has something, tombstones included."""
        return list(self._replicas)

    def report(self, tablet: str) -> TabletReport | None:
        """Return the report about a tablet, None without files of the tablet."""
        replica = self._replicas.get(tablet)
        if replica is None:
            return None
        return self._report(replica, self._servers_seen())

    def _report(self, replica: TabletReplica, seen: ServersSeen) -> TabletReport:
        found = reports.report_of(replica, self.turn.groups.get(replica.tablet), seen, self.settings.dead_s)
        self._changes.reported(found)
        return found

    def keys(self) -> list[tuple[str, int]]:
        """Return tablet and member number of every replica, without reading the groups."""
        return [(tablet, replica.block.number) for tablet, replica in self._replicas.items()]

    def reports(self) -> list[TabletReport]:
        """Return the reports about all tablets."""
        seen = self._servers_seen()
        return [self._report(replica, seen) for replica in self._replicas.values()]

    def _servers_seen(self) -> ServersSeen:
        peers = self.turn.beats.peers.items()
        full = {server for server, peer in peers if peer.is_full} | ({self._instance.uuid} if self.is_full() else set())
        there = frozenset(server for server, peer in peers if peer.is_there)
        return ServersSeen(there, frozenset(full), self.turn.beats.absences(self.settings.dead_s * 1000 / TICK_MS))

    def status(self) -> TabletFigures:
        """Return the figures of this host."""
        found = reports.figures_of(self._replicas, self.turn, self._log)
        return msgspec.structs.replace(found, entries=self._entries, waiting=len(self._waiting), is_full=self.is_full())

    @property
    def handled(self) -> int:
        """Number of requests, and of entries appended to the log, since the start."""
        return self._requests + self._entries

    def report_changed(self, tablet: str) -> None:
        """Have a tablet reported whose report differs from the last one."""
        if not self._is_stopping:
            self._changed(tablet)

    # --- the turn -----------------------------------------------------------------------------------------------------

    def _soon(self) -> None:
        """End the turn once this turn of the reactor has brought everything that it brings."""
        self._is_due = True
        if not self._has_turns and not self._is_planned:
            self._is_planned = True
            self._reactor.callLater(0, self._planned_end)

    def _planned_end(self) -> None:
        self._is_planned = False
        if self.end_turn():
            self._soon()

    def end_turn(self) -> bool:
        """Carry out the effects of this turn's inputs. Return True if more work is due at once. Does not raise."""
        if not self._is_due or not self._is_running:
            return False
        self._is_due = False
        try:
            self._carry_out(self.turn.take())
        except Exception:  # boundary: a broken invariant of the host ends the process, with a full report
            self.host_failed()
        return self._is_due and self._is_running

    def _carry_out(self, out: TurnOutput) -> None:
        self._send(out)
        if out.log or self._rows.floors:
            self._write(out)
        self._log.flush()
        self._rows.begin_turn()
        if out.rounds and self._rows.apply_all(out.rounds):
            self._soon()
        if out.reads:
            self._rows.read(out.reads)
        for tablet, member, first in out.needs_log:
            self._rows.read_back(self._log.shared, tablet, member, first)
        for answer in out.answers:
            waiting = self._waiting.pop(answer.request, None)
            if waiting is not None:
                waiting.answer.callback(answer)
        self._note(out)

    def _send(self, out: TurnOutput) -> None:
        links = self._links
        turn = self.turn
        for server, items in out.frames.items():
            for frame in encode_turn(turn.header(server), items):
                links.send(server, frame)
        for server, beat in out.beats.items():
            header = turn.header(server)
            is_full = beat.is_full and links.knows_full(server)
            frames = encode_beat(
                header, beat.number, disk_answers=beat.disk_answers, heartbeats=beat.heartbeats, is_full=is_full
            )
            for frame in frames:
                links.send(server, frame)
        if out.frames or out.beats:
            links.flush()

    def _write(self, out: TurnOutput) -> None:
        """Submit the writes of the groups in this turn, and floors. A change that does not fit its slot makes its
        tablet FAILED."""
        changes: list[Change] = [*out.log, *self._rows.floors]
        has_floors, self._rows.floors = bool(self._rows.floors), []
        number = out.log_number
        self._entries += sum(len(items.entries) for items in out.log)

        def durable() -> None:
            if kill_points.is_wanted():
                appended_reached(out)
            if number:
                self.turn.persisted(number)
                self._soon()
            if has_floors:
                self._log.prune()

        while True:
            try:
                self._log.submit(changes, durable)
                return
            except SlotError as error:
                slot, why = error.slot, str(error)
            changes = [change for change in changes if change.slot != slot]
            for tablet, replica in self._replicas.items():
                if replica.block.slot == slot:
                    self._park(tablet, why)

    def _note(self, out: TurnOutput) -> None:
        """Record the events inside the groups, and report changes."""
        if out.events:
            for line in reports.role_lines(out.events):
                log.info("{line}", line=line)
            if self.turn.beats.is_full:
                self._note_full()
        if out.configs or out.copies or out.votes:
            self.members.note(out)
        for tablet, why in out.failed:
            self.life.parked(tablet, why)
        for tablet, server, why in out.rejected:
            log.error(
                "tablet {tablet}: dropped a message of server {server}: {why}", tablet=tablet, server=server, why=why
            )
        for tablet in self._changes.after_turn(out.events, self.turn.groups):
            self.report_changed(tablet)

    # --- trouble ------------------------------------------------------------------------------------------------------

    def _park(self, tablet: str, why: str) -> None:
        """Make a tablet FAILED; the others go on."""
        if tablet in self.turn.groups:
            self.turn.park(tablet, why)
            self._soon()

    def log_failed(self, error: Exception) -> None:
        """See `LogEvents.log_failed`."""
        self._die(f"the shared log of the tablets cannot be written: {error}")

    def log_full(self, *, is_full: bool) -> None:
        """See `LogEvents.log_full`. Hand over leaderships; waiting writes continue when there is room."""
        self._is_log_full = is_full
        if is_full:
            log.error("{path}: disk full; writes are rejected until there is room", path=self._disk.where(LOG))
        else:
            log.info("{path}: the disk has room again", path=self._disk.where(LOG))
        self._note_full()

    def disk_is_short(self, *, is_short: bool) -> None:
        """Note whether the disk has less free space than its reserve: then no writes are led here."""
        if is_short is not self._is_disk_short:
            self._is_disk_short = is_short
            words = "is below its reserve; writes are rejected until there is room" if is_short else "has room again"
            log.warn("the disk of {path} {words}", path=self._disk.where(ROWS), words=words)
            self._note_full()

    def _note_full(self) -> None:
        """Let BEATs report whether the disk has room. While there is none, hand leaderships over, including those that
        have come back."""
        self.turn.full(is_full=self.is_full())
        self._soon()

    def log_answers(self, *, answers: bool) -> None:
        """See `LogEvents.log_answers`."""
        if answers:
            log.info("the disk of the shared log answers again")
        else:
            log.error("a write to the shared log takes longer than {ms} ms", ms=self.settings.slow_write_ms)
        self.turn.disk(answers=answers)
        self._soon()

    def host_failed(self) -> None:
        """See `LogEvents.host_failed`."""
        self._fault(Failure())  # type: ignore[no-untyped-call]

    def _fault(self, failure: Failure) -> None:
        """A broken invariant of the host itself: end the process."""
        log.failure("the tablet host has failed", failure=failure)
        self._die(f"the tablet host has failed: {failure.getErrorMessage()}")

    def _die(self, reason: str) -> None:
        if self._is_running:
            self._is_running = False
            self._running_slots.end()
            self._died(reason)

    # --- time ---------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if not self._is_running:
            return
        self._reactor.callLater(TICK_MS / 1000, self._tick)
        try:
            self._tick_once()
        except Exception:  # boundary: as in `end_turn`
            self.host_failed()
        self._soon()

    def _tick_once(self) -> None:
        self._log.tick()
        self.turn.tick()
        if self.turn.beats.now % SWEEP_TICKS == 0:
            self._rows.sweep(self._system.clock.monotonic_ms() / 1000, self._log.shared)
            self.turn.bound_memory(self.settings.memory_bytes)
            self.turn.full(is_full=self.is_full())
            turn, seen = self.turn, self._servers_seen()
            for tablet in self._changes.of_health(turn.groups, turn.quiet.awake, seen, self.settings.dead_s):
                self.report_changed(tablet)
            for tablet in self._changes.of_sizes(self._replicas, self.turn.beats.now):
                self.report_changed(tablet)

    # --- stop ---------------------------------------------------------------------------------------------------------

    @inlineCallbacks
    def stop(self) -> Generator[Deferred[Any], Any, None]:
        """Hand over leaderships, make steady points, write the log, and end the threads."""
        if not self._is_running or self._is_stopping:
            return
        self._is_stopping = self.life.is_stopping = True
        self.turn.hand_over()
        self._soon()
        for _ in range(int(self.settings.hand_over_s * 1000 / TICK_MS)):
            if not any(group.core.leadership is not None for group in self.turn.groups.values() if not group.failure):
                break
            yield self._after(TICK_MS / 1000)
        for tablet in list(self.turn.groups):
            self.turn.remove(tablet)
        self._is_due = True
        self.end_turn()
        opened = [replica.rows for replica in self._replicas.values() if replica.rows is not None]
        closings = [outcome_of(self._slow_pool.submit, partial(close_rows, rows)) for rows in opened]
        for closing in closings:
            why = yield closing
            if why:
                log.warn("rows were closed with an error: {why}", why=why_of(why))
        self._is_running = False
        self._running_slots.end()
        yield outcome_of(self._files_pool.submit, lambda: None)
        self._log.unwatch()
        yield outcome_of(self._slow_pool.submit, self._log.close)
        for pool in (self._pool, self._slow_pool, self._files_pool):
            pool.stop(STOP_S)

    def _after(self, delay_s: float) -> Deferred[None]:
        passed: Deferred[None] = Deferred()
        self._reactor.callLater(delay_s, passed.callback, None)
        return passed
