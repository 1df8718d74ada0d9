"""Reads changed znodes in batches, during one store session, for the auditor and the mirror.

Watch events only add znodes to a queue. The watcher reads the queue at once in quiet times, and in large batches during
a bulk assignment, when most transitions end before they are read. Transitions are read in every role, for the auditor.
The other records are read only by a standby that keeps a mirror (`follow`).

**Order.** Each reply is applied as soon as it arrives. Events and replies of one session arrive in the order of the
store's states, and the mirror relies on this order.

**Taking over** (`hand_over`). The store answers one session in order. So when the reply to the write of this master's
epoch has arrived, all events of former masters' writes have arrived, too, and no more can follow. The watcher then
reads the queued znodes at once. After that the mirror equals a full load.

**Proof of age** (`prove`). The watcher records the time at which it sends a `sync`. When the reply has arrived, all
events of changes committed before that time have arrived, too. When the znodes of these events have been read, the
mirror is no older than that time. A ping would prove nothing, because a partitioned node of the store answers it, too.

**End of the session.** The watches end with the session, so the mirror stays as it is. A `sync` in a later session
proves nothing about this mirror. After the end of the session the watcher sends no requests, proves no age and hands
over no mirror. Until `stop`, the mirror and its last proof remain available to callers whose bound allows their age.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple, Protocol

from twisted.internet.defer import Deferred, ensureDeferred, fail
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.client.ops import GetChildren, GetData, ReadOp
from coord.client.requests import gather
from coord.client.session import EVENT_GAP, SessionState, ZkClient
from coord.client.watches import Event
from coord.daemon import keep_new_objects
from coord.errors import ConnectionLoss, CoordError, NoNode, OperationError
from coord.wire.records import Stat
from regions.cluster.mirror import ReadBatch, StandbyMirror, Unread, of_transitions
from regions.cluster.state import ClusterState
from regions.messages import MirrorStatus
from regions.messages.staleness import AsOf, Bound
from regions.records.model import TransitionRecord
from regions.records.znodes import Layout

log = Logger()

#: Transitions in one multi-read.
READS_MAX: Final = 250
#: Pause after a multi-read of transitions.
READ_PAUSE_S: Final = 0.05
#: Pause while more than READS_MAX transitions are queued, as in a bulk assignment.
BUSY_PAUSE_S: Final = 0.5
#: Tables, regions and servers in one multi-read.
RECORDS_MAX: Final = 500
#: Pause after a multi-read of records while the mirror is being loaded.
LOADING_PAUSE_S: Final = 0.03
#: Pause after a multi-read of records once the mirror is complete. A region that is created and opened within this time
#: is read once. Reads with a staleness bound do not wait for the pause.
RECORDS_PAUSE_S: Final = 0.2
#: Limit of the multi-reads in flight while a request waits for them.
URGENT_MAX: Final = 4
#: States of the client in which the session and its watches have ended.
_ENDED: Final = (SessionState.EXPIRED, SessionState.AUTH_FAILED, SessionState.CLOSED)
#: Period of proving the age without a request.
PROVE_S: Final = 1.0
#: Pause after a failed read before the mirror is loaded again.
BEGIN_AGAIN_S: Final = 5.0


class Listener(Protocol):
    """The receiver of events and reads of transitions: the auditor."""

    def transition_events(self, events: list[Event]) -> None: ...

    def transition_read(self, path: str, data: bytes, stat: Stat) -> None: ...

    def gap(self) -> None: ...


class Warm(NamedTuple):
    """The mirror that a standby hands to its `ActiveMaster`, and paths of region records that must be read again.

    `tablets` are the transitions of tablets' members.
    """

    world: ClusterState
    regions: list[str]
    tablets: list[tuple[TransitionRecord, int]] = []


class _Waiter(NamedTuple):
    """A wait until the znodes queued at its begin (positions in the two queues) have been read."""

    transitions: int
    records: int
    is_urgent: bool
    done: Deferred[None]


class StoreWatcher:
    """See the module docstring. One for each session: `start`, then `stop`."""

    def __init__(
        self,
        reactor: Any,
        client: ZkClient,
        layout: Layout,
        now_ms: Callable[[], int],
        listener: Listener,
    ) -> None:
        self._reactor = reactor
        self._client = client
        self._layout = layout
        self._now_ms = now_ms
        self._listener = listener
        self._transitions = Unread()
        self._records = Unread()
        #: The mirror of a standby; None on the active master.
        self.mirror: StandbyMirror | None = None
        #: The mirror includes all changes committed before this time (`now_ms`) and up to this zxid; -1: no proof yet.
        self.proven_ms = -1
        self.proven_zxid = 0
        self._waiting: list[_Waiter] = []
        self._probe: Deferred[None] | None = None
        self._is_probe_urgent = False
        self._timers: dict[str, IDelayedCall] = {}
        #: True when all watches have been set. After that the client sets them again by itself.
        self._watches_set = False
        self._stop_listening: Callable[[], None] | None = None
        self._stopped = False

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Set the watch of the transitions."""
        self._stop_listening = self._client.on_state(self._session_changed)
        self._watch_again()

    def stop(self) -> None:
        """Stop watching and drop the mirror: another watcher replaces this one, or the process is stopping."""
        self.mirror = None
        self._end()

    def _end(self) -> None:
        """Stop watching at the end of the session."""
        self._stopped = True
        stop_listening, self._stop_listening = self._stop_listening, None
        if stop_listening is not None:
            stop_listening()
        self._fail_waiting()
        for timer in self._timers.values():
            if timer.active():
                timer.cancel()

    def follow(self) -> None:
        """Begin to load a mirror and keep it up to date."""
        if self.mirror is None and not self._stopped:
            self.mirror = StandbyMirror(self._layout)
            self._watch_again()
            self._prove_later()

    def _session_changed(self, state: SessionState) -> None:
        if state in _ENDED:
            self._end()
        elif state is SessionState.CONNECTED and not self._watches_set:
            self._watch_again(is_gap=True)

    def _watch_again(self, *, is_gap: bool = False) -> None:
        """Set all watches.

        `is_gap`: events may have been missed without a gap event, because the client reports no gap for a watch that
        was never confirmed.
        """
        self._watches_set = False
        ensureDeferred(self._watch(is_gap=is_gap)).addErrback(self._failed)

    async def _watch(self, *, is_gap: bool) -> None:
        """Set the watches, then read the current state. Setting a watch twice is harmless."""
        mirror = self.mirror
        await self._client.watch_below(self._layout.unassigned, self._events)
        if mirror is not None:
            await gather(self._client.watch_below(path, self._events) for path in self._watched())
        if mirror is self.mirror and not self._watches_set:
            self._watches_set = True
            self._begin_again()
            if is_gap:
                self._listener.gap()

    def _watched(self) -> tuple[str, ...]:
        layout = self._layout
        return layout.tables, layout.regions, layout.servers, layout.draining, layout.fenced, layout.barred

    def _begin_again(self) -> None:
        """Load the mirror again, because an event or a reply may have been missed."""
        self._records = Unread()
        self._transitions = Unread()
        self.proven_ms = -1
        self._fail_waiting()
        if self.mirror is not None and self._watches_set and not self._stopped:
            self.mirror = StandbyMirror(self._layout)
            self._put(self.mirror.begin())

    def _failed(self, failure: Failure) -> None:
        """Begin again after BEGIN_AGAIN_S. After a lost connection the gap event does so."""
        if self._stopped or isinstance(failure.value, ConnectionLoss):
            return
        if not isinstance(failure.value, CoordError):
            log.failure("internal error in the mirror, loading it again", failure=failure)
        elif self._client.state is SessionState.CONNECTED:
            log.error("a read for the mirror failed, loading it again: {error}", error=failure.value)
        self._later("again", BEGIN_AGAIN_S, self._try_again)

    def _try_again(self) -> None:
        """Begin again after a failed read, or after a watch that could not be set."""
        if self._watches_set:
            self._begin_again()
            self._listener.gap()
        else:
            self._watch_again(is_gap=True)

    @property
    def _is_connected(self) -> bool:
        """Return True while the client is connected in the session whose watches fill the mirror."""
        return not self._stopped and self._client.state is SessionState.CONNECTED

    def _later(self, name: str, seconds: float, action: Callable[[], object]) -> None:
        if not self._stopped:
            self._timers[name] = self._reactor.callLater(seconds, action)

    def _is_due(self, name: str) -> bool:
        timer = self._timers.get(name)
        return timer is not None and timer.active()

    # --- events -------------------------------------------------------------------------------------------------------

    def _events(self, events: list[Event]) -> None:
        """Handle events of all watches, transitions first.

        One receiver gets the events of all directories. So many events come in one call, although each opening changes
        a transition and a region in turn.
        """
        if self._stopped:
            return
        try:
            self._see(events)
        except Exception:  # the mirror may lack some of the events
            self._distrust()
            self._failed(Failure())  # type: ignore[no-untyped-call]

    def _see(self, events: list[Event]) -> None:
        if events[0][0] == EVENT_GAP:
            if events[0][1] == self._layout.unassigned:  # each watch reports the gap
                self._begin_again()
                self._listener.gap()
            return
        transitions = of_transitions(events, self._layout.unassigned)
        are_gone = self._transition_events(transitions) if transitions else False
        if len(transitions) < len(events):
            are_gone = self._record_events(events) or are_gone
        if are_gone and self.mirror is not None:
            self.mirror.finish_batch()
            self._progress()  # the end of a wait may hand the mirror over: only after all events

    def _transition_events(self, events: list[Event]) -> bool:
        """Queue changed transitions, and apply deletions. Return True if there were some."""
        self._listener.transition_events(events)
        gone = self._transitions.see(events)
        if self._transitions.waiting:
            self._read_soon("transitions")
        if gone and self.mirror is not None:
            self.mirror.ended(gone)
        return bool(gone)

    def _record_events(self, events: list[Event]) -> bool:
        """Queue changed records, and apply deletions. Return True if there were some."""
        mirror = self.mirror
        if mirror is None:
            return False
        gone = self._records.see(mirror.of_records(events))
        if self._records.waiting:
            self._read_soon("records")
        for path in gone:
            mirror.gone(path)
        return bool(gone)

    def _distrust(self) -> None:
        """Stop using the mirror, because it may lack a change. Another one is loaded later (`_failed`)."""
        if self.mirror is not None:
            self.mirror = StandbyMirror(self._layout)
            self.mirror.begin()  # the old mirror is not read any further, so it does not become complete
        self.proven_ms = -1
        self._fail_waiting()

    def _put(self, paths: list[str]) -> None:
        prefix = self._layout.unassigned
        for path in paths:
            if path.startswith(prefix) and not path.endswith("/"):
                self._transitions.put(path)
                self._read_soon("transitions")
            else:
                self._records.put(path)
                self._read_soon("records")

    # --- reading ------------------------------------------------------------------------------------------------------

    def _read_soon(self, name: str) -> None:
        """Read in the next reactor turn, unless a batch of that kind is in flight or its pause has not ended."""
        unread = self._transitions if name == "transitions" else self._records
        if not unread.in_flight and not self._is_due(name):
            self._later(name, 0, lambda: self._read(name))

    def _read(self, name: str) -> None:
        """Send reads: one at a time to spare a busy store, up to URGENT_MAX while a request waits."""
        unread, most = self._kind(name)
        while unread.in_flight < (URGENT_MAX if self._is_urgent else 1):
            if not self._is_connected:
                return
            if unread is self._records and unread.waiting < most and self.mirror is not None:
                for path in self.mirror.next_paths():
                    unread.put(path)
            batch = unread.take(most)
            if batch is None:
                return
            ops: list[ReadOp] = [
                GetChildren(path[:-1]) if path.endswith("/") else GetData(path) for path in batch.paths
            ]
            answer = self._client.multi_read(ops)
            answer.addCallback(self._answered, name, unread, batch).addErrback(self._failed)

    def _kind(self, name: str) -> tuple[Unread, int]:
        return (self._transitions, READS_MAX) if name == "transitions" else (self._records, RECORDS_MAX)

    def _answered(self, results: list[Any], name: str, unread: Unread, batch: ReadBatch) -> None:
        if self._stopped or unread is not self._kind(name)[0]:
            return  # a reply from before a gap
        for result in results:
            if isinstance(result, OperationError) and not isinstance(result, NoNode):
                raise result
        if unread is self._transitions:
            for path, result in zip(batch.paths, results, strict=True):
                if not isinstance(result, NoNode):
                    self._listener.transition_read(path, *result)
        if self.mirror is not None:
            self._put(self.mirror.answered(batch.paths, results, self._now_ms()))
            self.mirror.finish_batch()
            for trouble in self.mirror.troubles:
                log.error("the mirror ignores a damaged znode: {error}", error=trouble)
            self.mirror.troubles.clear()
            if not self.mirror.is_complete:
                keep_new_objects()
        # Set this only now, so that `_put` does not start a read before the pause has ended.
        unread.answered(batch)
        if not self._is_due(name):
            pause_s = self._pause_s(name, unread)
            self._later(name, pause_s if unread.waiting else max(READ_PAUSE_S, pause_s), lambda: self._read(name))
        self._progress()

    def _pause_s(self, name: str, unread: Unread) -> float:
        if self._is_urgent:
            return 0.0
        if name == "records":
            return RECORDS_PAUSE_S if self.mirror is not None and self.mirror.is_complete else LOADING_PAUSE_S
        return BUSY_PAUSE_S if unread.waiting > READS_MAX else READ_PAUSE_S

    # --- waiting for reads --------------------------------------------------------------------------------------------

    def _read_up(self, *, is_urgent: bool = True) -> Deferred[None]:
        """Return a Deferred that fires when all znodes queued now have been read, and fails when reading is aborted."""
        if self._stopped:
            return fail(ConnectionLoss("", "the session is over"))
        done: Deferred[None] = Deferred()
        self._waiting.append(_Waiter(self._transitions.mark(), self._records.mark(), is_urgent, done))
        if is_urgent:
            for name in ("transitions", "records"):
                self._read_now(name)
        self._progress()
        return done

    def _read_now(self, name: str) -> None:
        if self._is_due(name):
            self._timers[name].cancel()
        self._read(name)

    @property
    def _is_urgent(self) -> bool:
        return any(one.is_urgent for one in self._waiting)

    def unread(self, paths: Collection[str]) -> set[str]:
        """Return those of the paths whose changes the mirror has not read yet; an empty set without a mirror."""
        return set() if self.mirror is None else self._transitions.among(paths) | self._records.among(paths)

    def _progress(self) -> None:
        """Fire the waits whose znodes have been read."""
        if not self._waiting:
            return
        transitions, records = self._transitions, self._records
        passed = [one for one in self._waiting if transitions.is_past(one.transitions) and records.is_past(one.records)]
        for one in passed:
            self._waiting.remove(one)
        for one in passed:
            one.done.callback(None)

    def _fail_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.done.errback(ConnectionLoss("", "the mirror is loaded again"))

    # --- taking over --------------------------------------------------------------------------------------------------

    async def hand_over(self) -> Warm | None:
        """Return the mirror, brought up to date, and drop it here; None if it is not complete.

        The caller has written its epoch before, and has its own watches on the transitions, so it receives all later
        changes. Raise ConnectionLoss if the session is interrupted.
        """
        mirror = self.mirror
        try:
            if mirror is None or not mirror.is_complete:
                return None
            await self._read_up()
            return Warm(mirror.world, self._records.paths(), mirror.tablet_transitions())
        finally:
            self._release()

    def _release(self) -> None:
        if self.mirror is None:
            return
        self.mirror = None
        self._records = Unread()
        self.proven_ms = -1
        if self._is_connected:
            for path in self._watched():
                self._client.remove_watch(path, self._events).addErrback(lambda _: None)

    # --- age ----------------------------------------------------------------------------------------------------------

    def as_of(self, asked_ms: int) -> AsOf | None:
        """Return the greatest possible age of the mirror at `asked_ms`, or None without a proof."""
        if self.proven_ms < 0:
            return None
        return AsOf(max(0, asked_ms - self.proven_ms), self.proven_zxid, "standby")

    async def prove(self, bound: Bound, asked_ms: int) -> AsOf | None:
        """Return the mirror's age when it is within `bound`, after a `sync` if necessary; None without a proof."""
        for _ in range(3):
            as_of = self.as_of(asked_ms)
            if as_of is not None and bound.allows(as_of):
                return as_of
            if self.mirror is None or not self.mirror.is_complete or not self._is_connected:
                return None
            try:
                await self._proved()  # a proof that was running already may be too old: then try once more
            except CoordError as error:
                log.info("could not prove the age of the mirror: {error}", error=error)
                return None
        return None

    def _proved(self) -> Deferred[None]:
        """Return a Deferred that fires at the end of the running proof, or of a new one. Make the proof urgent."""
        probe = self._probe
        if probe is None:
            probe = self._begin_probe(is_urgent=True)
        else:
            self._is_probe_urgent = True
            self._waiting = [one._replace(is_urgent=True) for one in self._waiting]
            for name in ("transitions", "records"):
                self._read_now(name)
        waiter: Deferred[None] = Deferred()
        probe.addBoth(lambda _: waiter.callback(None))
        return waiter

    def _begin_probe(self, *, is_urgent: bool) -> Deferred[None]:
        self._is_probe_urgent = is_urgent
        probe = self._probe = ensureDeferred(self._prove_once())
        probe.addBoth(self._probe_over)
        return probe

    def _probe_over(self, result: object) -> None:
        self._probe = None
        if isinstance(result, Failure) and not isinstance(result.value, CoordError):
            log.failure("internal error in the proof of the mirror's age", failure=result)

    async def _prove_once(self) -> None:
        mirror, sent_ms = self.mirror, self._now_ms()
        await self._client.sync("/")
        zxid = self._client.last_zxid
        await self._read_up(is_urgent=self._is_probe_urgent)
        if not self._stopped and mirror is not None and mirror is self.mirror and mirror.is_complete:
            self.proven_ms, self.proven_zxid = sent_ms, zxid

    def _prove_later(self) -> None:
        if not self._is_due("prove"):
            self._later("prove", PROVE_S, self._prove_now)

    def _prove_now(self) -> None:
        if self.mirror is None:
            return
        self._prove_later()
        if self._probe is None and self.mirror.is_complete and self._is_connected:
            self._begin_probe(is_urgent=False)

    def status(self) -> MirrorStatus | None:
        """Return the mirror's status for `rk status`; None on the active master."""
        mirror = self.mirror
        if mirror is None:
            return None
        as_of = self.as_of(self._now_ms())
        return MirrorStatus(
            is_warm=mirror.is_complete,
            tables=len(mirror.world.names),
            regions=len(mirror.world.regions),
            behind=len(self._records) + len(self._transitions),
            stale_ms=-1 if as_of is None else as_of.stale_ms,
            zxid=self.proven_zxid,
        )
