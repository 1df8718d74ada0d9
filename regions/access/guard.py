"""The guard of one process: checks each request, and sums up the refused ones. Pure: clock and timer are passed in."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from coord.rpc.wire import RpcError
from coord.security.principal import SERVER, Principal
from regions.access.permissions import AGE_MAX_S, FindTable, Permissions
from regions.access.refusals import SPAN_S, Refusals
from regions.messages.codes import FORBIDDEN
from regions.messages.heartbeat import Heartbeat
from regions.records.znodes import CorruptZnode, decode_grants

_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


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

        `refused` gets the lines of a summary of refused requests. `damaged` gets the problem if the grants in the store
        cannot be read; the guard continues with the grants that it knows, until they are too old.
        """
        self.permissions = Permissions(now_s, age_max_s)
        self._later = later
        self._refused = refused
        self._damaged = damaged
        self._refusals = Refusals()
        self._damage = ""
        #: The certificates' names by the uuids of their servers, and the reverse. Bounded by the number of names.
        self._names: dict[str, str] = {}
        self._uuids: dict[str, str] = {}

    def problem(self) -> str:
        """Return the fault of the grants in the store, and until when the former grants are used; "" without a
        fault."""
        if not self._damage:
            return ""
        age_s, age_max_s = self.permissions.age_s(), self.permissions.age_max_s
        if age_s is None or age_s > age_max_s:
            return f"the grants in the store are damaged, requests of users are rejected: {self._damage}"
        left_s = age_max_s - age_s
        return f"the grants in the store are damaged, the last good ones are used for {left_s:.0f} s: {self._damage}"

    def seen(self, data: bytes, _version: int, began_s: float) -> bool:
        """Take in the value of `/grants` from a read that began at `began_s`. Return False if it is damaged."""
        try:
            record = decode_grants(data)
        except CorruptZnode as error:
            if str(error) != self._damage:
                self._damage = str(error)
                self._damaged(self.problem())
            return False
        self._damage = ""
        self.permissions.learn(record, began_s)
        return True

    def check(self, who: Principal, request: Any, find_table: FindTable) -> None:
        """Raise RpcError if `who` may not send this request, or if the guard cannot decide this now."""
        try:
            self.permissions.check(who, request, find_table)
            if who.kind == SERVER and isinstance(request, Heartbeat) and not self._is_sender(who, request.server.uuid):
                raise RpcError(FORBIDDEN, f"{who} may not send the heartbeat of server {request.server.uuid}")
        except RpcError as error:
            if error.code == FORBIDDEN:
                self._note(who, request, error)
            raise

    def stop(self) -> None:
        """Write a summary of the requests refused since the last one, because the process ends."""
        if lines := self._refusals.take():
            self._refused(lines)

    def _is_sender(self, who: Principal, uuid: str) -> bool:
        """Return whether `who` is the server with this uuid.

        A key proves the uuid. A certificate has a name that an operator chose: the name that sends a uuid's first
        heartbeat keeps the uuid, and a name has one uuid at a time (a server with an empty directory draws a new one).
        """
        if who.name == uuid:
            return True
        if _UUID.fullmatch(who.name) or self._names.get(uuid, who.name) != who.name:
            return False
        former = self._uuids.get(who.name)
        if former != uuid:
            self._names.pop(former or "", None)
            self._names[uuid], self._uuids[who.name] = who.name, uuid
        return True

    def _note(self, who: Principal, request: Any, error: RpcError) -> None:
        if self._refusals.note(str(who), f"{type(request).__name__}: {error.message}"):
            self._later(SPAN_S, self._summarize)

    def _summarize(self) -> None:
        self._refused(self._refusals.take())
