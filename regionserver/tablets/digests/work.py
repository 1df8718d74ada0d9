"""Comparison of replicas: a leader's work once a second, and every server's answers.

rows reach an entry  ->  the digest is kept (`rows/marks.py`), on all replicas at the same entries
leader, once a second  ->  one question to each server, about all tablets with a new digest  ->  judge.py
a member differs from a majority  ->  its server quarantines it  ->  messages to it are refused  ->  copied anew
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec
from twisted.internet.defer import Deferred, DeferredList, inlineCallbacks
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.env import Clock
from coord.rpc.wire import Code, RpcError
from regions.messages.server import ClosePurpose, TabletFigures
from regionserver.tablets.digests.judge import DigestJudgment, ReplicaFacts, Verdict, judge, objection, reason
from regionserver.tablets.digests.messages import (
    AskedDigest,
    DigestList,
    DigestRequest,
    QuarantineReplica,
    ReplicaDigest,
    ReplicaQuarantined,
    ShowDigests,
)
from regionserver.tablets.host.group import Group
from regionserver.tablets.host.quiet import Looks
from regionserver.tablets.host.turn import Turn
from regionserver.tablets.links.questions import Ask
from regionserver.tablets.process.interfaces import RowsReader
from regionserver.tablets.process.replica import TabletReplica
from regionserver.tablets.rows.tablet_rows import TabletRows

log = Logger()

#: Interval at which a server looks for tablets to compare.
LOOK_S: Final = 1.0
#: Tablets in one question.
ASKED_MAX: Final = 1_000
#: Time for which an alarm about a quarantined replica is shown, and limit of shown alarms.
SHOWN_MS: Final = 24 * 3_600_000
ALARMS_MAX: Final = 5


class DigestHost(Protocol):
    """The host of tablets, as comparisons use it."""

    turn: Turn

    def read(self, tablet: str, read: RowsReader, *, at_least: int = 0, keys: int = 0) -> Deferred[Any]:
        """Read from a snapshot that has the entry at `at_least`."""
        ...

    def close(self, tablet: str, purpose: ClosePurpose, reason: str = "") -> Deferred[str]:
        """Stop a replica and process its files as `purpose` says. Return "" or the reason of a failure."""
        ...


class _Compared:
    """One comparison: the digests of a tablet's members at one entry."""

    def __init__(self, group: Group, index: int, own: bytes) -> None:
        self.group = group
        self.term = group.core.term
        self.index = index
        self.found = {group.replica.number: own}


