"""Refusals of requests to a sealed tablet, which wait until the daughters have leaders.

A client that is refused reads the table's regions again. Before the daughters have leaders, the client finds no usable
region and asks repeatedly, while its servers need their processors for the split. So a refusal waits for the daughters,
at most HELD_S. Only a server that has prepared the daughters knows their names; others refuse at once.

Every method is called on the reactor's thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any, Final

from twisted.internet.defer import Deferred, succeed

from regionserver.tablets.commands import KvCommand, WriteOutcome
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
        #: Refusals that wait, with the time at which each is sent at the latest, by tablet.
        self._held: dict[str, list[tuple[float, Deferred[None]]]] = {}

    def expect(self, tablet: str, daughters: Iterable[str]) -> None:
        """Note which daughters a tablet is going to have."""
        for former in [one for one in self._daughters if self._host.rows_of(one) is None]:
            del self._daughters[former]
        self._daughters[tablet] = tuple(daughters)

    def hold(self, tablet: str) -> Deferred[None]:
        """Return a Deferred that fires when a refused request to a sealed tablet must be answered."""
        if not self._is_waiting(tablet):
            return succeed(None)
        if not self._held:
            self._reactor.callLater(LOOK_S, self._look)
        waiting: Deferred[None] = Deferred()
        self._held.setdefault(tablet, []).append((self._reactor.seconds() + HELD_S, waiting))
        return waiting

    def outcome(self, tablet: str, command: KvCommand) -> WriteOutcome | None:
        """Return the outcome of a write to a sealed tablet that this server leads; None if the log must decide."""
        group, rows = self._host.turn.groups.get(tablet), self._host.rows_of(tablet)
        if group is None or group.failure or group.core.leadership is None or rows is None or not rows.seal.is_set:
            return None
        with contextlib.suppress(RowsError):
            return sealing.outcome_now(rows, command)
        return None

    def stop(self) -> None:
        """Let all refusals be sent."""
        self._daughters.clear()
        self._send_due()

    def _look(self) -> None:
        self._send_due()
        if self._held:
            self._reactor.callLater(LOOK_S, self._look)

    def _send_due(self) -> None:
        now_s = self._reactor.seconds()
        for tablet, held in list(self._held.items()):
            kept = [one for one in held if one[0] > now_s] if self._is_waiting(tablet) else []
            if kept:
                self._held[tablet] = kept
            else:
                del self._held[tablet]
            for _, waiting in held[: len(held) - len(kept)]:
                waiting.callback(None)

    def _is_waiting(self, tablet: str) -> bool:
        """Return True if the tablet is sealed, and a daughter has no leader that this server knows."""
        rows, daughters = self._host.rows_of(tablet), self._daughters.get(tablet, ())
        if rows is None or not rows.seal.is_set:
            return False
        return any(not self._host.leader_of(one)[1] for one in daughters)
