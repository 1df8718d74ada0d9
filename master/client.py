"""A blocking client of the masters for tools and services. The client finds the active master within a deadline.

    client = MasterClient(["a:2183", "b:2183", "c:2183"])
    client.ask(ListTables(), Tables)                    # from the active master
    client.ask(ListTables(Bound(max_ms=2000)), Tables)  # from any master whose state is at most 2 s old
    client.ask(CreateTable("orders"), Tables)           # performed once, however often the client sends the request

Each operation on a table gets a `request_id`. Retries carry the same id, and the master that receives a retry returns
the first result again. `seen_zxid` is the newest zxid of all replies: with `Bound(min_zxid=client.seen_zxid)` any
master's reply includes what this client has written.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec

from coord.rpc.blocking import call_blocking
from coord.rpc.wire import RpcError
from regions.liveness.leader_search import Next, Search, is_repeatable
from regions.messages import NO_BOUND, NOT_LEADER, TIMED_OUT, MasterStatus
from regions.messages.staleness import AsOf, Bound
from regions.records.model import MasterRecord

__all__ = ["MasterClient", "NoLeader", "admin_address", "split_address"]

T = TypeVar("T", bound=msgspec.Struct)

#: Deadline for a request, retries included.
DEADLINE_S: Final = 15.0
#: Timeout of one attempt, in addition to the request's own `wait_ms`. A frozen master must not use up the deadline.
ATTEMPT_S: Final = 3.0
#: Interval at which a request that waits for regions to open is sent again. The master recognizes the request's id.
WAIT_PART_S: Final = 2.0
#: Pause before the next round of attempts.
PAUSE_S: Final = 0.1


class NoLeader(Exception):  # noqa: N818 - a state of affairs
    """Raised when no master has answered the request in time. The text lists every master with its last reply."""


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port`. The caller has validated the address."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def admin_address(master: MasterRecord) -> str:
    """Return `host:port` of a master's admin port, "" without one."""
    return f"{master.admin_host or master.host}:{master.admin_port}" if master.admin_port else ""


def _standby_refusal(message: msgspec.Struct, reply: msgspec.Struct) -> RpcError | None:
    """Return NOT_LEADER for a standby's reply to a request that allows no staleness, else None."""
    if isinstance(reply, MasterStatus) and reply.role == "standby":
        return RpcError(NOT_LEADER, "this master is not the active one", reply.active)
    as_of: AsOf | None = getattr(reply, "as_of", None)
    bound: Bound = getattr(message, "bound", NO_BOUND)
    if as_of is not None and as_of.role == "standby" and bound.is_none:
        return RpcError(NOT_LEADER, "this master is not the active one")
    return None


class MasterClient:
    """See the module docstring. Not thread-safe."""

    def __init__(
        self,
        masters: Sequence[str] = (),
        *,
        discover: Callable[[], Sequence[str]] | None = None,
        cluster: Callable[[], str] = lambda: "",
    ) -> None:
        """`discover` returns further addresses, the likeliest active master first. The client calls it in each round.

        `cluster` returns the id of the caller's cluster, or "" for any. Masters of another cluster reject the request.
        """
        self._search = Search(masters)
        self._cluster = cluster
        self._discover = discover
        #: Newest zxid of all replies.
        self.seen_zxid = 0
        #: Requests sent, retries included.
        self.sent = 0
        #: Age of the last reply that carried one.
        self.as_of: AsOf | None = None

    def ask(self, message: msgspec.Struct, expect: type[T], timeout_s: float = DEADLINE_S) -> T:
        """Return the reply.

        Raises:
            RpcError: the request was rejected, or its outcome is unknown and the request must not be repeated.
            NoLeader: no master has answered within `timeout_s`.
        """
        if getattr(message, "request_id", None) == "":
            message = msgspec.structs.replace(message, request_id=secrets.token_hex(16))
        began = time.monotonic()
        deadline, patience = began + timeout_s, began + getattr(message, "wait_ms", 0) / 1000
        while True:
            if self._discover is not None:
                self._search.know(self._discover())
            self._search.begin()
            while (address := self._search.next()) is not None and time.monotonic() < deadline:
                reply = self._ask_one(address, message, expect, deadline, patience)
                if reply is not None:
                    return reply
            if time.monotonic() + PAUSE_S >= deadline:
                raise NoLeader(self._search.story())
            time.sleep(PAUSE_S)

    def story(self) -> str:
        """Return the masters that the client tries, each with its last error if any, for people."""
        errors = self._search.errors
        return "; ".join(f"{one} {errors[one]}" if one in errors else one for one in self._search.addresses)

    def _ask_one(
        self, address: str, message: msgspec.Struct, expect: type[T], deadline: float, patience: float
    ) -> T | None:
        """Return this master's reply, or None if the client must try another master. Raise RpcError.

        A repeatable request that waits until `patience` is sent again every WAIT_PART_S, to notice a master that
        freezes in the meantime.
        """
        while True:
            now = time.monotonic()
            wait_s = max(0.0, patience - now)
            is_part = is_repeatable(message) and wait_s > WAIT_PART_S
            if wait_s > 0 and is_repeatable(message):
                wait_s = min(wait_s, WAIT_PART_S)
                message = msgspec.structs.replace(message, wait_ms=max(1, int(wait_s * 1000)))
            try:
                timeout_s = min(deadline - now, ATTEMPT_S + wait_s)
                self.sent += 1
                reply = call_blocking(
                    split_address(address), message, timeout_s, expect=expect, cluster=self._cluster()
                )
            except RpcError as error:
                if error.code == TIMED_OUT and is_part and time.monotonic() < deadline:
                    continue
                if self._search.refused(address, message, error) is Next.GIVE_UP:
                    raise
                return None
            refusal = _standby_refusal(message, reply)
            if refusal is not None:
                self._search.refused(address, message, refusal)
                return None
            self._search.answered(address)
            self._note(reply)
            return reply

    def _note(self, reply: msgspec.Struct) -> None:
        as_of: AsOf | None = getattr(reply, "as_of", None)
        if as_of is not None:
            self.as_of = as_of
            self.seen_zxid = max(self.seen_zxid, as_of.zxid)
