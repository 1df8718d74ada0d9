"""One call to one tablet: carries out the decisions of its `Pursuit`, in the caller's thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from coord.errors import shown_s
from coord.rpc.wire import Code, RpcError
from regions.records.model import RegionRecord
from regionserver.client.errors import Attempt, OutcomeUnknown, TableDisabled, Unavailable, refused
from regionserver.client.tablets.answers import BROKEN, NO_ADDRESS, NOT_LEADER, CallStep
from regionserver.client.tablets.context import RecordReading, TabletContext
from regionserver.client.tablets.exchange import Received
from regionserver.client.tablets.numbers import WriteName
from regionserver.client.tablets.pursuit import Dispatch, Kind, Pursuit
from regionserver.kv.messages import SCHEMA_CHANGED
from regionserver.tablets.commands import OUTCOME_NAMES, SUPERSEDED, TOO_OLD
from regionserver.tablets.messages import (
    WHO_LEADS_MAX,
    LeaderElsewhere,
    Leaders,
    TabletPage,
    TabletRead,
    TabletScan,
    TabletValues,
    TabletWrite,
    TabletWritten,
    WhoLeads,
)

#: Pause between two readings of a doubtful record.
READ_AGAIN_S: Final = 1.0

Reply = TabletValues | TabletPage | TabletWritten
#: Unions of possible replies, by the expected reply. Made once, because each call needs one.
REPLIES: Final[dict[type[Reply], Any]] = {
    expect: expect | LeaderElsewhere for expect in (TabletValues, TabletPage, TabletWritten)
}
R = TypeVar("R", TabletValues, TabletPage, TabletWritten)


class RelocateError(Exception):
    """Raised if the key's region must be located again; nothing was done."""


@dataclass(slots=True)
class CallPurpose(Generic[R]):
    """The purpose of a call. `ask` makes the request; reads get no name. `key` is for messages."""

    table: str
    key: str
    ask: Callable[[RegionRecord, WriteName | None], TabletRead | TabletScan | TabletWrite]
    expect: type[R]
    wait_s: float
    deadline_s: float


