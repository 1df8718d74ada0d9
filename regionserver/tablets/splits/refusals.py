"""Refusals of requests to a sealed tablet, which wait until the daughters can be asked, and writes that wait for a
daughter's leader.

A client that is refused reads the table's regions again. Before the daughters have leaders, the client finds no usable
region and asks repeatedly, while its servers need their processors for the split. So a refusal waits for the daughters,
at most HELD_S. Only a server that has prepared the daughters knows their names; others refuse at once.

The server that leads the parent is the first to stand for election in the daughters. It sends refusals as soon as it
hosts the daughters, and lets their writes wait until they have leaders. So clients read the regions during the
election, and the first writes share their syncs with the first entry of the leader.

Every method is called on the reactor's thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any, Final

from twisted.internet.defer import Deferred, succeed

from regionserver.tablets.commands import KvCommand, WriteOutcome
from regionserver.tablets.host.requests import Fate, TabletAnswer
from regionserver.tablets.process.host import TabletHost
from regionserver.tablets.rows.errors import RowsError
from regionserver.tablets.rows.sealed import sealing

#: Longest time for which a refusal waits: less than clients wait before they ask for another leader.
HELD_S: Final = 0.15
#: Interval at which the daughters are looked at while a refusal waits.
LOOK_S: Final = 0.005


class HeldRefusals:
    """See the module docstring."""

    def __init__(self, reactor: Any, host: TabletHost) -> None:
        self._reactor = reactor
        self._host = host
        #: Names of the daughters of tablets that are split.
        self._daughters: dict[str, tuple[str, ...]] = {}
        #: The parent of each of these daughters, the first one of a merge.
        self._parents: dict[str, str] = {}
        #: Refusals of parents and writes of daughters that wait, with the time of each at the latest, by tablet.
        self._held: dict[str, list[tuple[float, Deferred[None]]]] = {}

    def expect(self, tablet: str, daughters: Iterable[str]) -> None:
        """Note which daughters a tablet is going to have."""
        for former in [one for one in self._daughters if self._host.rows_of(one) is None]:
            del self._daughters[former]
        self._daughters[tablet] = tuple(daughters)
        # The parents of a merge are noted in the order of their keys. The leader of the first one stands first.
        pairs = [(one, parent) for parent, found in self._daughters.items() for one in found]
        self._parents = dict(reversed(pairs))

    def hold(self, tablet: str) -> Deferred[None]:
        """Return a Deferred that fires when a refused request to a sealed tablet must be answered."""
        return self._hold(tablet) if self._is_waiting(tablet) else succeed(None)

    def _hold(self, tablet: str) -> Deferred[None]:
        if not self._held:
            self._reactor.callLater(LOOK_S, self._look)
        waiting: Deferred[None] = Deferred()
        self._held.setdefault(tablet, []).append((self._reactor.seconds() + HELD_S, waiting))
        return waiting

    def propose(self, tablet: str, command: KvCommand) -> Deferred[TabletAnswer]:
        """Write. Raise CommandError if the command exceeds a limit.

        The leader of a sealed tablet answers from its rows, so no write is under way when its replicas are deleted. A
        majority confirms the leader first: a successor may have taken the seal away, and carry out another copy.
        """
        if self._is_awaited(tablet):
            return self._hold(tablet).addCallback(lambda _: self._host.propose(tablet, command))
        if not self._leads_sealed(tablet):
            return self._host.propose(tablet, command)

        def confirmed(answer: TabletAnswer) -> TabletAnswer | Deferred[TabletAnswer]:
            if answer.fate is not Fate.DONE:
                return answer
            known = self._outcome(tablet, command)
            return self._host.propose(tablet, command) if known is None else TabletAnswer(tablet, 0, Fate.DONE, known)

        return self._host.read(tablet, lambda _rows: None, keys=1).addCallback(confirmed)

    def stop(self) -> None:
        """Let all refusals be sent."""
        self._daughters.clear()
        self._parents.clear()
        self._send_due()

    def _leads_sealed(self, tablet: str) -> bool:
        """Return True if this server leads the tablet, as far as it knows, and its rows are sealed."""
        group, rows = self._host.turn.groups.get(tablet), self._host.rows_of(tablet)
        leads = group is not None and not group.failure and group.core.leadership is not None
        return leads and rows is not None and rows.seal.is_set

    def _outcome(self, tablet: str, command: KvCommand) -> WriteOutcome | None:
        """Return the outcome of a write by the rows of a sealed tablet; None if the log must decide."""
        rows = self._host.rows_of(tablet)
        if rows is None or not self._leads_sealed(tablet):
            return None
        with contextlib.suppress(RowsError):
            return sealing.outcome_now(rows, command)
        return None

    def _look(self) -> None:
        self._send_due()
        if self._held:
            self._reactor.callLater(LOOK_S, self._look)

    def _send_due(self) -> None:
        now_s = self._reactor.seconds()
        for tablet, held in list(self._held.items()):
            waits = self._is_awaited(tablet) or self._is_waiting(tablet)
            kept = [one for one in held if one[0] > now_s] if waits else []
            if kept:
                self._held[tablet] = kept
            else:
                del self._held[tablet]
            for _, waiting in held[: len(held) - len(kept)]:
                waiting.callback(None)

    def _is_waiting(self, tablet: str) -> bool:
        """Return True if the tablet is sealed, and clients cannot ask a daughter yet."""
        rows, daughters = self._host.rows_of(tablet), self._daughters.get(tablet, ())
        if rows is None or not rows.seal.is_set:
            return False
        return any(not self._host.leader_of(one)[1] and not self._is_awaited(one) for one in daughters)

    def _is_awaited(self, tablet: str) -> bool:
        """Return True for a daughter without a leader that is hosted by the server that led its parent."""
        parent = self._parents.get(tablet)
        if parent is None or self._host.rows_of(tablet) is None or self._host.leader_of(tablet)[1]:
            return False
        return self._leads_sealed(parent)
