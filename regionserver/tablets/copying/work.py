"""The copies that this server receives, from StartTabletCopy to the start of the replica.

checks (guards.py)  ->  job, queued  ->  checks again, the store's number                    reactor
former replica to quarantine  ->  superblock COPYING                                         files' thread
thread of the copy  ->  steps 2 to 5 (fetching.py)
success             ->  the replica starts under its number                                  step 6
failure             ->  the files of the copy are removed, back to the tombstone; the leader asks again
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

import msgspec
from twisted.internet.defer import Deferred, inlineCallbacks, succeed
from twisted.logger import Logger

from coord.env import Clock
from coord.rpc.wire import Code, RpcError
from regions.messages.heartbeat import ReplicaState
from regions.messages.server import ClosePurpose, TabletFigures
from regionserver.tablets.copying import guards
from regionserver.tablets.copying.fetching import (
    CopiedReplica,
    CopyPlan,
    CopySteps,
    CopyThread,
)
from regionserver.tablets.copying.guards import CopyFacts, ReplicaHere
from regionserver.tablets.copying.jobs import RETRY_AFTER_MS, CopyJobs, Job
from regionserver.tablets.copying.messages import (
    CancelCopy,
    CopyJobList,
    CopyOutcome,
    CopyRequest,
    CopyState,
    ListCopyJobs,
    StartTabletCopy,
    TabletCopyAnswer,
)
from regionserver.tablets.copying.reactor_calls import ReactorCalls
from regionserver.tablets.copying.source import CopySources
from regionserver.tablets.disk.consensus_meta import ConsensusMeta
from regionserver.tablets.disk.life import DataState, RunEvent, RunState
from regionserver.tablets.disk.superblock import Superblock, memory_of
from regionserver.tablets.host.turn import Turn
from regionserver.tablets.links.channel import Channel
from regionserver.tablets.links.own_server import CopyConnection
from regionserver.tablets.members.claiming import Claims, NewMember
from regionserver.tablets.process.files_work import FilesWork, SharedSteps
from regionserver.tablets.process.life_work import ReplicaLife, why_of
from regionserver.tablets.process.replica import TabletReplica
from regionserver.tablets.upkeep.rests import AdaptedRests
from regionserver.tablets.upkeep.space import DiskSpace
from regionserver.workers import Workers, outcome_of

log = Logger()

#: Interval at which a copy's bytes reach reports and answers.
SHOW_S: Final = 1.0
#: Interval at which a copy's progress is written to the store. Much shorter than the time after which a master gives
#: up.
PROGRESS_MS: Final = 60_000


class CopyLinks(Protocol):
    """Connections for copies."""

    def serve_copies(self, serve: Callable[[CopyConnection], None]) -> None: ...
    def dial_copy(self, server: str, address: tuple[str, int]) -> Channel: ...


class CopyWork:
    """All copies of one server. Every method is called on the reactor's thread."""

    def __init__(
        self,
        reactor: Any,
        clock: Clock,
        server: str,
        space: DiskSpace,
        boot: str,
        turn: Turn,
        replicas: dict[str, TabletReplica],
        life: ReplicaLife,
        files: FilesWork,
        files_pool: Workers,
        links: CopyLinks,
        sources: CopySources,
        calls: ReactorCalls,
        handled: Callable[[], int],
    ) -> None:
        """`handled` returns how many requests and entries of tablets the server has handled so far."""
        self._reactor = reactor
        self._clock = clock
        self._server = server
        self._space = space
        self._boot = boot
        self._turn = turn
        self._replicas = replicas
        self._life = life
        self._files = files
        self._files_pool = files_pool
        self._links = links
        self._calls = calls
        self._steps = SharedSteps(files, files_pool.post, lambda: calls.has_ended)
        self.sources = sources
        self.jobs = CopyJobs()
        self._threads: dict[int, CopyThread] = {}
        self._rests = AdaptedRests(reactor, handled, lambda: bool(self._threads))
        #: Orders of queued jobs by job, and the answers to them.
        self._queued: dict[int, tuple[StartTabletCopy, Deferred[TabletCopyAnswer]]] = {}
        #: Gives new numbers to copies; None without a store; then new numbers are refused.
        self.claims: Claims | None = None
        #: Most bytes that a copy of a number has received, as last written to the store.
        self._furthest: dict[tuple[str, int], int] = {}
        self._is_stopping = False

    # --- requests -----------------------------------------------------------------------------------------------------

    def answer(self, request: CopyRequest) -> Any:
        """Answer a request about copies. Raise RpcError."""
        if isinstance(request, StartTabletCopy):
            return self.start(request)
        if request.recipient not in ("", self._server):
            raise RpcError(Code.BAD_REQUEST, f"this server is {self._server}")
        now_ms = self._clock.wall_ms()
        if isinstance(request, ListCopyJobs):
            return CopyJobList(self._server, self.jobs.shown(now_ms), self.sources.sessions.count())
        return self._cancel(request, now_ms)

    def _cancel(self, request: CancelCopy, now_ms: int) -> CopyJobList:
        job = self.jobs.find(request.job)
        if job is None:
            raise RpcError(Code.BAD_REQUEST, f"no copy job {request.job} runs on this server")
        self._abort(job)
        return CopyJobList(self._server, [job.shown(now_ms)])

    def cancel(self, tablet: str) -> bool:
        """Cancel the copy of a tablet. Return False if none runs."""
        job = self.jobs.of(tablet)
        if job is not None:
            self._abort(job)
        return job is not None

    def start(self, order: StartTabletCopy) -> Deferred[TabletCopyAnswer]:
        """Answer a StartTabletCopy: all checks come first, and the copy goes on after the answer."""
        facts = self._facts(order, None)
        check = guards.check_copy(facts)
        if check.outcome is not CopyOutcome.STARTED:
            return succeed(self._refusal(facts, check))
        job = self.jobs.add(order.tablet, order.number, order.source.uuid, self._clock.wall_ms())
        answer: Deferred[TabletCopyAnswer] = Deferred()
        self._queued[job.job] = order, answer
        self._begin_queued()
        if job.state is CopyState.QUEUED:
            answer.callback(TabletCopyAnswer(CopyOutcome.STARTED, job=job.job))
        return answer

    def _begin_queued(self) -> None:
        """Begin as many queued jobs as have a place."""
        while not self._is_stopping and (job := self.jobs.next()) is not None:
            order, answer = self._queued.pop(job.job)
            job.enter(CopyState.WAITING, self._clock.wall_ms())
            # The tablet may have changed while the job was queued.
            facts = self._facts(order, job)
            check = guards.check_copy(facts)
            if check.outcome is not CopyOutcome.STARTED:
                self._go(check.when, order, job, answer)
                continue
            self._claimed(order, facts).addCallback(self._go, order, job, answer)

    def _claimed(self, order: StartTabletCopy, facts: CopyFacts) -> Deferred[str]:
        """Return "" if the number may begin here: it was here before, or the store assigns it to this server."""
        if facts.local is not None and facts.local.number == order.number and facts.local.has_memory:
            return succeed("")
        if self.claims is None:
            return succeed("this server has no session with the store, which gives new numbers")
        return self.claims.claim(NewMember(order.tablet, order.table, order.number, facts.local is not None))

    def _go(self, why: str, order: StartTabletCopy, job: Job, answer: Deferred[TabletCopyAnswer]) -> None:
        if why:
            self._ended(job, CopyState.FAILED, why)
        if not answer.called:
            outcome = CopyOutcome.ILLEGAL_STATE if why else CopyOutcome.STARTED
            answer.callback(TabletCopyAnswer(outcome, why, job=0 if why else job.job))
        if not why:
            self._copy(order, job).addErrback(self._broken, job)

    def _refusal(self, facts: CopyFacts, check: guards.CopyCheck) -> TabletCopyAnswer:
        local = facts.local
        job = self.jobs.of(facts.order.tablet)
        reason = check.when
        if local is not None:
            reason += (
                f"; here is member {local.number}, {local.state}, term {local.term}, last entry {local.last_index} of"
                f" term {local.last_term}"
            )
        return TabletCopyAnswer(
            check.outcome,
            reason,
            job=0 if job is None else job.job,
            received=0 if job is None else job.received,
            term=0 if local is None else local.term,
            retry_after_ms=RETRY_AFTER_MS if check.outcome is CopyOutcome.THROTTLED else 0,
        )

    def _facts(self, order: StartTabletCopy, job: Job | None) -> CopyFacts:
        """Return the facts about an order; `job` is the job of this order, if it has one already."""
        replica = self._replicas.get(order.tablet)
        is_changed = order.tablet in self._life.making or (replica is not None and replica.is_opening)
        return CopyFacts(
            order,
            self._server,
            self.local(order.tablet),
            is_copied=self.jobs.of(order.tablet) is not job,
            is_busy=self._is_stopping or is_changed,
            has_room=job is not None or self.jobs.has_room(),
            has_space=not self._space.look().missing,
        )

    def local(self, tablet: str) -> ReplicaHere | None:
        """Return the state of the tablet on this server for a StartTabletCopy; None without a superblock."""
        replica = self._replicas.get(tablet)
        if replica is None:
            return None
        block = replica.block
        group = self._turn.groups.get(tablet)
        standing = group.standing() if group is not None else self._turn.resting.get(tablet)
        term, last_term, last_index = 0, 0, 0
        if standing is not None:
            term, last_term, last_index = standing.term, standing.last_term, standing.last_index
        has_memory = block.data_state is DataState.READY or block.memory is not None
        return ReplicaHere(
            block.number, block.highest_number, ReplicaState(replica.run.value), term, last_term, last_index, has_memory
        )

    def figures(self, found: TabletFigures) -> TabletFigures:
        """Return the figures of the host, including its copies."""
        sessions = self.sources.sessions
        return msgspec.structs.replace(
            found,
            copies_in=self.jobs.count(),
            copies_out=sessions.count(),
            copies_ended={state.value: count for state, count in self.jobs.counts.items()},
            copied_in_bytes=self.jobs.received,
            copied_out_bytes=sessions.sent,
        )

    # --- a copy -------------------------------------------------------------------------------------------------------

    @inlineCallbacks
    def _copy(self, order: StartTabletCopy, job: Job) -> Any:
        log.info(
            "copying tablet {tablet} from member {source} on server {server} to member {number}",
            tablet=order.tablet, source=order.source.number, server=order.source.uuid, number=order.number,
        )  # fmt: skip
        job.enter(CopyState.REMOVING, self._clock.wall_ms())
        replica = self._replicas.get(order.tablet)
        if replica is not None and replica.block.data_state is DataState.READY:
            reason = f"replaced by a copy of member {order.source.number}"
            why = yield self._life.close(order.tablet, ClosePurpose.TOMBSTONE, reason)
            if why:
                self._ended(job, CopyState.FAILED, why)
                return
        begun = yield self._on_files(partial(self._begin_files, order))
        if not isinstance(begun, tuple):
            self._ended(job, CopyState.FAILED, why_of(begun))
            return
        block, meta = begun
        replica = self._begun(block)
        if job.is_canceled:
            yield self._give_up(replica, job, None, "canceled")
            return
        plan = CopyPlan(
            block, memory_of(block, meta), order.source.number, self._life.take_slot(), self._space, self._boot
        )
        result = yield self._fetch(plan, order, job)
        if isinstance(result, CopiedReplica):
            yield self._started(replica, result, job)
        else:
            yield self._give_up(replica, job, plan.slot, result)

    def _begin_files(self, order: StartTabletCopy) -> tuple[Superblock, ConsensusMeta | None] | str:
        """Carry out step 1, on the files' thread. Return the superblock, and the consensus metadata of its number."""
        at_ms = self._clock.wall_ms()
        fresh = Superblock(
            self._server, order.tablet, DataState.COPYING, order.number, order.number, 1, None, order.table,
            order.start_key, order.end_key, order.hash_buckets, copied_from=order.source.uuid, created_ms=at_ms,
            changed_ms=at_ms,
        )  # fmt: skip
        block = self._files.begin_copy(order.tablet, order.number, order.source.uuid, fresh, at_ms)
        if isinstance(block, str):
            return block
        _, meta = self._files.read(order.tablet)
        return block, meta if isinstance(meta, ConsensusMeta) else None

    def _begun(self, block: Superblock) -> TabletReplica:
        replica = self._replicas.get(block.tablet)
        if replica is None:
            replica = TabletReplica(block, None, RunState.COPYING)
            self._life.begun(replica)
        else:
            replica.block = block
            replica.received = 0
            replica.reason = ""
            self._life.replaced(replica, RunEvent.COPY)
        return replica

    def _fetch(self, plan: CopyPlan, order: StartTabletCopy, job: Job) -> Deferred[Any]:
        """Run the thread of the copy. Fires with its result, or with the exception as a value."""
        source = order.source
        steps = CopySteps(
            dial=lambda: self._links.dial_copy(source.uuid, (source.host, source.peer_port)),
            carry_out=self._steps.carry_out,
            carry_out_at_once=self._steps.carry_out_at_once,
            enter=lambda state, reason: job.enter(state, self._clock.wall_ms(), reason),
            wall_ms=self._clock.wall_ms,
            rest_factor=self._rests.factor,
        )
        self._rests.begin()
        thread = self._threads[job.job] = CopyThread(plan, job, steps)
        done: Deferred[Any] = Deferred()
        self._calls.spawn("copy-in", thread.run, done.callback)
        self._reactor.callLater(SHOW_S, self._show, job)
        return done

    def _show(self, job: Job) -> None:
        """Show the bytes received in answers to messages."""
        replica = self._replicas.get(job.tablet)
        if job.job not in self._threads or replica is None:
            return
        replica.received = job.received
        self._life.progressed(replica)
        self._write_progress(replica, job)
        self._reactor.callLater(SHOW_S, self._show, job)

    def _write_progress(self, replica: TabletReplica, job: Job) -> None:
        """Write progress to the store now and then, if the copy has come further than all earlier ones of the number.

        The master gives a newcomer up that makes no progress. A copy that fails again and again makes none.
        """
        now_ms, key = self._clock.wall_ms(), (job.tablet, job.number)
        is_further = job.received > self._furthest.get(key, 0)
        if self.claims is None or not is_further or now_ms - job.progressed_ms < PROGRESS_MS:
            return
        job.progressed_ms = now_ms
        self._furthest[key] = job.received
        member = NewMember(job.tablet, replica.block.table, job.number, has_superblock=True)
        self.claims.progressed(member)

    @inlineCallbacks
    def _started(self, replica: TabletReplica, result: CopiedReplica, job: Job) -> Any:
        """Host the group of a complete copy. Step 6."""
        replica.block, replica.meta = result
        if self.claims is not None:
            self.claims.made(job.tablet, job.number)
        self._furthest.pop((job.tablet, job.number), None)
        replica.reason = ""
        self._life.replaced(replica, RunEvent.COPIED)
        opened: Deferred[str] = Deferred()
        self._life.open(replica, opened.callback)
        why = yield opened
        if why:
            self._ended(job, CopyState.FAILED, f"the copy is complete, and cannot be opened: {why}")
        else:
            self._ended(job, CopyState.DONE)

    @inlineCallbacks
    def _give_up(self, replica: TabletReplica, job: Job, slot: int | None, error: object) -> Any:
        """Go back to the tombstone, with the memory that it had."""
        # The thread of a canceled copy raises the error of its closed connection.
        why = "the copy was canceled" if job.is_canceled else why_of(error)
        block = replica.block
        if not self._is_stopping:
            # If this is not reached, the next start gives the copy up.
            at_ms = self._clock.wall_ms()
            after = yield self._on_files(lambda: self._give_up_files(block, slot, why, at_ms))
            if isinstance(after, tuple):
                # Steps of the copy may have raised the term in the consensus metadata, from which a tombstone votes.
                replica.block, replica.meta = after
                self._life.replaced(replica, RunEvent.GIVE_UP, why)
            else:
                log.error("the copy of tablet {tablet} cannot be given up: {why}",
                          tablet=replica.tablet, why=why_of(after))  # fmt: skip
        self._ended(job, CopyState.CANCELED if job.is_canceled else CopyState.FAILED, why)

    def _give_up_files(
        self, block: Superblock, slot: int | None, why: str, at_ms: int
    ) -> tuple[Superblock, ConsensusMeta | None] | str:
        after = self._files.give_up(block, slot, why, at_ms)
        if isinstance(after, str):
            return after
        _, meta = self._files.read(block.tablet)
        is_own = isinstance(meta, ConsensusMeta) and meta.number == block.number
        return after, meta if is_own and isinstance(meta, ConsensusMeta) else None

    def _ended(self, job: Job, state: CopyState, why: str = "") -> None:
        self._threads.pop(job.job, None)
        self.jobs.end(job, state, self._clock.wall_ms(), why)
        if state is CopyState.DONE:
            log.info(
                "copied tablet {tablet}: {size} bytes in {ms} ms",
                tablet=job.tablet, size=job.received, ms=job.ended_ms - job.began_ms,
            )  # fmt: skip
        else:
            log.warn("the copy of tablet {tablet} is {state}: {why}", tablet=job.tablet, state=state, why=why)
        self._begin_queued()

    def _broken(self, failure: Any, job: Job) -> None:
        """An exception here is a bug: the tablet stays as it is until the next start."""
        log.failure("a copy of tablet {tablet} has failed", failure=failure, tablet=job.tablet)
        if self.jobs.of(job.tablet) is job:
            self._ended(job, CopyState.FAILED, f"a bug: {failure.getErrorMessage()}")

    def _on_files(self, work: Callable[[], Any]) -> Deferred[Any]:
        return outcome_of(self._files_pool.submit, work)

    # --- end ----------------------------------------------------------------------------------------------------------

    def _abort(self, job: Job) -> None:
        job.is_canceled = True
        if self._queued.pop(job.job, None) is not None:
            self._ended(job, CopyState.CANCELED, "the copy was canceled")
            return
        thread = self._threads.get(job.job)
        if thread is not None:
            thread.abort()

    def stop(self) -> None:
        """End all copies, because the server stops. The next start gives unfinished copies up."""
        self._is_stopping = True
        for job in list(self.jobs.running()):
            self._abort(job)
        self.sources.stop()
        self._calls.has_ended = True
