"""Calls to the server that has a key's region open, retried until they succeed or time out.

Retries depend on the error code:

    nothing was done   not_serving, wrong_server, no_lease, unreachable, busy, wrong_region: find the region's current
                       location and retry, for every call
    outcome unknown    timeout, connection_lost, fenced, superseded: retry if the request is idempotent, else raise
                       OutcomeUnknown. Reads, puts and deletes by key are idempotent (`regionserver.kv.messages`
                       explains why a late first copy cannot undo later writes)
    permanent          every other code (a key that is too long, a full region): raise Refused at once

A region that is open nowhere because its table is disabled raises TableDisabled at once.

Every call ends within its `timeout_s`, by default `TIMEOUT_S`. The first attempt gets `ATTEMPT_TIMEOUT_S` of it: a
frozen server accepts connections but never replies, and its regions will soon move. Each timeout doubles the limit of
the next attempt, because the server may also be slow.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
from kazoo.exceptions import KazooException

from coord.errors import shown_s
from coord.rpc.wire import Code, RpcError
from regions.records.model import RegionRecord
from regions.records.znodes import CorruptZnode
from regionserver.client.connections import Connections
from regionserver.client.errors import (
    NOTHING_DONE,
    UNKNOWN,
    Attempt,
    OutcomeUnknown,
    TableDisabled,
    Unavailable,
    record_damaged,
    refused,
    require,
    words_of,
)
from regionserver.client.locator import NoRegion, RegionLocator
from regionserver.client.store import StoreSilentError
from regionserver.kv.messages import WRONG_REGION
from regionserver.request_gate import NOT_SERVING, Place

T = TypeVar("T", bound=msgspec.Struct)

ATTEMPT_TIMEOUT_S: Final = 1.0
#: Pause before the store is read again for a region that is not open, doubling up to the second value.
PAUSE_FIRST_S: Final = 0.01
PAUSE_MAX_S: Final = 0.2
#: Time limit for reading a region's current location; afterwards the cached location is tried again.
REFRESH_S: Final = 3.0


class SharedCalls:
    """Calls to regions that one server at a time has open, for any thread."""

    def __init__(
        self,
        locator: RegionLocator,
        connections: Connections,
        attempt_timeout_s: float,
        on_attempt: Callable[[Attempt], object],
    ) -> None:
        self.locator = locator
        self._connections = connections
        self._attempt_timeout_s = attempt_timeout_s
        self._on_attempt = on_attempt

    def call(
        self,
        table: str,
        key: str,
        find: Callable[[float], RegionRecord | None],
        ask: Callable[[Place, RegionRecord, int], msgspec.Struct],
        expect: type[T],
        wait_s: float,
        *,
        is_repeatable: bool = True,
    ) -> T:
        """Send requests to the region that `find(deadline)` returns, until one succeeds.

        `key` is for error messages; the call ends within `wait_s`.
        """
        deadline_s = time.monotonic() + wait_s
        pause_s = PAUSE_FIRST_S
        attempt_s = self._attempt_timeout_s
        is_outcome_unknown = False
        tried: Place | None = None
        for attempt in itertools.count():
            region: RegionRecord | None = None
            try:
                region = require(table, find(deadline_s))
                place = Place.of(region)
                if tried is not None and place != tried:
                    pause_s = PAUSE_FIRST_S
                tried = place
                request = ask(place, region, attempt) if place else None
                return self._attempt(place, region, request, expect, attempt_s, deadline_s)
            except RpcError as error:
                problem = error
            except NoRegion as error:
                problem = RpcError(NOT_SERVING, str(error))
            except StoreSilentError as error:
                problem = RpcError(Code.UNREACHABLE, str(error))
            except KazooException as error:
                problem = RpcError(Code.UNREACHABLE, words_of(error))
            except CorruptZnode as error:
                raise record_damaged(table, key, error, may_have_been_done=is_outcome_unknown) from error
            if problem.code not in NOTHING_DONE:
                if problem.code not in UNKNOWN:
                    raise refused(problem, table)
                is_outcome_unknown = True
                if problem.code == Code.TIMEOUT:
                    attempt_s *= 2
                if not is_repeatable:
                    raise OutcomeUnknown(problem.message, may_have_been_done=True)
            try:
                has_moved = self._refresh(table, region, tried, problem, deadline_s)
            except TableDisabled as error:
                error.may_have_been_done = is_outcome_unknown
                raise
            remaining_s = deadline_s - time.monotonic()
            if remaining_s > 0 and not has_moved:
                time.sleep(min(pause_s, remaining_s))
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
            if time.monotonic() >= deadline_s:
                raise Unavailable(
                    f"{table}: {key!r}: no answer within {shown_s(wait_s)} s; last: {problem.message}",
                    may_have_been_done=is_outcome_unknown,
                )
        raise AssertionError("unreachable")

    def _attempt(
        self,
        place: Place | None,
        region: RegionRecord,
        request: msgspec.Struct | None,
        expect: type[T],
        attempt_s: float,
        deadline_s: float,
    ) -> T:
        code = NOT_SERVING
        try:
            if place is None or request is None:
                raise RpcError(NOT_SERVING, f"region {region.region_id} is not open")
            server = self.locator.server(place.server, place.start_code, until_s=deadline_s)
            if server is None:
                raise RpcError(NOT_SERVING, f"region {region.region_id} is not open: its server is not registered")
            within_s = max(0.001, min(attempt_s, deadline_s - time.monotonic()))
            reply = self._connections.call((server.host, server.port), request, expect, within_s)
            code = ""
        except RpcError as error:
            code = error.code
            raise
        finally:
            self._on_attempt(Attempt(region.region_id, code))
        return reply

    def _refresh(
        self, table: str, region: RegionRecord | None, tried: Place | None, problem: RpcError, deadline_s: float
    ) -> bool:
        """Refresh the cached entries that the error makes doubtful. Return True if the region has moved.

        Raise TableDisabled if the region is closed because its table is disabled.
        """
        if region is None or problem.code == Code.BUSY:
            return False
        try:
            if problem.code == WRONG_REGION:
                self.locator.forget(table)
                return False
            # While the store does not answer, the cached location is used.
            until_s = min(deadline_s, time.monotonic() + REFRESH_S)
            if tried is not None and problem.code != NOT_SERVING:
                self.locator.refresh_server(tried.server, until_s=until_s)
            now = self.locator.refresh(table, region.region_id, until_s=until_s)
            if now is not None and now.is_replaced:
                self.locator.outdated(table)  # the region was split or merged: the next attempt finds its daughters
                return True
            is_closed = now is not None and Place.of(now) is None
            if is_closed and self.locator.is_disabled(table, until_s=until_s):
                raise TableDisabled(table)
        except (KazooException, StoreSilentError, CorruptZnode):
            return False
        return now is not None and Place.of(now) not in (None, tried)
