"""Answers the requests of clients to this server's tablets (`regionserver/tablets/messages.py`).

The service checks limits and range first. Then the request goes through the Raft group: a write is an entry of its log;
a read waits until a majority has confirmed the leader. Leases, sessions and masters are not involved.

If another server leads the tablet, the reply is LeaderElsewhere, with the leader's address for requests if this server
knows the address.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

import msgspec
from prometheus_client import CollectorRegistry
from twisted.internet.defer import Deferred, fail
from twisted.python.failure import Failure

from coord.rpc.wire import Code, RpcError
from regions.messages.codes import TOO_STALE
from regions.messages.heartbeat import TabletReport
from regionserver.kv.held import HeldSnapshots, Timers, read_page
from regionserver.kv.messages import NO_SCHEMA, RowsPoint, SnapshotPage, check_schema
from regionserver.kv.snapshot import RowSnapshot
from regionserver.replica.effects import Key
from regionserver.request_gate import RATE_SPAN_S
from regionserver.tablets.commands import SEALED, CommandError, KvCommand
from regionserver.tablets.host.requests import Fate, TabletAnswer
from regionserver.tablets.messages import (
    NO_REPLICA,
    OUTCOME_UNKNOWN,
    REPLICA_FAILED,
    WRONG_REGION,
    KeyRange,
    KnownLeader,
    LeaderElsewhere,
    Leaders,
    TabletLeader,
    TabletPage,
    TabletRead,
    TabletRequest,
    TabletScan,
    TabletSnapshot,
    TabletValues,
    TabletWrite,
    TabletWritten,
    WhoLeads,
    check_request,
    check_tablets,
)
from regionserver.tablets.metrics import RequestMetrics
from regionserver.tablets.rows.sealed.sealing import was_split

T = TypeVar("T")

#: Every replica with rows has applied this entry, so it may read on in a held snapshot.
_ANY_ENTRY: Final = 1


#: Error code and message of each fate that is an error.
REFUSALS: Final[dict[Fate, tuple[str, str]]] = {
    Fate.UNKNOWN: (OUTCOME_UNKNOWN, "leadership of tablet {} ended before the write was applied"),
    Fate.BUSY: (Code.BUSY, "too many requests wait for tablet {}, or its leadership is being handed over"),
    Fate.DISK_FULL: (Code.BUSY, "the disk of the server that leads tablet {} is full"),
    Fate.TOO_LARGE: (Code.BAD_REQUEST, "the write is too large for the log of tablet {}"),
    Fate.TOO_STALE: (TOO_STALE, "the replica of tablet {} does not hold the entry yet"),
    Fate.FAILED: (REPLICA_FAILED, "the replica of tablet {} does not run"),
    Fate.DOES_NOT_EXIST: (NO_REPLICA, "this server has no replica of tablet {}"),
}


class TabletGroups(Protocol):
    """The host of tablets, as requests of clients use it."""

    def key_range(self, tablet: str) -> KeyRange | None:
        """Return the range of a tablet that has a replica here."""
        ...

    def propose(self, tablet: str, command: KvCommand) -> Deferred[TabletAnswer]:
        """Append the command with the leader's time. Fires when the command is applied, or with the reason of a
        failure.

        Raise CommandError for a command that exceeds a limit.
        """
        ...

    def read(
        self,
        tablet: str,
        read: Callable[[RowSnapshot], Any],
        *,
        at_least: int = 0,
        max_stale_ms: int = 0,
        keys: int = 0,
    ) -> Deferred[TabletAnswer]:
        """Answer with the result of `read` for the rows, which include every entry up to the answer's index.

        `at_least` and `max_stale_ms` are as in TabletRead. `keys` is the number of rows that `read` looks up; 0 if
        unknown.
        """
        ...

    def age_ms(self, answer: TabletAnswer) -> int:
        """Return how old the rows of a stale read's answer may be by now."""
        ...

    def leader_of(self, tablet: str) -> tuple[int, int, str]:
        """Return the term, and the number and server of the leader in that term; zeros and "" if unknown."""
        ...

    def until_split(self, tablet: str) -> Deferred[None]:
        """Return a Deferred that fires when a request that a sealed tablet has refused must be answered."""
        ...

    def time_ms(self, tablet: str) -> int:
        """Return this server's time, not below the tablet's clock."""
        ...


