"""One call to a tablet: the server that gets the request, and the servers that are asked for the leader.

The class has no clock and no socket. `take` returns the messages to send now. The caller passes answers and failures
in, and calls `take` again at `wake_s`. There are two kinds of messages:

    REQUEST    to the server that leads, as far as the call knows
    QUESTION   WhoLeads, to the members one after the other, FIRST_PAUSE_S to LAST_PAUSE_S apart

    before                                   what happens                       then
    no leader is known                       -                                  questions
    a leader is known                        -                                  request to the leader
    a request is out                         no answer for SILENT_S             questions; the request stays out
    a request is out                         no answer for RESEND_FIRST_S       request once more, if the others still
                                                                                name the same leader; then twice as late
    a request is out, or a question          another leader in a later term     request to that leader
    any answer but the last one              see `answers.MEANINGS`             FOLLOW, PAUSE, SEARCH

A request that is sent twice is the same write, so the first answer ends the call. A failed server counts as the leader
until another one is named, because it may have been restarted: it gets the request again after a pause. A server that
replies that it does not lead is not asked again at once, so servers that name each other cannot keep the call busy.

Terms only order hints. A hint alone cannot keep the call from other servers, because the named server must answer.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from regionserver.client.tablets.answers import BROKEN, NO_ADDRESS, NOT_LEADER, CallStep, meaning_of
from regionserver.tablets.messages import NO_REPLICA, KnownLeader

#: Pause between two questions.
FIRST_PAUSE_S: Final = 0.01
LAST_PAUSE_S: Final = 0.05
#: A leader that does not answer for this long may be frozen. Several times the duration of a write on a healthy
#: cluster.
SILENT_S: Final = 0.25
#: Pause between two questions while the others still name the leader that is silent.
CONFIRMED_PAUSE_S: Final = 0.1
#: A request is sent once more to the same server: its connection may lead nowhere. The time doubles.
RESEND_FIRST_S: Final = 1.0
#: A question without an answer for this long is sent again, over another connection.
QUESTION_LOST_S: Final = 1.0
#: Pause before a server that failed or was busy is sent the request again; it doubles up to the second value.
RETRY_FIRST_S: Final = 0.02
RETRY_LAST_S: Final = 0.32
#: Time for which a server that could not be reached, or broke the connection, is asked after the others.
UNREACHABLE_S: Final = 0.32
#: Time without a leader after which the region's record may have changed.
STALE_S: Final = 0.5


class Kind(enum.Enum):
    """The kind of a message."""

    REQUEST = enum.auto()
    QUESTION = enum.auto()


class Dispatch(NamedTuple):
    """One message to send; `number` distinguishes the messages of a call."""

    kind: Kind
    server: str
    number: int


@dataclass(slots=True)
class _Member:
    """The call's knowledge of one server."""

    #: Time at which a request without an answer was first sent, None without such a request; time of the latest send.
    request_s: float | None = None
    sent_s: float = 0.0
    #: When the latest question without an answer was sent.
    question_s: float | None = None
    #: Number of the latest request.
    request: int = 0
    resend_s: float = RESEND_FIRST_S
    #: Earliest time of the next request, and length of the next pause. The server leads and is busy, as far as the call
    #: knows.
    rest_until_s: float = 0.0
    is_busy: bool = False
    #: A request has failed, and nothing was answered since.
    has_failed: bool = False
    #: Asked after the others before this time: a question or request could not be sent, or the connection broke.
    ask_last_until_s: float = -1e9
    rest_s: float = RETRY_FIRST_S
    #: Its latest failure, for the error message.
    problem: str = ""
    #: By its latest answer it has no replica.
    has_none: bool = False


@dataclass(slots=True)
class _Hint:
    """The leader that the call knows, its term, and the time at which another member last named it."""

    term: int
    server: str
    confirmed_s: float = field(default=-1e9)


