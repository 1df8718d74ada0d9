"""Addresses of the other servers, as they are registered in the store.

A server needs two addresses of another server: the one for members, and the one for clients (for the hint to a leader).
They come from the store, and from the orders that make replicas, and are kept while the store is unreachable. Members
also exchange their addresses, so the groups themselves do not need the store. A server that is not registered may be
dead or retired for good, so the links get the list of registered servers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

from twisted.internet.defer import ensureDeferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from coord.client.ops import GetData
from coord.client.session import EVENT_GAP, ZkClient
from coord.errors import NoNode, OperationError
from regions.messages.server import MemberEndpoint
from regions.records import znodes
from regions.records.model import ServerRecord
from regions.records.znodes import CorruptZnode, Layout

log = Logger()

Address = tuple[str, int]

#: Pause before the registrations are read again after an error of the store.
RETRY_S: Final = 1.0
#: Number of records in one read.
READ_MAX: Final = 100


class Neighbors:
    """The other servers of the cluster; `begin` and `end` delimit each session with the store."""

    def __init__(
        self,
        reactor: Any,
        paths: Layout,
        learned: Callable[[str, Address], None],
        listed: Callable[[Collection[str]], None],
    ) -> None:
        """`learned` is called with a server's uuid and its address for members.

        `listed` is called with the uuids of all registered servers, after their addresses.
        """
        self._reactor = reactor
        self._paths = paths
        self._learned = learned
        self._listed = listed
        self._for_members: dict[str, Address] = {}
        self._for_requests: dict[str, Address] = {}
        self._client: ZkClient | None = None
        self._is_reading = False
        self._read_again = False
        self._timer: IDelayedCall | None = None

    def address_of(self, uuid: str) -> Address | None:
        """Return the address at which a server answers clients, None if unknown."""
        return self._for_requests.get(uuid)

    def known(self) -> list[tuple[str, Address]]:
        """Return the known addresses for members."""
        return list(self._for_members.items())

    def named(self, members: Iterable[MemberEndpoint]) -> None:
        """Add the addresses that an order names."""
        for one in members:
            if one.host and one.peer_port:
                self._learn(one.uuid, (one.host, one.peer_port))

    def begin(self, client: ZkClient) -> None:
        """Read the servers, and read them again whenever a server registers or leaves."""
        self._client = client
        watching = client.add_watch(self._paths.servers, self._changed, recursive=True)
        watching.addCallbacks(lambda _: self._refresh(), self._not_read)

    def end(self) -> None:
        """Stop reading; keep the known addresses."""
        self._client = None
        if self._timer is not None and self._timer.active():
            self._timer.cancel()

    def _changed(self, event_type: int, path: str, zxid: int) -> None:  # noqa: ARG002 - the list shows more
        if event_type == EVENT_GAP or path != self._paths.servers:
            self._refresh()

    def _refresh(self) -> None:
        self._read_again = True
        if not self._is_reading and self._client is not None:
            self._is_reading = True
            ensureDeferred(self._read(self._client)).addErrback(self._not_read)

    async def _read(self, client: ZkClient) -> None:
        try:
            while self._read_again and self._client is client:
                self._read_again = False
                names = await client.children(self._paths.servers)
                paths = [self._paths.server(name) for name in names]
                for at in range(0, len(paths), READ_MAX):
                    some = paths[at : at + READ_MAX]
                    results = await client.multi_read([GetData(path) for path in some])
                    for path, result in zip(some, results, strict=True):
                        self._take(path, result)
                if self._client is client:
                    self._listed(names)
        finally:
            self._is_reading = False

    def _take(self, path: str, result: object) -> None:
        if isinstance(result, NoNode):
            return
        if isinstance(result, OperationError):
            raise result
        assert isinstance(result, tuple), f"expected a pair as the result of a read, got {result!r}"
        try:
            record: ServerRecord = znodes.decode_server(result[0], path)
        except CorruptZnode as error:
            log.warn("cannot read a server's address: {error}", error=error)
            return
        self._for_requests[record.uuid] = (record.host, record.port)
        if record.tablets and record.peer_port:
            self._learn(record.uuid, (record.host, record.peer_port))

    def _learn(self, uuid: str, address: Address) -> None:
        if self._for_members.get(uuid) != address:
            self._for_members[uuid] = address
            self._learned(uuid, address)

    def _not_read(self, failure: Failure) -> None:
        failure.trap(OperationError)  # type: ignore[no-untyped-call]
        if self._client is not None:
            self._timer = self._reactor.callLater(RETRY_S, self._refresh)