class TabletService:
    """The requests of clients for the tablets of one server."""

    requests: Final = (TabletRead, TabletScan, TabletSnapshot, TabletWrite, WhoLeads)

    def __init__(
        self,
        seconds: Callable[[], float],
        groups: Callable[[], TabletGroups | None],
        address_of: Callable[[str], tuple[str, int] | None],
        report: Callable[[str], TabletReport | None],
        registry: CollectorRegistry,
        timers: Timers,
    ) -> None:
        """`address_of` returns a server's address for requests, by its uuid; `groups` is None before the host has
        started."""
        self._seconds = seconds
        self._groups = groups
        self._address_of = address_of
        self._report = report
        self._held = HeldSnapshots(timers)
        self._asked_count: Counter[str] = Counter()
        #: Latest schema version of a write to each tablet, from this process's start on.
        self._schemas: dict[str, int] = {}
        self._rates: dict[Key, float] = {}
        self._since_s = seconds()
        self._metrics = RequestMetrics(registry)
        #: Counters by type of request, looked up once because every request increments one.
        self._counts = {kind: self._metrics.requests.labels(kind.__name__) for kind in self.requests}

    def answer(self, request: TabletRequest) -> Deferred[msgspec.Struct] | msgspec.Struct:
        """Answer one of `requests`. Raise RpcError."""
        self._counts[type(request)].inc()
        try:
            answer = self._accept(request)
        except RpcError as error:
            self._metrics.refused.labels(error.code).inc()
            raise
        return answer.addErrback(self._count) if isinstance(answer, Deferred) else answer

    def _accept(self, request: TabletRequest) -> Deferred[msgspec.Struct] | msgspec.Struct:
        groups = self._groups()
        if groups is None:
            raise RpcError(NO_REPLICA, "this server has not opened its tablets yet")
        if isinstance(request, WhoLeads):
            check_tablets(request.tablets)
            views = [self._view(groups, tablet) for tablet in request.tablets]
            return Leaders(views, groups.time_ms(""))
        tablet = request.tablet
        check_tablets([tablet])
        found = groups.key_range(tablet)
        if found is None:
            raise refusal(Fate.DOES_NOT_EXIST, tablet)
        if isinstance(request, TabletSnapshot):
            return self._read_held(request, groups)
        check_request(request, found)
        self._asked_count[tablet] += 1
        if isinstance(request, TabletWrite):
            if request.schema_version > NO_SCHEMA:
                known = self._schemas.get(tablet, NO_SCHEMA)
                self._schemas[tablet] = check_schema(request.schema_version, known)
            try:
                proposed = groups.propose(tablet, request.command(0))
            except CommandError as error:  # a limit that depends on the leader's time
                raise RpcError(Code.BAD_REQUEST, str(error)) from error
            written: Deferred[msgspec.Struct] = proposed.addCallbacks(self._written, _broken_limit, (groups,))
            return written.addErrback(_held_back, groups, tablet)
        keys = len(request.keys) if isinstance(request, TabletRead) else 0
        asked = groups.read(
            tablet, _reader(request), at_least=request.at_least, max_stale_ms=request.max_stale_ms, keys=keys
        )
        read: Deferred[msgspec.Struct] = asked.addCallback(self._was_read, groups, request)
        return read.addErrback(_held_back, groups, tablet)

    def _written(self, answer: TabletAnswer, groups: TabletGroups) -> msgspec.Struct:
        if answer.fate is Fate.DONE:
            if answer.value.code == SEALED:
                raise was_split(answer.tablet)
            return TabletWritten(answer.value, groups.time_ms(answer.tablet))
        return self._turned_back(answer, groups)

    def _was_read(self, answer: TabletAnswer, groups: TabletGroups, request: TabletRead | TabletScan) -> msgspec.Struct:
        if answer.fate is Fate.TOO_STALE and request.max_stale_ms:
            return self._elsewhere(answer, groups, TOO_STALE)
        if answer.fate is not Fate.DONE:
            return self._turned_back(answer, groups)
        time_ms = groups.time_ms(answer.tablet)
        age_ms = groups.age_ms(answer) if request.max_stale_ms else None
        if isinstance(request, TabletRead):
            return TabletValues(answer.value, answer.index, time_ms, age_ms)
        rows, next_key = answer.value
        return TabletPage(rows, next_key, answer.index, time_ms, age_ms)

    def _read_held(self, request: TabletSnapshot, groups: TabletGroups) -> Deferred[msgspec.Struct] | msgspec.Struct:
        """Read one page of a held snapshot, or end the snapshot. Raise RpcError."""
        if request.ends:
            self._held.end(request.held)
            return SnapshotPage(RowsPoint())
        held = self._held.find(request.held)

        def was_read(answer: TabletAnswer) -> msgspec.Struct:
            if answer.fate is not Fate.DONE:
                return self._turned_back(answer, groups)
            return self._held.settle(request.held, answer.value)

        asked = groups.read(
            request.tablet,
            lambda rows: read_page(rows, held, request.start, request.known),
            at_least=0 if held is None else _ANY_ENTRY,
        )
        page: Deferred[msgspec.Struct] = asked.addCallback(was_read)
        return page

    def _elsewhere(self, answer: TabletAnswer, groups: TabletGroups, why: str) -> LeaderElsewhere:
        self._metrics.refused.labels(why).inc()
        return LeaderElsewhere(self._view(groups, answer.tablet), groups.time_ms(answer.tablet))

    def _turned_back(self, answer: TabletAnswer, groups: TabletGroups) -> LeaderElsewhere:
        if answer.fate is Fate.NOT_LEADER:
            return self._elsewhere(answer, groups, "not_leader")
        raise refusal(answer.fate, answer.tablet)

    def _view(self, groups: TabletGroups, tablet: str) -> KnownLeader:
        term, number, server = groups.leader_of(tablet)
        if not number:
            return KnownLeader(tablet, term)
        host, port = self._address_of(server) or ("", 0)
        return KnownLeader(tablet, term, TabletLeader(number, server, host, port))

    def _count(self, failure: Failure) -> Failure:
        if isinstance(failure.value, RpcError):
            self._metrics.refused.labels(failure.value.code).inc()
        return failure

    # --- load ---

    def rates(self) -> dict[Key, float]:
        """Return recent requests per second of the replicas that had some."""
        span_s = self._seconds() - self._since_s
        if span_s >= RATE_SPAN_S:
            self._rates = {}
            for tablet, count in self._asked_count.items():
                report = self._report(tablet)
                if report is not None:
                    self._rates[tablet, report.number] = count / span_s
            self._asked_count.clear()
            self._since_s = self._seconds()
        return self._rates