class RegionCall(Generic[R]):
    """One call to one tablet."""

    def __init__(self, context: TabletContext, region: RegionRecord, purpose: CallPurpose[R]) -> None:
        self._context = context
        self._purpose: CallPurpose[R] = purpose
        self._region = region
        self._tablet = region.region_id
        self._is_write = purpose.expect is TabletWritten
        now_s = self._context.clock()
        hints = context.hints
        self._hint = hints.leader(region)
        self._pursuit = Pursuit(
            [one.uuid for one in region.members],
            self._hint,
            context.chance,
            now_s=now_s,
            is_suspect=self._hint is not None and hints.is_suspect(self._hint[1], now_s),
            is_ready=not self._is_write or hints.knows_time(self._tablet),
        )
        self._exchange = context.exchange()
        self._name: WriteName | None = None
        self._request: Any = None
        #: Number of each question without an answer -> the tablets that it names.
        self._asked: dict[int, list[str]] = {}
        self._reading: RecordReading | None = None
        self._read_again_s = 0.0

    def run(self) -> R:
        """Return the reply. Raise DataError, RelocateError."""
        hints, pursuit = self._context.hints, self._pursuit
        try:
            while True:
                now_s = self._context.clock()
                if now_s >= self._purpose.deadline_s:
                    raise self._late(now_s)
                for sent in pursuit.take(now_s):
                    self._send(sent)
                self._look_at_record(now_s)
                wake_s = min(pursuit.wake_s(now_s), self._purpose.deadline_s)
                for arrival in self._exchange.wait(wake_s - now_s):
                    reply = self._arrived(arrival)
                    if reply is not None:
                        return reply
                for server in pursuit.silent(self._context.clock()):
                    hints.suspect(server, now_s)
        finally:
            self._exchange.close()
            hints.set_leader(self._tablet, self._hint, pursuit.leader)
            self._finish_name()

    # --- what is sent ---

    def _send(self, sent: Dispatch) -> None:
        address = self._context.hints.address(sent.server)
        if address is None:
            self._failed(sent, RpcError(NO_ADDRESS, "is not registered, and nobody has named its address"))
        elif sent.kind is Kind.QUESTION:
            tablets = [self._tablet, *self._also_led()]
            self._asked[sent.number] = tablets
            self._exchange.start(sent, address, WhoLeads(tablets), Leaders)
        else:
            if self._request is None:
                if self._is_write:
                    self._name = self._context.hints.begin(self._tablet, self._context.clock())
                self._request = self._purpose.ask(self._region, self._name)
            self._exchange.start(sent, address, self._request, REPLIES[self._purpose.expect])

    def _also_led(self) -> list[str]:
        """Return the other tablets that the suspect leader of this one led: the question asks for them as well."""
        leader = self._pursuit.leader or self._hint
        if leader is None:
            return []
        return self._context.hints.survey(leader[1], self._tablet, WHO_LEADS_MAX - 1, self._context.clock())

    def _finish_name(self) -> None:
        if self._name is not None:
            self._context.hints.finish(self._tablet, self._name)
        self._name = self._request = None

    # --- what arrives ---

    def _arrived(self, arrival: Received) -> R | None:
        """Take an answer; return the reply if the call is over."""
        sent, reply = arrival.key, arrival.reply
        if arrival.error is not None:
            self._failed(sent, arrival.error)
            return None
        now_s = self._context.clock()
        hints = self._context.hints
        hints.trust(sent.server)
        hints.learn_time(self._tablet, reply.time_ms, now_s)
        if isinstance(reply, Leaders | LeaderElsewhere):
            if isinstance(reply, Leaders) and [one.tablet for one in reply.views] != self._asked.pop(sent.number):
                self._failed(sent, RpcError(Code.BAD_REPLY, "the answer names other tablets than the question"))
                return None
            view = reply.views[0] if isinstance(reply, Leaders) else reply.view
            hints.learn(view)
            if isinstance(reply, Leaders):
                hints.learn_leaders(reply.views[1:])
            self._pursuit.informed(sent, view, now_s)
            if sent.kind is Kind.REQUEST:
                self._observe(NOT_LEADER)
            return None
        self._observe("")
        if isinstance(reply, TabletWritten) and reply.outcome.code in (SUPERSEDED, TOO_OLD):
            self._forgotten(sent, reply, now_s)
            return None
        final: R = reply
        return final

    def _forgotten(self, sent: Dispatch, reply: TabletWritten, now_s: float) -> None:
        """Write under a new number if no other copy can have been carried out. Raise OutcomeUnknown otherwise."""
        problem = f"is {OUTCOME_NAMES[reply.outcome.code]}: the tablet has forgotten the outcome of this write"
        self._pursuit.failed(sent, Code.BUSY, problem, now_s)
        self._check_known(problem)
        self._finish_name()

    def _check_known(self, problem: str) -> None:
        """Raise OutcomeUnknown if a copy of the write may have been carried out."""
        if self._may_have_been_done():
            raise OutcomeUnknown(f"{self._purpose.table}: {self._purpose.key!r} {problem}", may_have_been_done=True)

    def _failed(self, sent: Dispatch, error: RpcError) -> None:
        """Handle a failure. Raise Refused or RelocateError if the call must not continue."""
        if sent.kind is Kind.REQUEST:
            self._observe(error.code)
        now_s = self._context.clock()
        if error.code in BROKEN:
            self._context.hints.suspect(sent.server, now_s)
        step = self._pursuit.failed(sent, error.code, error.message, now_s)
        if error.code == SCHEMA_CHANGED:
            # Other rows are written next, as another write: no copy of this one may have been carried out.
            self._check_known(f"was refused: {error.message}")
        if step is CallStep.END:
            raise refused(error, self._purpose.table)
        if step is CallStep.LOCATE:
            # No copy of the write was or will be carried out. The key is outside of the tablet, or the tablet was
            # sealed without a result of the write; a sealed tablet has the results of all earlier writes.
            raise RelocateError

    def _observe(self, code: str) -> None:
        self._context.on_attempt(Attempt(self._tablet, code))

    # --- the record ---

    def _look_at_record(self, now_s: float) -> None:
        """Read a doubtful record again and adopt it.

        Raise RelocateError if the region is gone, TableDisabled if the table is disabled.
        """
        reading = self._reading
        if reading is None:
            if self._pursuit.doubt and now_s >= self._read_again_s:
                self._reading = self._context.reading(self._purpose.table, self._tablet)
            return
        if not reading.is_done:
            return
        self._reading = None
        self._read_again_s = now_s + READ_AGAIN_S
        if reading.has_failed:
            return
        if reading.record is None or reading.record.is_replaced:
            if not self._may_have_been_done():
                raise RelocateError
            if self._pursuit.is_nowhere:
                self._check_known(
                    "is in a tablet that was replaced or deleted, and no server knows the outcome any more"
                )
            return
        if reading.is_disabled:
            raise TableDisabled(self._purpose.table, may_have_been_done=self._may_have_been_done())
        self._region = reading.record
        self._pursuit.reconsider([one.uuid for one in reading.record.members], now_s)

    def _late(self, now_s: float) -> Unavailable:
        """Return the error of a call that ends at its deadline."""
        problems = [f"{self._named(server)}: {why}" for server, why in self._pursuit.problems(now_s).items()]
        what = self._purpose
        return Unavailable(
            f"{what.table}: {what.key!r}: no answer within {shown_s(what.wait_s)} s from tablet {self._tablet}; "
            + "; ".join(problems),
            may_have_been_done=self._may_have_been_done(),
        )

    def _may_have_been_done(self) -> bool:
        return self._is_write and (self._pursuit.is_unknown or self._pursuit.is_out)

    def _named(self, server: str) -> str:
        """Return the server's id and address."""
        address = self._context.hints.address(server)
        return server if address is None else f"{server} ({address[0]}:{address[1]})"
