"""Reads, scans and writes of tablets: finds the region of a key, and calls its tablet.

A region's record and its servers' addresses are read from the store when the region is first used. After that a call
needs neither store nor masters.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Final, TypeVar

from kazoo.exceptions import KazooException

from coord.errors import shown_s
from regions.records.model import RegionRecord, TabletState
from regions.records.znodes import CorruptZnode
from regionserver.client.errors import Attempt, Refused, Unavailable, require, store_errors
from regionserver.client.locator import RegionLocator
from regionserver.client.store import StoreSilentError
from regionserver.client.tablets.context import TabletContext
from regionserver.client.tablets.numbers import WriteName
from regionserver.client.tablets.region_call import CallPurpose, R, RegionCall, RelocateError
from regionserver.client.tablets.stale import StaleCall, Staleness
from regionserver.kv.messages import NO_SCHEMA, REGION_FULL
from regionserver.tablets.commands import TABLET_FULL, Operation, WriteOutcome
from regionserver.tablets.messages import (
    TabletPage,
    TabletRead,
    TabletScan,
    TabletValues,
    TabletWrite,
    TabletWritten,
)

#: Pause before the record of a region that cannot be called is read again, doubling up to the second value.
PAUSE_FIRST_S: Final = 0.02
PAUSE_MAX_S: Final = 0.2
#: Time limit for reading the address of a server that is new to the client, if it knows another member's.
ADDRESS_S: Final = 0.2


P = TypeVar("P", TabletValues, TabletPage)


class TabletCalls:
    """Calls to tablets, for any thread. Methods raise DataError; keys of requests are placed keys."""

    def __init__(self, locator: RegionLocator, on_attempt: Callable[[Attempt], object]) -> None:
        self._locator = locator
        self._context = TabletContext(locator, on_attempt)

    def close(self) -> None:
        """Close the idle connections."""
        self._context.pool.close()

    def values(
        self, table: str, placed: list[str], wait_s: float, staleness: Staleness | None = None
    ) -> list[bytes | None]:
        """Return the values of keys of one region, or of the first of them that fill a page."""

        def ask(tablet: str, stale_ms: int) -> TabletRead:
            return TabletRead(tablet, placed, max_stale_ms=stale_ms)

        return self._read(table, placed[0], ask, TabletValues, wait_s, staleness)[0].values

    def page(
        self, table: str, at: str, end: str, rows_max: int, wait_s: float, staleness: Staleness | None = None
    ) -> tuple[TabletPage, str]:
        """Return one page of the region that holds `at`, and the start key of the next region ("" after the last)."""

        def ask(tablet: str, stale_ms: int) -> TabletScan:
            return TabletScan(tablet, at, end, rows_max, max_stale_ms=stale_ms)

        found, region = self._read(table, at, ask, TabletPage, wait_s, staleness)
        return found, region.end_key

    def write(
        self, table: str, operations: list[Operation], wait_s: float, schema_version: int = NO_SCHEMA
    ) -> WriteOutcome:
        """Carry out operations on one region, in one step and once; return the outcome.

        If the region was split after the operations were sorted by regions, each daughter gets its part by a separate
        write, and the last outcome is returned. `schema_version`: the version of the table's schema under which the
        values were encoded.
        """
        left = operations
        while True:
            outcome, left = self._write_inside(table, left, wait_s, schema_version)
            if not left:
                return outcome

    def _write_inside(
        self, table: str, operations: list[Operation], wait_s: float, schema_version: int
    ) -> tuple[WriteOutcome, list[Operation]]:
        """Carry out those of the operations that are in one region with the first; return the outcome and the rest."""
        rest: list[Operation] = []

        def ask(region: RegionRecord, name: WriteName | None) -> TabletWrite:
            assert name is not None, "a write without a name"
            inside = [one for one in operations if region.contains(one.key)]
            is_whole = len(inside) == len(operations)
            rest[:] = [] if is_whole else [one for one in operations if not region.contains(one.key)]
            return TabletWrite(
                region.region_id, name.writer, name.number, name.done_below, name.began_ms, inside, schema_version
            )

        key = operations[0].key
        purpose = CallPurpose(table, key, ask, TabletWritten, wait_s, time.monotonic() + wait_s)
        outcome = self._call(purpose)[0].outcome
        if outcome.code == TABLET_FULL:
            raise Refused(
                REGION_FULL, f"{table}: {key!r}: the tablet has reached its largest size; nothing was written"
            )
        return outcome, rest

    # --- inside ---

    def _read(
        self,
        table: str,
        placed: str,
        ask: Callable[[str, int], TabletRead | TabletScan],
        expect: type[P],
        wait_s: float,
        staleness: Staleness | None,
    ) -> tuple[P, RegionRecord]:
        """Return the reply of a member whose rows are recent enough, or of the leader. Return the tablet's record, too.

        `ask` makes the request for a tablet and a bound; the bound 0 demands the latest rows.
        """
        deadline_s = time.monotonic() + wait_s

        def purpose(bound_ms: int) -> CallPurpose[P]:
            return CallPurpose(
                table, placed, lambda region, _: ask(region.region_id, bound_ms), expect, wait_s, deadline_s
            )  # fmt: skip

        if staleness is None:
            return self._call(purpose(0))
        stale = purpose(staleness.bound_ms)
        self._context.used(table)
        region = self._region(stale)
        asked_s = time.monotonic()
        found = StaleCall(self._context, region, stale).run()
        if found is not None:
            staleness.answered(asked_s, found.age_ms or 0)
            return found, region
        asked_s = time.monotonic()
        reply = self._call(purpose(0))
        staleness.answered(asked_s)
        return reply

    def _call(self, purpose: CallPurpose[R]) -> tuple[R, RegionRecord]:
        """Return the reply of the tablet that holds the placed key, and the tablet's record."""
        table = purpose.table
        self._context.used(table)
        while True:
            region = self._region(purpose)
            try:
                return RegionCall(self._context, region, purpose).run(), region
            except RelocateError:
                self._relocate(purpose, region)

    def _relocate(self, purpose: CallPurpose[R], region: RegionRecord) -> None:
        """Read the record of a region that refuses the key. Wait, unless the region was split or merged already."""
        now: RegionRecord | None = region
        # A split goes on when the store is back.
        with contextlib.suppress(StoreSilentError, KazooException, CorruptZnode):
            now = self._locator.refresh(purpose.table, region.region_id, until_s=purpose.deadline_s)
        if now is not None and now.is_replaced:
            self._locator.outdated(purpose.table)
            return
        if now is None or not now.contains(purpose.key):
            self._locator.forget(purpose.table)
        self._pause(purpose, PAUSE_FIRST_S, f"region {region.region_id} does not hold the key, or is being split")

    def _region(self, purpose: CallPurpose[R]) -> RegionRecord:
        """Return the region of the key, once it can be called."""
        table, until_s = purpose.table, purpose.deadline_s
        pause_s = PAUSE_FIRST_S
        while True:
            with store_errors(table, purpose.key):
                region = require(table, self._locator.region_at(table, purpose.key, until_s=until_s))
                if region.is_tablet and region.state is TabletState.RUNNING:
                    self._find_servers(region, until_s)
                    return region
            # A tablet that is still being created may be replaced by another one later.
            self._pause(purpose, pause_s, f"region {region.region_id} is {region.state.value}")
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
            with store_errors(table, purpose.key):
                self._locator.refresh(table, region.region_id, until_s=until_s)

    def _pause(self, purpose: CallPurpose[R], pause_s: float, problem: str) -> None:
        """Wait. Raise Unavailable at the deadline."""
        left_s = purpose.deadline_s - time.monotonic()
        time.sleep(max(0.0, min(pause_s, left_s)))
        if left_s <= pause_s:
            raise Unavailable(
                f"{purpose.table}: {purpose.key!r}: no answer within {shown_s(purpose.wait_s)} s; {problem}"
            )

    def _find_servers(self, region: RegionRecord, until_s: float) -> None:
        """Read the facts that a first call needs from the store: the cluster's id, and the addresses of the members.

        Raise StoreSilentError, KazooException if no member's address is known.
        """
        hints = self._context.hints
        if hints.knows_addresses(region):
            return
        members = [one.uuid for one in region.members]
        unknown = [server for server in members if hints.address(server) is None]
        if len(unknown) == len(members):
            self._locator.learn_cluster(until_s=until_s)
            self._context.read_addresses(unknown, until_s)
        elif unknown and hints.is_first_use(region.region_id):
            with contextlib.suppress(StoreSilentError, KazooException):
                self._context.read_addresses(unknown, min(until_s, time.monotonic() + ADDRESS_S))