class Pursuit:
    """The decisions of one call. Times are of one monotonic clock; `chance` returns numbers in [0, 1)."""

    def __init__(
        self,
        members: Iterable[str],
        hint: tuple[int, str] | None,
        chance: Callable[[], float],
        *,
        now_s: float,
        is_suspect: bool = False,
        is_ready: bool = True,
    ) -> None:
        """`hint`: term and server of the leader that earlier calls found; `is_suspect`: that server has been silent
        recently.

        Not `is_ready`: no request is sent before the first answer to a question (a writer must learn the time first).
        """
        self._members = {server: _Member() for server in members}
        self._chance = chance
        self._hint = None if hint is None else _Hint(*hint)
        self._is_ready = is_ready
        self._is_suspect = is_suspect
        self._began_s = self._doubtful_s = now_s
        self._question_at_s = now_s
        self._pause_s = FIRST_PAUSE_S
        self._count = 0
        #: Numbers of the requests that have no answer.
        self._out: set[int] = set()
        #: Members in the order in which they are asked; any order will do, but clients should differ.
        self._turn = list(self._members)
        first = self._turn.index(hint[1]) if hint and hint[1] in self._turn else int(chance() * len(self._turn))
        if hint and is_suspect:
            first += 1  # the others know more of a leader that does not answer
        self._turn = self._turn[first:] + self._turn[:first]
        #: An answer, or its absence, leaves open whether the request was carried out.
        self.is_unknown = False
        #: Why the region's record is doubtful; "" if it is not.
        self.doubt = ""

    # --- what to do ---

    def take(self, now_s: float) -> list[Dispatch]:
        """Return the messages to send now."""
        found = []
        target = self._target(now_s)
        if target is not None:
            member = self._members[target]
            if member.request_s is None:
                member.request_s = now_s
            else:
                member.resend_s *= 2
            member.sent_s = now_s
            found.append(self._dispatch(Kind.REQUEST, target))
            member.request = self._count
            self._out.add(self._count)
        if self._asks(now_s) and now_s >= self._question_at_s:
            asked = self._next_to_ask(now_s)
            if asked is not None:
                self._members[asked].question_s = now_s
                found.append(self._dispatch(Kind.QUESTION, asked))
            self._plan_question(now_s)
        if not self.doubt and now_s >= self._doubtful_s + STALE_S and self._asks(now_s):
            self.doubt = "no leader answers"
        return found

    def wake_s(self, now_s: float) -> float:
        """Return when `take` may have something new to do, if nothing is answered before."""
        times = []
        if self._asks(now_s):
            times.append(self._question_at_s)
            if not self.doubt:
                times.append(self._doubtful_s + STALE_S)
        hint = self._hint
        if hint is not None and self._is_ready and hint.server in self._members:
            leader = self._members[hint.server]
            if leader.request_s is None:
                times.append(leader.rest_until_s)
            else:
                times += [leader.request_s + SILENT_S, leader.sent_s + leader.resend_s]
        later = [one for one in times if one > now_s]
        return min(later, default=now_s + LAST_PAUSE_S)

    # --- what came back ---

    def informed(self, sent: Dispatch, view: KnownLeader, now_s: float) -> None:
        """Handle a server's view: the answer to a question, or the reply that the server does not lead."""
        member = self._member(sent.server)
        member.has_failed = False
        if sent.kind is Kind.REQUEST:
            self._refused(sent, NOT_LEADER, "does not lead", now_s)
            self._disown(sent.server)
            if view.leader is not None and view.leader.server == sent.server:
                # The server has lost its leadership and does not know the new leader yet.
                view = KnownLeader(view.tablet)
        else:
            self._is_ready = True
            member.question_s = None
            member.has_none = not view.term and view.leader is None
            member.problem = "has no replica that runs" if member.has_none else ""
            if member.problem and not self.doubt:
                # The record may name former members, or the table may be disabled.
                self.doubt = f"{sent.server}: {NO_REPLICA}"
        self._learn(sent.server, view, now_s)

    def failed(self, sent: Dispatch, code: str, message: str, now_s: float) -> CallStep:
        """Handle the failure of a message. Return the next step of the call."""
        if code in (NO_ADDRESS, NO_REPLICA):
            self.doubt = f"{sent.server}: {code}"
        if code in BROKEN:
            self._member(sent.server).ask_last_until_s = now_s + UNREACHABLE_S
        self._member(sent.server).has_none = code == NO_REPLICA
        if sent.kind is Kind.QUESTION:
            self._member(sent.server).question_s = None
            self._member(sent.server).problem = message
            return CallStep.SEARCH
        is_latest = self._member(sent.server).request == sent.number
        step = self._refused(sent, code, message, now_s)
        if step is CallStep.SEARCH and is_latest:
            self._member(sent.server).has_failed = True
            if code == NO_REPLICA:
                self._disown(sent.server)
            self._is_suspect = True
            self._question_at_s = min(self._question_at_s, now_s)
            self._pause_s = FIRST_PAUSE_S
        return step

    def reconsider(self, members: Iterable[str], now_s: float) -> None:
        """Replace the members by those of a record that was just read."""
        wanted = list(members)
        for server in wanted:
            self._member(server)
        for server in [one for one in self._turn if one not in wanted]:
            self._turn.remove(server)
        self.doubt = ""
        self._doubtful_s = now_s

    @property
    def is_out(self) -> bool:
        """Return True if a request has no answer yet: it may have been carried out."""
        return bool(self._out)

    @property
    def is_nowhere(self) -> bool:
        """Return True if no request is out, and no member has a replica, by the latest answer of each."""
        return not self._out and all(self._members[one].has_none for one in self._turn)

    @property
    def leader(self) -> tuple[int, str] | None:
        """Term and server of the leader that the call knows."""
        return None if self._hint is None else (self._hint.term, self._hint.server)

    def silent(self, now_s: float) -> list[str]:
        """Return the servers that have not answered a request for SILENT_S."""
        return [
            server
            for server, member in self._members.items()
            if member.request_s is not None and now_s >= member.request_s + SILENT_S
        ]

    def problems(self, now_s: float) -> dict[str, str]:
        """Return the latest problem of each server, for people."""
        found = {}
        for server, member in self._members.items():
            since_s = member.request_s if member.request_s is not None else member.question_s
            silent_s = 0.0 if since_s is None else now_s - since_s
            found[server] = f"no reply for {silent_s:.1f} s" if silent_s >= SILENT_S else member.problem or "not asked"
        return found

    # --- inside ---

    def _dispatch(self, kind: Kind, server: str) -> Dispatch:
        self._count += 1
        return Dispatch(kind, server, self._count)

    def _member(self, server: str) -> _Member:
        if server not in self._members:
            self._members[server] = _Member()
            self._turn.append(server)
        return self._members[server]

    def _target(self, now_s: float) -> str | None:
        """Return the server to send the request to now."""
        hint = self._hint
        if hint is None or not self._is_ready:
            return None
        leader = self._member(hint.server)
        if leader.request_s is None:
            # A leader that was silent lately is asked with a question first, unless there is no other server to ask.
            is_doubted = self._is_suspect and hint.confirmed_s < self._began_s and len(self._members) > 1
            waited = now_s >= self._began_s + SILENT_S
            return hint.server if now_s >= leader.rest_until_s and (waited or not is_doubted) else None
        is_lost = now_s >= leader.sent_s + leader.resend_s
        return hint.server if is_lost and hint.confirmed_s > leader.sent_s else None

    def _asks(self, now_s: float) -> bool:
        """Return True if the call looks for the leader."""
        hint = self._hint
        if hint is None or not self._is_ready or self._is_suspect:
            return True
        leader = self._member(hint.server)
        if leader.request_s is None:
            return now_s < leader.rest_until_s and not leader.is_busy
        return now_s >= leader.request_s + SILENT_S

    def _next_to_ask(self, now_s: float) -> str | None:
        """Return the next member without a message in flight. Return an unreachable member only if there is no
        other."""
        found = None
        for server in self._turn:
            member = self._members[server]
            is_waiting = member.question_s is not None and now_s < member.question_s + QUESTION_LOST_S
            if is_waiting or member.request_s is not None:
                continue
            if now_s >= member.ask_last_until_s:
                found = server
                break
            found = found or server
        if found is not None:
            self._turn.remove(found)
            self._turn.append(found)
        return found

    def _plan_question(self, now_s: float) -> None:
        """Choose the time of the next question."""
        hint = self._hint
        is_silent = hint is not None and self._member(hint.server).request_s is not None
        if is_silent and hint is not None and hint.confirmed_s >= now_s - SILENT_S:
            pause_s = CONFIRMED_PAUSE_S
        else:
            pause_s = max(FIRST_PAUSE_S, self._pause_s * (0.5 + 0.5 * self._chance()))
            self._pause_s = min(2 * self._pause_s, LAST_PAUSE_S)
        self._question_at_s = now_s + pause_s

    def _refused(self, sent: Dispatch, code: str, message: str, now_s: float) -> CallStep:
        """Note the outcome of a request; let the server rest."""
        self._out.discard(sent.number)
        meaning = meaning_of(code)
        self.is_unknown = self.is_unknown or meaning.is_unknown
        member = self._member(sent.server)
        if member.request == sent.number:
            member.request_s = None
            member.problem = message
            member.is_busy = meaning.step is CallStep.PAUSE
            member.rest_until_s = now_s + member.rest_s * (0.5 + 0.5 * self._chance())
            member.rest_s = min(2 * member.rest_s, RETRY_LAST_S)
        return meaning.step

    def _disown(self, server: str) -> None:
        """Drop the hint if it names this server, which has replied that it does not lead."""
        if self._hint is not None and self._hint.server == server:
            self._hint = None

    def _learn(self, server: str, view: KnownLeader, now_s: float) -> None:
        """Adopt the leader that `server` names, if nothing better is known."""
        leader = view.leader
        if leader is None:
            if view.term:
                self._disown_below(server, view.term)
            return
        hint = self._hint
        if hint is not None and hint.server == leader.server:
            hint.term = max(hint.term, view.term)
            if server != leader.server or self._member(server).request_s is None:
                hint.confirmed_s = now_s
            return
        if hint is not None and view.term <= hint.term and not self._member(hint.server).has_failed:
            return
        if hint is not None and view.term < hint.term and server != leader.server:
            return
        self._member(leader.server)
        self._hint = _Hint(view.term, leader.server, now_s)
        self._is_suspect = False
        self._pause_s = FIRST_PAUSE_S

    def _disown_below(self, server: str, term: int) -> None:
        """Drop a leader of an earlier term whose server now reports that it follows no leader."""
        if self._hint is not None and self._hint.server == server and self._hint.term <= term:
            self._hint = None


__all__ = ["SILENT_S", "Dispatch", "Kind", "Pursuit"]
