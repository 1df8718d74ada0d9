"""The replicas of this process, from start to removal: opening, making, closing.

Every method is called on the reactor's thread. Other threads work on files and rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from coord.env import Clock
from coord.errors import CoordError, StorageError
from coord.storage.shared.items import Change, RecoveredSlot
from coord.storage.shared.log import SharedLog
from regions.messages.server import ClosePurpose, MemberEndpoint
from regionserver.tablets.disk.consensus_meta import ConsensusMeta
from regionserver.tablets.disk.files import TabletFiles
from regionserver.tablets.disk.life import RunEvent, RunState, run_after
from regionserver.tablets.disk.startup import Decision
from regionserver.tablets.disk.superblock import Superblock
from regionserver.tablets.host.turn import Turn
from regionserver.tablets.process.files_work import FilesWork, MadeReplica
from regionserver.tablets.process.first_elections import FirstElections
from regionserver.tablets.process.interfaces import ReplicaOpening, ThreadedReactor
from regionserver.tablets.process.log_thread import LogThread
from regionserver.tablets.process.opening import OpenedReplica, ReplicaOpener, close_rows
from regionserver.tablets.process.replica import TabletReplica
from regionserver.tablets.process.rows_work import FULL_RETRY_S
from regionserver.tablets.rows.errors import RowsError, RowsFull
from regionserver.workers import Workers

log = Logger()


class HostParts(NamedTuple):
    """The parts of a host that copies of replicas (`regionserver/tablets/copying`) and upkeep
    (`regionserver/tablets/upkeep`) use."""

    replicas: dict[str, TabletReplica]
    shared: SharedLog
    files: FilesWork
    files_pool: Workers
    slow_pool: Workers
    #: Boot id of the machine.
    boot: str


class ReplicaLife:
    """Moves replicas through their run states (`disk/life.py`)."""

    def __init__(
        self,
        turn: Turn,
        replicas: dict[str, TabletReplica],
        reactor: ThreadedReactor,
        clock: Clock,
        log_thread: LogThread,
        opener: ReplicaOpener,
        work: FilesWork,
        slow_pool: Workers,
        files_pool: Workers,
        *,
        changed: Callable[[str], None],
        soon: Callable[[], None],
        learn: Callable[[MemberEndpoint], None],
    ) -> None:
        self._turn = turn
        self._replicas = replicas
        self._reactor = reactor
        self._clock = clock
        self._log = log_thread
        self._opener = opener
        self._work = work
        self._slow_pool = slow_pool
        self._files_pool = files_pool
        self._changed = changed
        self._soon = soon
        self._learn = learn
        self._first_elections = FirstElections(turn, reactor)
        #: Tablets whose first replica is being made. No copy of them begins, because both would write the same files.
        self.making: set[str] = set()
        self._next_slot = log_thread.shared.next_slot()
        #: True while the process stops: no replica is opened any more.
        self.is_stopping = False

    # --- opening ------------------------------------------------------------------------------------------------------

    def take_found(self, files: TabletFiles, decision: Decision, recovered: dict[int, RecoveredSlot]) -> None:
        """Take over the start's decision about one tablet."""
        if decision.run is None:
            return
        block = files.read_block(decision.tablet)
        assert isinstance(block, Superblock), f"the superblock of {decision.tablet} was sound a moment ago"
        meta = None
        if decision.run is not RunState.LOST:
            found = files.read_meta(decision.tablet)
            meta = found if isinstance(found, ConsensusMeta) else None
        replica = self._replicas[decision.tablet] = TabletReplica(block, meta, decision.run, decision.story)
        if block.slot is not None:
            replica.recovered = recovered.get(block.slot)
        if decision.run is RunState.ASLEEP:
            self.open(replica, lambda _: None)
        else:
            self._stand(replica)

    def _stand(self, replica: TabletReplica) -> None:
        """Let the answers to messages follow the replica's state."""
        slot = replica.recovered
        if slot is None and replica.block.slot is not None:
            slot = self._log.shared.contents(replica.slot)
        standing = replica.standing(slot)
        self._turn.opening.discard(replica.tablet)
        if standing is not None:
            self._turn.resting[replica.tablet] = standing
        self._changed(replica.tablet)

    def open(self, replica: TabletReplica, done: Callable[[str], None]) -> None:
        """Open rows and group of a replica that is ASLEEP on a thread, then host the group.

        `done` gets "" or the reason of a failure."""
        replica.is_opening = True
        self._turn.resting.pop(replica.tablet, None)
        self._turn.opening.add(replica.tablet)

        def contents() -> RecoveredSlot | None:
            return replica.recovered or self._log.shared.contents(replica.slot)

        def opened(result: OpenedReplica | Exception) -> None:
            if isinstance(result, RowsFull) and not self.is_stopping:
                self._reactor.callLater(FULL_RETRY_S, self.open, replica, done)
                return
            replica.is_opening = False
            if isinstance(result, Exception) or self.is_stopping:
                if not isinstance(result, Exception):
                    result.rows.abandon()
                why = "the server stops" if self.is_stopping else why_of(result)
                if replica.run is RunState.ASLEEP and not self.is_stopping:
                    self._set_run(replica, RunEvent.FAULT, why)
                    self._stand(replica)
                done(why)
                return
            replica.recovered = None
            replica.rows = result.rows
            replica.floor = result.floor
            for endpoint in result.endpoints:
                self._learn(endpoint)
            self._set_run(replica, RunEvent.WAKE)
            self._first_elections.opened(result.group, replica.stands_first)
            replica.stands_first = None
            self._turn.add(result.group)
            self._changed(replica.tablet)
            done("")

        self._slow_pool.submit(lambda: self._opener.open(replica, contents), opened)

    def _set_run(self, replica: TabletReplica, event: RunEvent, reason: str = "") -> None:
        after = run_after(replica.tablet, replica.run, event)
        assert after is not None, f"{event} leaves no replica"
        replica.run = after
        if reason:
            replica.reason = reason
        if after is RunState.FAILED:
            log.error("tablet {tablet} is FAILED: {why}", tablet=replica.tablet, why=reason)

    # --- copies (`copying/work.py`) -----------------------------------------------------------------------------------

    def parts(self) -> HostParts:
        """Return the parts of this host that copies and upkeep use."""
        return HostParts(
            self._replicas, self._log.shared, self._work, self._files_pool, self._slow_pool, self._opener.boot
        )

    def take_slot(self) -> int:
        """Return a slot of the shared log that nobody has used."""
        self._next_slot += 1
        return self._next_slot - 1

    def replaced(self, replica: TabletReplica, event: RunEvent, reason: str = "") -> None:
        """Record that `event` has replaced the superblock of a replica that does not run."""
        self._set_run(replica, event, reason)
        self._stand(replica)

    def begun(self, replica: TabletReplica) -> None:
        """Take in a replica whose superblock was made just now."""
        self._replicas[replica.tablet] = replica
        self._stand(replica)

    def progressed(self, replica: TabletReplica) -> None:
        """Let the answers to messages follow the bytes that a copy has received."""
        standing = replica.standing(None)
        if standing is not None:
            self._turn.resting[replica.tablet] = standing

    # --- orders -------------------------------------------------------------------------------------------------------

    def make(self, openings: Sequence[ReplicaOpening]) -> Deferred[list[str]]:
        """Make first replicas, durable together. Return "" or the reason of the failure for each. The replicas are not
        hosted yet."""
        answer: Deferred[list[str]] = Deferred()
        reasons: list[str] = []
        plans: list[tuple[ReplicaOpening, int]] = []
        for opening in openings:
            if opening.tablet in self._replicas or opening.tablet in self.making:
                reasons.append(f"tablet {opening.tablet} is on this server already, or is being made")
                continue
            reasons.append("")
            self.making.add(opening.tablet)
            plans.append((opening, self._next_slot))
            self._next_slot += 1

        def made(results: list[MadeReplica] | Exception) -> None:
            if isinstance(results, Exception):
                results = [MadeReplica(None, None, why_of(results))] * len(plans)
            outcomes = iter(results)
            for opening, _ in plans:
                self.making.discard(opening.tablet)
            for position, reason in enumerate(reasons):
                if reason:
                    continue
                one = next(outcomes)
                reasons[position] = one.reason
                if one.block is not None and not one.reason:
                    made = self._replicas[one.block.tablet] = TabletReplica(one.block, one.meta, RunState.ASLEEP)
                    made.stands_first = openings[position].stands_first
            answer.callback(reasons)

        at_ms = self._clock.wall_ms()
        self._files_pool.submit(lambda: self._work.make(plans, at_ms), made)
        return answer

    def begin(self, tablet: str) -> Deferred[str]:
        """Host the group of a replica that was made or rests. Return "" once the group is hosted, or the reason of a
        failure."""
        replica = self._replicas.get(tablet)
        if replica is None:
            return succeed(f"tablet {tablet} is not on this server")
        if replica.run is RunState.RUNNING:
            return succeed("")
        answer: Deferred[str] = Deferred()
        if replica.run is RunState.RESTING:
            self._enable(replica, answer)
        elif replica.run is RunState.ASLEEP and not replica.is_opening:
            self.open(replica, answer.callback)
        else:
            opening = ", its rows are being opened" if replica.is_opening else ""
            answer.callback(f"tablet {tablet} is {replica.run.value}{opening}: {replica.reason}".rstrip(": "))
        return answer

    def _enable(self, replica: TabletReplica, answer: Deferred[str]) -> None:
        at_ms = self._clock.wall_ms()

        def enabled(result: Superblock | str | Exception) -> None:
            if not isinstance(result, Superblock):
                answer.callback(why_of(result))
                return
            replica.block = result
            if replica.run is RunState.RESTING:
                self._set_run(replica, RunEvent.ENABLE)
            self.open(replica, answer.callback)

        self._files_pool.submit(lambda: self._work.enable(replica.block, at_ms), enabled)

    def rest(self, tablet: str) -> Deferred[str]:
        """Close a replica and keep its files, because its table is disabled."""
        return self.close(tablet, ClosePurpose.REST)

    def delete(self, tablet: str, reason: str = "") -> Deferred[str]:
        """Move the files of a replica to the quarantine, and forget the tablet."""
        return self.close(tablet, ClosePurpose.DELETE, reason)

    def close(self, tablet: str, purpose: ClosePurpose, reason: str = "") -> Deferred[str]:
        """Stop a replica and process its files as `purpose` says. Return "" or the reason of a failure.

        The caller has checked the order (`regions/replication/guards.py`).
        """
        replica = self._replicas.get(tablet)
        if replica is None:
            return succeed("")
        if replica.is_opening or replica.run is RunState.STOPPING:
            return succeed(f"tablet {tablet} is being opened or closed")
        is_removed = replica.run in (RunState.TOMBSTONE, RunState.LOST)
        if is_removed and purpose is not ClosePurpose.DELETE:
            return succeed("")
        if replica.run is RunState.RESTING and purpose is ClosePurpose.REST:
            return succeed("")
        answer: Deferred[str] = Deferred()
        if is_removed:
            self._close_files(replica, purpose, reason, answer)
            return answer
        self._stop(replica, lambda: self._close_files(replica, purpose, reason, answer))
        return answer

    def _stop(self, replica: TabletReplica, then: Callable[[], None]) -> None:
        """End the group of a replica and close its rows, then go on with `then`."""
        self._set_run(replica, RunEvent.STOP)
        self._stop_group(replica)
        rows, replica.rows = replica.rows, None

        def closed(result: str | Exception) -> None:
            if isinstance(result, Exception) or result:
                log.warn("rows of {tablet} were closed with an error: {why}", tablet=replica.tablet, why=why_of(result))
            then()

        if rows is None:
            closed("")
        else:
            self._slow_pool.submit(lambda: close_rows(rows), closed)

    def _stop_group(self, replica: TabletReplica) -> None:
        """End the group and answer its requests. From now on messages are answered from the replica's state."""
        if replica.tablet in self._turn.groups:
            self._turn.remove(replica.tablet)
        self._stand(replica)
        self._soon()

    def _close_files(self, replica: TabletReplica, purpose: ClosePurpose, reason: str, answer: Deferred[str]) -> None:
        tablet = replica.tablet
        at_ms = self._clock.wall_ms()

        def durable() -> None:
            # Everything that the group has written is in the log now, so its memory can be read there.
            self._files_pool.submit(lambda: self._work.close(replica.block, purpose, reason, at_ms), closed)

        def closed(result: Superblock | str | Exception | None) -> None:
            if isinstance(result, (str, Exception)):
                why = why_of(result)
                if replica.run is RunState.STOPPING:
                    self._set_run(replica, RunEvent.FAULT, f"it could not be closed: {why}")
                    self._stand(replica)
                answer.callback(why)
                return
            replica.recovered = None
            if result is None:
                del self._replicas[tablet]
                self._turn.forget(tablet)
                self._changed(tablet)
            else:
                replica.block = result
                replica.reason = ""
                event = RunEvent.REST if purpose is ClosePurpose.REST else RunEvent.DELETE
                self._set_run(replica, event)
                self._stand(replica)
            answer.callback("")

        self._log.submit([], durable)
        self._log.flush()

    def rewrite(self, tablet: str, changes: Callable[[RecoveredSlot], Sequence[Change]]) -> Deferred[str]:
        """Stop a running replica, make changes to its slot durable, and host its group again.

        `changes` gets the whole content of the slot, and may raise CoordError. Return "", or the reason of a failure,
        after which the replica is FAILED.
        """
        replica = self._replicas.get(tablet)
        if replica is None or replica.run is not RunState.RUNNING or self.is_stopping:
            return succeed(f"tablet {tablet} does not run on this server")
        answer: Deferred[str] = Deferred()

        def stopped() -> None:
            self._log.submit([], durable)
            self._log.flush()

        def durable() -> None:
            # Everything that the group has written is in the log now.
            slot = self._log.shared.contents(replica.slot)
            try:
                if slot is None:
                    raise StorageError(f"{tablet} runs and has no slot")
                self._log.submit(changes(slot), written)
            except CoordError as error:
                self._set_run(replica, RunEvent.FAULT, why_of(error))
                self._stand(replica)
                answer.callback(why_of(error))
                return
            self._log.flush()

        def written() -> None:
            # Only in this process. The superblock does not change.
            self._set_run(replica, RunEvent.REST)
            self._set_run(replica, RunEvent.ENABLE)
            self.open(replica, answer.callback)

        self._stop(replica, stopped)
        return answer

    def parked(self, tablet: str, why: str) -> None:
        """Note that the turn has parked a tablet, and close its rows."""
        replica = self._replicas.get(tablet)
        if replica is None or replica.run not in (RunState.RUNNING, RunState.ASLEEP, RunState.STOPPING):
            return
        self._set_run(replica, RunEvent.FAULT, why)
        rows, replica.rows = replica.rows, None
        replica.is_full = False
        if rows is not None:
            self._slow_pool.submit(lambda: _abandon(rows), lambda _: None)
        self._changed(tablet)


def _abandon(rows: Any) -> None:
    try:
        rows.abandon()
    except RowsError as error:
        log.warn("rows were closed with an error: {why}", why=str(error))


def why_of(error: object) -> str:
    """Return a reason in one line."""
    if isinstance(error, (str, CoordError)):
        return str(error)
    return f"{type(error).__name__}: {error}"
