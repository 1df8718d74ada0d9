"""One session's eye on the store: what has changed is read, many znodes at a time, for the auditor and the mirror.

Events are counted, and znodes read when the session has nothing better to do: at once in quiet times, many at a time
during a bulk assignment, when most transitions are over before they could be read. Transitions are read in every role,
for the auditor; the other records only while a mirror is kept (`follow`), that is by a standby.

**Order.** Each answer is taken in as it arrives, and nothing waits between: events and answers of one session come in
the order of the store's states, and the mirror relies on it.

**Taking over** (`hand_over`). The store answers one session in order, so once the answer to the write of our epoch is
here, so is word of everything that any former master did, and nothing of theirs can follow. What we then still have to
read is read at once; from there on the mirror is as good as a full load.

**Proof of age** (`prove`). The moment a `sync` leaves is remembered. When its answer is here, so is word of all that
was committed before that moment; when the znodes that we then had word of are read, the picture is no older than that.
A ping would prove nothing: a node of the store that is cut off answers it, too.

**End of the session.** The watches end with the session, so what is known stays as old as it is. The client that begins
another session answers a `sync` again, which says nothing about this picture: from the end of the session on the
watcher asks the store nothing, proves nothing and hands nothing over. Until `stop`, the picture and its last proof
remain, for callers who allow its age.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from twisted.internet.defer import Deferred, ensureDeferred, fail
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.client.ops import GetChildren, GetData, ReadOp
from coord.client.requests import gather
from coord.client.session import EVENT_GAP, SessionState, ZkClient
from coord.errors import ConnectionLoss, CoordError, NoNode, OperationError
from coord.wire.records import EVENT_DELETED, Stat
from regions.cluster.mirror import ReadBatch, StandbyMirror, Unread
from regions.cluster.state import ClusterState
from regions.messages import MirrorStatus
from regions.messages.staleness import AsOf, Bound
from regions.records.znodes import Layout

log = Logger()

#: Transitions in one multi-read, and the pause after one; the long one while more than that wait, as in a bulk
#: assignment.
READS_MAX: Final = 250
READ_PAUSE_S: Final = 0.05
BUSY_PAUSE_S: Final = 0.5
#: Tables, regions and servers in one multi-read. The pause after one is short while the mirror is made, and long while
#: it is kept up: a region that is made and opened in one go is then read once, and who asks for less does not wait.
RECORDS_MAX: Final = 500
LOADING_PAUSE_S: Final = 0.03
RECORDS_PAUSE_S: Final = 0.2
#: Batches on their way at once while somebody waits for them.
URGENT_MAX: Final = 4
#: States of the client in which the session is over, and its watches with it.
_ENDED: Final = (SessionState.EXPIRED, SessionState.AUTH_FAILED, SessionState.CLOSED)
#: How often the age is proved without being asked for, and the pause after a reading that failed.
PROVE_S: Final = 1.0
BEGIN_AGAIN_S: Final = 5.0


class Listener(Protocol):
    """Who hears of transitions: the auditor."""

    def transition_event(self, event_type: int, path: str) -> None: ...

    def transition_read(self, path: str, data: bytes, stat: Stat) -> None: ...

    def gap(self) -> None: ...


class Warm(NamedTuple):
    """What a standby hands to its reign: the picture, and the regions' records that have changed since it was exact."""

    world: ClusterState
    regions: list[str]


