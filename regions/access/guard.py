"""The guard of one process: checks each request, and sums up what it refuses. Pure: clock and timer are passed in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coord.rpc.wire import RpcError
from coord.security.principal import SERVER, Principal
from regions.access.permissions import AGE_MAX_S, FindTable, Permissions
from regions.access.refusals import SPAN_S, Refusals
from regions.messages.codes import FORBIDDEN
from regions.messages.heartbeat import Heartbeat
from regions.records.znodes import CorruptZnode, decode_grants


class Guard:
    """One place for the check of every request to a master or region server."""

    def __init__(
        self,
        now_s: Callable[[], float],
        later: Callable[[float, Callable[[], None]], object],
        refused: Callable[[list[str]], None],
        damaged: Callable[[str], None],
        age_max_s: float = AGE_MAX_S,
    ) -> None:
        """`later` calls a function after some seconds.

        `refused` gets the lines of a summary of refused requests. `damaged` gets the reason why the grants in the store
        cannot be read; the guard goes on with those that it knows, until they are too old.
        """
        self.permissions = Permissions(now_s, age_max_s)
        self._later = later
        self._refused = refused
        self._damaged = damaged
        self._refusals = Refusals()
        self._damage = ""

    def seen(self, data: bytes, _version: int, began_s: float) -> None:
        """Take in the value of `/grants` from a read that began at `began_s`."""
        try:
            record = decode_grants(data)
        except CorruptZnode as error:
            if str(error) != self._damage:
                self._damage = str(error)
                self._damaged(self._damage)
            return
        self._damage = ""
        self.permissions.learn(record, began_s)

    def check(self, who: Principal, request: Any, find_table: FindTable) -> None:
        """Raise RpcError if `who` may not send this request, or if this cannot be decided now."""
        try:
            self.permissions.check(who, request, find_table)
            if who.kind == SERVER and isinstance(request, Heartbeat) and request.server.uuid != who.name:
                raise RpcError(FORBIDDEN, f"{who} may not send the heartbeat of server {request.server.uuid}")
        except RpcError as error:
            if error.code == FORBIDDEN and self._refusals.note(f"{type(request).__name__}: {error.message}"):
                self._later(SPAN_S, self._summarize)
            raise

    def _summarize(self) -> None:
        self._refused(self._refusals.take())