def answer_within(
    asked: Deferred[T | Fate], tablet: str, reactor: Any, within_s: float, started: Callable[[], T]
) -> Deferred[T]:
    """Return a Deferred with the reply to an order: the group's answer, or after `within_s` the result of `started`.

    It fails with RpcError if no replica runs here, or if leadership ended before the entry was committed.
    """
    reply: Deferred[T] = Deferred()

    def answered(result: Any) -> None:
        if timer.active():
            timer.cancel()
        if reply.called:
            return
        if isinstance(result, Fate):
            reply.errback(refusal(result, tablet))
        else:
            reply.callback(result)

    timer = reactor.callLater(within_s, lambda: reply.callback(started()))
    asked.addBoth(answered)
    return reply


def refusal(fate: Fate, tablet: str) -> RpcError:
    """Return the error for a request that no replica here has answered."""
    code, words = REFUSALS[fate]
    return RpcError(code, words.format(tablet))


def _broken_limit(failure: Failure) -> Failure:
    """Pass a failure on. Raise RpcError for a write that waited for a leader, and then exceeded a limit."""
    if isinstance(failure.value, CommandError):
        raise RpcError(Code.BAD_REQUEST, str(failure.value)) from failure.value
    return failure


def _held_back(failure: Failure, groups: TabletGroups, tablet: str) -> Deferred[Any]:
    """Pass a failure on; the refusal of a sealed tablet later."""
    if not isinstance(failure.value, RpcError) or failure.value.code != WRONG_REGION:
        return fail(failure)
    return groups.until_split(tablet).addCallback(lambda _: failure)


def _reader(request: TabletRead | TabletScan) -> Callable[[RowSnapshot], Any]:
    """Return the function that a thread calls to read the rows."""
    if isinstance(request, TabletRead):
        keys = [key.encode() for key in request.keys]
        return lambda rows: rows.values(keys)
    return lambda rows: rows.page(request.start.encode(), request.end.encode(), request.rows_max)