class DigestWork:
    """See the module docstring. Every method is called on the reactor's thread."""

    def __init__(
        self,
        reactor: Any,
        clock: Clock,
        server: str,
        host: DigestHost,
        replicas: Mapping[str, TabletReplica],
        ask: Ask,
    ) -> None:
        self._reactor = reactor
        self._clock = clock
        self._server = server
        self._host = host
        self._replicas = replicas
        self._ask = ask
        #: Notes for the operator by tablet, each with its end (wall clock); 0: until a comparison finds the replicas
        #: equal.
        self._alarms: dict[str, tuple[str, int]] = {}
        self._differing = 0
        #: Chooses the tablets of each look; and the tablets that the last look left out.
        self._looks = Looks()
        self._left: list[str] = []
        self._is_stopping = False

    def start(self) -> None:
        """Begin to compare the tablets that this server leads."""
        self._reactor.callLater(LOOK_S, self._look)

    def stop(self) -> None:
        """End: the server stops."""
        self._is_stopping = True

    def figures(self, found: TabletFigures) -> TabletFigures:
        """Return the figures of the host with the differences that were found, and the alarms."""
        return msgspec.structs.replace(found, digests_differ=self._differing, alarms=[*found.alarms, *self.alarms()])

    def alarms(self) -> list[str]:
        """Return the notes for the operator about replicas that differ."""
        now_ms = self._clock.wall_ms()
        self._alarms = {tablet: one for tablet, one in self._alarms.items() if not one[1] or now_ms < one[1]}
        return [text for text, _ in self._alarms.values()][:ALARMS_MAX]

    # --- a leader compares --------------------------------------------------------------------------------------------

    def _look(self) -> None:
        if self._is_stopping:
            return

        def again(result: Any) -> None:
            if isinstance(result, Failure):
                log.failure("comparison of digests", failure=result)
            if not self._is_stopping:
                self._reactor.callLater(LOOK_S, self._look)

        self.compare().addBoth(again)

    @inlineCallbacks
    def compare(self) -> Any:
        """Compare the tablets led here whose rows have passed an entry with a digest since the last comparison."""
        found = self._due()
        by_server: dict[str, list[_Compared]] = {}
        for one in found:
            for number, server in one.group.servers.items():
                if server != self._server and one.group.core.configs.current.is_member(number):
                    by_server.setdefault(server, []).append(one)
        asked = [self._asked(server, tablets) for server, tablets in by_server.items()]
        if asked:
            yield DeferredList(asked, consumeErrors=True)
        for one in found:
            if not self._is_stopping and self._leads(one):
                self._judged(one)

    def _due(self) -> list[_Compared]:
        """Return the tablets to compare, and note that they are compared.

        The rows of a quiet tablet pass no entries, so nearly all tablets of an idle server are left out.
        """
        found: list[_Compared] = []
        turn = self._host.turn
        looked = self._looks.next(turn.groups, turn.quiet.awake, self._left)
        for number, tablet in enumerate(looked):
            group = turn.groups[tablet]
            if group.core.leadership is None or group.failure:
                continue
            rows = self._rows(tablet)
            if rows is None or rows.marks.latest <= rows.marks.compared:
                continue
            index = rows.marks.compared = rows.marks.latest
            digest = rows.marks.at(index)
            if digest is not None:
                found.append(_Compared(group, index, digest))
                if len(found) == ASKED_MAX:
                    self._left = looked[number + 1 :]
                    return found
        self._left = []
        return found

    def _asked(self, server: str, tablets: list[_Compared]) -> Deferred[Any]:
        by_name = {one.group.replica.tablet: one for one in tablets}
        message = ShowDigests(server, [AskedDigest(name, one.index) for name, one in by_name.items()])

        def answered(answer: DigestList) -> None:
            for shown in answer.digests:
                one = by_name.get(shown.tablet)
                digest = dict(shown.digests).get(one.index) if one is not None else None
                if one is not None and digest is not None and one.group.servers.get(shown.number) == server:
                    one.found[shown.number] = digest

        # A server that does not answer takes no part in the comparison.
        return self._ask(server, message, DigestList).addCallback(answered)

    def _leads(self, one: _Compared) -> bool:
        """Return True if the tablet is led here still, in the term of the comparison."""
        group = one.group
        is_hosted = self._host.turn.groups.get(group.replica.tablet) is group and not group.failure
        return is_hosted and group.core.leadership is not None and group.core.term == one.term

    def _judged(self, one: _Compared) -> None:
        tablet = one.group.replica.tablet
        judgment = judge(one.found, one.group.core.configs.current.voters)
        if judgment.verdict is Verdict.EQUAL:
            if tablet in self._alarms and not self._alarms[tablet][1]:
                del self._alarms[tablet]
            return
        self._differing += 1
        if judgment.verdict is Verdict.UNDECIDED:
            text = (
                f"replicas of tablet {tablet} differ after entry {one.index} and no majority agrees; nothing was"
                f" changed: rk tablet verify {tablet}, then rk tablet copy for the member that is wrong"
            )
            self._alarm(tablet, text, 0)
            return
        named = ", ".join(str(number) for number in judgment.differing)
        text = (
            f"tablet {tablet}: the rows of member {named} differed after entry {one.index} from those of a majority;"
            " the replica is quarantined and copied anew; check the memory and disk of its server"
        )
        self._alarm(tablet, text, self._clock.wall_ms() + SHOWN_MS)
        for number in judgment.differing:
            self._quarantine(one, judgment, number)

    def _alarm(self, tablet: str, text: str, until_ms: int) -> None:
        log.error("{text}", text=text)
        self._alarms[tablet] = text, until_ms

    def _quarantine(self, one: _Compared, judgment: DigestJudgment, number: int) -> None:
        tablet = one.group.replica.tablet
        server = one.group.servers[number]
        order = QuarantineReplica(
            server, tablet, number, one.term, one.index, judgment.digest, list(judgment.agreeing)
        )  # fmt: skip
        answer = self._quarantined(order) if server == self._server else self._ask(server, order, ReplicaQuarantined)

        def answered(found: ReplicaQuarantined) -> None:
            if found.why:
                log.warn("member {number} of tablet {tablet} stays in service: {why}",
                         number=number, tablet=tablet, why=found.why)  # fmt: skip

        def failed(failure: Failure) -> None:
            failure.trap(RpcError)  # type: ignore[no-untyped-call]
            log.warn("server {server} does not quarantine member {number} of tablet {tablet}: {why}",
                     server=server, number=number, tablet=tablet, why=str(failure.value))  # fmt: skip

        answer.addCallbacks(answered, failed)

    # --- answers ------------------------------------------------------------------------------------------------------

    def answer(self, request: DigestRequest) -> Deferred[Any]:
        """Answer a request of a leader or an operator. Raise RpcError."""
        if isinstance(request, QuarantineReplica):
            return self._quarantined(request)
        if request.recipient != self._server:
            raise RpcError(Code.BAD_REQUEST, f"this server is {self._server}")
        if len(request.asked) > ASKED_MAX:
            raise RpcError(Code.BAD_REQUEST, f"{len(request.asked)} tablets in one question, allowed are {ASKED_MAX}")
        return self._shown(request)

    @inlineCallbacks
    def _shown(self, request: ShowDigests) -> Any:
        late = []
        for asked in request.asked:
            rows = self._rows(asked.tablet)
            if rows is not None and rows.applied[0] < asked.index:
                rows.marks.want(asked.index)
                late.append(self._host.read(asked.tablet, _nothing, at_least=asked.index))
        if late:
            yield DeferredList(late, consumeErrors=True)
        found = [self._digest(asked.tablet) for asked in request.asked]
        return DigestList(self._server, [one for one in found if one is not None])

    def _digest(self, tablet: str) -> ReplicaDigest | None:
        rows, group = self._rows(tablet), self._host.turn.groups.get(tablet)
        if rows is None or group is None or group.failure:
            return None
        state, known = rows.state, rows.marks.known()
        core = group.core
        digests = [one for one in known if one[0] < state.applied_index]
        return ReplicaDigest(
            tablet, group.replica.number, core.term, core.log.last, state.applied_index,
            [*digests, (state.applied_index, state.digest)],
        )  # fmt: skip

    def _quarantined(self, order: QuarantineReplica) -> Deferred[ReplicaQuarantined]:
        answer: Deferred[ReplicaQuarantined] = Deferred()
        group, rows = self._host.turn.groups.get(order.tablet), self._rows(order.tablet)
        if group is None or group.failure or rows is None:
            facts = ReplicaFacts(self._server, 0, 0, None)
        else:
            facts = ReplicaFacts(self._server, group.replica.number, group.core.term, rows.marks.at(order.index))
        why = objection(order, facts)
        if why:
            answer.callback(ReplicaQuarantined(why))
            return answer
        text = reason(order.index, order.agreeing)
        log.error("member {number} of tablet {tablet} is quarantined: {why}",
                  number=order.number, tablet=order.tablet, why=text)  # fmt: skip
        closed = self._host.close(order.tablet, ClosePurpose.TOMBSTONE, text)
        closed.addCallback(lambda failure: answer.callback(ReplicaQuarantined(failure)))
        return answer

    def _rows(self, tablet: str) -> TabletRows | None:
        replica = self._replicas.get(tablet)
        return None if replica is None else replica.rows


def _nothing(_: object) -> None:
    """Read nothing: the caller only waits for an entry."""