class _Waiter(NamedTuple):
    """Somebody waits until all is read that there was to read then; in a hurry, or as it comes."""

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
        #: What a standby keeps; None while this master reigns.
        self.mirror: StandbyMirror | None = None
        #: When what the mirror holds was surely all there was, by `now_ms`, -1: never; and a zxid that it holds.
        self.proven_ms = -1
        self.proven_zxid = 0
        self._waiting: list[_Waiter] = []
        self._probe: Deferred[None] | None = None
        self._is_probe_urgent = False
        self._timers: dict[str, IDelayedCall] = {}
        #: Every watch that is wanted is set; once it was, the client sets it again by itself.
        self._in_force = False
        self._stop_listening: Callable[[], None] | None = None
        self._stopped = False

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Watch the transitions."""
        self._stop_listening = self._client.on_state(self._session_changed)
        self._watch_again()

    def stop(self) -> None:
        """Watch no more, and forget the mirror; another watcher takes over, or the process ends."""
        self.mirror = None
        self._end()

    def _end(self) -> None:
        """The session is over: nothing more is heard of the store's changes."""
        self._stopped = True
        stop_listening, self._stop_listening = self._stop_listening, None
        if stop_listening is not None:
            stop_listening()
        self._fail_waiting()
        for timer in self._timers.values():
            if timer.active():
                timer.cancel()

    def follow(self) -> None:
        """Keep a mirror from now on; it takes a while until it is warm."""
        if self.mirror is None and not self._stopped:
            self.mirror = StandbyMirror(self._layout)
            self._watch_again()
            self._prove_later()

    def _session_changed(self, state: SessionState) -> None:
        if state in _ENDED:
            self._end()
        elif state is SessionState.CONNECTED and not self._in_force:
            self._watch_again(is_gap=True)

    def _watch_again(self, *, is_gap: bool = False) -> None:
        """Set all watches. `is_gap`: events may have been missed, of which the client does not tell: a watch that was
        never confirmed has no gap."""
        self._in_force = False
        ensureDeferred(self._watch(is_gap=is_gap)).addErrback(self._failed)

    async def _watch(self, *, is_gap: bool) -> None:
        """Set the watches, which twice does no harm, and read what there is once they are in force."""
        mirror = self.mirror
        await self._client.add_watch(self._layout.unassigned, self._transition_event, recursive=True)
        if mirror is not None:
            await gather(self._client.add_watch(path, self._record_event, recursive=True) for path in self._watched())
        if mirror is self.mirror and not self._in_force:
            self._in_force = True
            self._begin_again()
            if is_gap:
                self._listener.gap()

    def _watched(self) -> tuple[str, ...]:
        layout = self._layout
        return layout.tables, layout.regions, layout.servers, layout.draining, layout.fenced, layout.barred

    def _begin_again(self) -> None:
        """Events may have been missed, or an answer: what is known may be wrong anywhere."""
        self._records = Unread()
        self._transitions = Unread()
        self.proven_ms = -1
        self._fail_waiting()
        if self.mirror is not None and self._in_force and not self._stopped:
            self.mirror = StandbyMirror(self._layout)
            self._put(self.mirror.begin())

    def _failed(self, failure: Failure) -> None:
        """A lost connection is made up for after the gap; after anything else we begin again, a little later."""
        if self._stopped or isinstance(failure.value, ConnectionLoss):
            return
        if not isinstance(failure.value, CoordError):
            log.failure("mirror", failure=failure)
        elif self._client.state is SessionState.CONNECTED:
            log.error("the mirror begins again: {error}", error=failure.value)
        self._later("again", BEGIN_AGAIN_S, self._try_again)

    def _try_again(self) -> None:
        """After a failure that is no lost connection, of a read or of setting a watch."""
        if self._in_force:
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

    def _transition_event(self, event_type: int, path: str, zxid: int) -> None:  # noqa: ARG002 - the znode tells more
        if self._stopped:
            return
        if event_type == EVENT_GAP:
            self._begin_again()
            self._listener.gap()
            return
        if self._layout.parse_transition(path) is None:
            return
        self._listener.transition_event(event_type, path)
        if event_type != EVENT_DELETED:
            self._transitions.put(path)
            self._read_soon("transitions")
            return
        self._transitions.discard(path)
        if self.mirror is not None:
            self.mirror.gone(path)
            self._progress()

    def _record_event(self, event_type: int, path: str, zxid: int) -> None:  # noqa: ARG002 - the znode tells more
        mirror = self.mirror
        if mirror is None or event_type == EVENT_GAP or not mirror.is_record(path):
            return
        if event_type == EVENT_DELETED:
            self._records.discard(path)
            mirror.gone(path)
            mirror.settle()
            self._progress()
        else:
            self._put([path])

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
        """Unless a batch of that kind is on its way, or the pause after one lasts."""
        unread = self._transitions if name == "transitions" else self._records
        if not unread.in_flight and not self._is_due(name):
            self._later(name, 0, lambda: self._read(name))

    def _read(self, name: str) -> None:
        """One request at a time, so that a busy store has few of them; several while somebody waits."""
        unread, most = self._kind(name)
        while unread.in_flight < (URGENT_MAX if self._is_urgent else 1):
            if not self._is_connected:
                return
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
            return  # from before a gap
        for path, result in zip(batch.paths, results, strict=True):
            if isinstance(result, OperationError) and not isinstance(result, NoNode):
                raise result
            self._take_in(path, result)
        unread.answered(batch)
        if self.mirror is not None:
            self.mirror.settle()
            for trouble in self.mirror.troubles:
                log.error("left alone: {error}", error=trouble)
            self.mirror.troubles.clear()
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

    def _take_in(self, path: str, result: Any) -> None:
        mirror = self.mirror
        is_transition = path.startswith(self._layout.unassigned) and not path.endswith("/")
        if is_transition and not isinstance(result, NoNode):
            self._listener.transition_read(path, result[0], result[1])
        if mirror is None:
            return
        if path.endswith("/"):
            self._put(mirror.listed(path[:-1], [] if isinstance(result, NoNode) else sorted(result)))
        elif isinstance(result, NoNode):
            mirror.gone(path)
        else:
            self._put(mirror.seen(path, result[0], result[1].version, self._now_ms()))

    # --- waiting until what is known has been read --------------------------------------------------------------------

    def _read_up(self, *, is_urgent: bool = True) -> Deferred[None]:
        """Fires when everything has been read that we have word of now; fails when that is cut short."""
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

    def _progress(self) -> None:
        """Tell those who wait that it has been read."""
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
            one.done.errback(ConnectionLoss("", "what is known of the store is read anew"))

    # --- taking over --------------------------------------------------------------------------------------------------

    async def hand_over(self) -> Warm | None:
        """Give the mirror away, brought up to date; None if it is not complete. Nothing of it is kept.

        Whoever calls has written its epoch before, and watches the transitions by itself: what changes from now on is
        its own business. Raises ConnectionLoss when the session is interrupted meanwhile.
        """
        mirror = self.mirror
        try:
            if mirror is None or not mirror.is_complete:
                return None
            await self._read_up()
            return Warm(mirror.world, self._records.paths())
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
                self._client.remove_watch(path, self._record_event).addErrback(lambda _: None)

    # --- age ----------------------------------------------------------------------------------------------------------

    def as_of(self, asked_ms: int) -> AsOf | None:
        """How old the picture is at most, for a question that came at `asked_ms`; None if nothing is proved."""
        if self.proven_ms < 0:
            return None
        return AsOf(max(0, asked_ms - self.proven_ms), self.proven_zxid, "standby")

    async def prove(self, bound: Bound, asked_ms: int) -> AsOf | None:
        """The picture's age once that is within `bound`, which may take a question to the store; None if it cannot be
        proved."""
        for _ in range(3):
            as_of = self.as_of(asked_ms)
            if as_of is not None and bound.allows(as_of):
                return as_of
            if self.mirror is None or not self.mirror.is_complete or not self._is_connected:
                return None
            try:
                await self._proved()  # perhaps one that was under way: then once more
            except CoordError as error:
                log.info("age not proved: {error}", error=error)
                return None
        return None

    def _proved(self) -> Deferred[None]:
        """Fires with the end of the probe that is under way, or of a new one; somebody waits for it."""
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
            log.failure("proof of age", failure=result)

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
        """For `rk status`; None while this master reigns."""
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
