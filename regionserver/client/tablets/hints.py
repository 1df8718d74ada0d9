"""A client's knowledge of tablets: leaders, addresses of servers, times. For any thread; nothing here decides."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Final

from regions.records.model import RegionRecord
from regionserver.client.connections import Address
from regionserver.client.tablets.numbers import WriteName, WriteNumbers
from regionserver.tablets.messages import KnownLeader

#: Time for which calls to other tablets ask a server last that did not answer.
SUSPECT_S: Final = 2.0
#: While a server is suspect, one question in this time asks for the new leaders of all tablets that it led.
SURVEY_S: Final = 0.02


class TabletHints:
    """Leaders, addresses, silent servers, and the numbers of writes, by tablet or server."""

    def __init__(self, new_writer: Callable[[], str]) -> None:
        self._new_writer = new_writer
        self._lock = threading.Lock()
        self._leaders: dict[str, tuple[int, str]] = {}
        self._addresses: dict[str, Address] = {}
        self._numbers: dict[str, WriteNumbers] = {}
        self._silent: dict[str, float] = {}
        #: Suspect server -> time of the next survey of its tablets.
        self._survey_s: dict[str, float] = {}
        self._used: set[str] = set()

    # --- leaders ---

    def leader(self, region: RegionRecord) -> tuple[int, str] | None:
        """Return term and server of the tablet's leader, as the latest call or the region's record names it."""
        with self._lock:
            known = self._leaders.get(region.region_id)
        if known is not None:
            return known
        member = region.member(region.leader)
        return None if member is None else (region.leader_term, member.uuid)

    def set_leader(self, tablet: str, before: tuple[int, str] | None, after: tuple[int, str] | None) -> None:
        """Record the leader with which a call ended; `before` is the leader with which it began. Keep the leader of a
        later term that another call has found meanwhile."""
        with self._lock:
            known = self._leaders.get(tablet)
            if known is not None and known != before and (after is None or known[0] > after[0]):
                return
            if after is None:
                self._leaders.pop(tablet, None)
            else:
                self._leaders[tablet] = after

    def survey(self, server: str, but: str, most: int, now_s: float) -> list[str]:
        """Return up to `most` tablets, without `but`, that a suspect server led, if a survey of their leaders is due.

        All calls to these tablets need a new leader. One question about all of them replaces a question of each call.
        """
        with self._lock:
            if now_s >= self._silent.get(server, 0.0) or now_s < self._survey_s.get(server, 0.0):
                return []
            self._survey_s[server] = now_s + SURVEY_S
            led = [tablet for tablet, (_, leader) in self._leaders.items() if leader == server and tablet != but]
            return led[:most]

    def learn_leaders(self, views: Iterable[KnownLeader]) -> None:
        """Keep the leaders of later terms than those that are known."""
        for view in views:
            leader = view.leader
            if leader is None:
                continue
            self.learn(view)
            with self._lock:
                known = self._leaders.get(view.tablet)
                if known is None or known[0] < view.term:
                    self._leaders[view.tablet] = view.term, leader.server

    def is_first_use(self, tablet: str) -> bool:
        """Return True the first time."""
        with self._lock:
            if tablet in self._used:
                return False
            self._used.add(tablet)
            return True

    # --- addresses ---

    def address(self, server: str) -> Address | None:
        """Return the server's address for requests, if a reply has named it or the store was read."""
        with self._lock:
            return self._addresses.get(server)

    def knows_addresses(self, region: RegionRecord) -> bool:
        """Return True if `address` knows all members of a region."""
        addresses = self._addresses
        for one in region.members:  # noqa: SIM110 (a generator takes as long again; each call asks this)
            if one.uuid not in addresses:
                return False
        return True

    def set_address(self, server: str, address: Address) -> None:
        """Keep the address of a server."""
        with self._lock:
            self._addresses[server] = address

    def learn(self, view: KnownLeader) -> None:
        """Keep the address that a view names: the leader may have been restarted elsewhere."""
        if view.leader is not None and view.leader.port:
            self.set_address(view.leader.server, (view.leader.host, view.leader.port))

    # --- silence ---

    def is_suspect(self, server: str, now_s: float) -> bool:
        """Return True if a call has waited for this server in vain lately."""
        with self._lock:
            return now_s < self._silent.get(server, 0.0)

    def suspect(self, server: str, now_s: float) -> None:
        """Record that the server does not answer, or broke the connection."""
        with self._lock:
            self._silent[server] = now_s + SUSPECT_S

    def trust(self, server: str) -> None:
        """Record that the server has answered."""
        if self._silent:
            with self._lock:
                self._silent.pop(server, None)

    # --- numbers of writes ---

    def _numbers_of(self, tablet: str) -> WriteNumbers:
        found = self._numbers.get(tablet)
        if found is None:
            found = self._numbers[tablet] = WriteNumbers(self._new_writer)
        return found

    def knows_time(self, tablet: str) -> bool:
        """Return True if a write to the tablet can begin."""
        with self._lock:
            return self._numbers_of(tablet).knows_time

    def learn_time(self, tablet: str, time_ms: int, now_s: float) -> None:
        """Keep the tablet's time from a reply that arrived now."""
        with self._lock:
            self._numbers_of(tablet).learn(time_ms, now_s)

    def begin(self, tablet: str, now_s: float) -> WriteName:
        """Return the name of a new write."""
        with self._lock:
            return self._numbers_of(tablet).begin(now_s)

    def finish(self, tablet: str, write: WriteName) -> None:
        """Record that no copy of `write` will be sent any more."""
        with self._lock:
            self._numbers_of(tablet).finish(write)
