"""Addresses of other servers: from the store and from orders, kept while the store is away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from coord.errors import ConnectionLoss, NoNode
from regions.messages.server import MemberEndpoint
from regions.records import znodes
from regions.records.model import ServerRecord
from regionserver.tablets.neighbors import RETRY_S, Neighbors

PATHS = znodes.Layout("/rk")


class Client:
    """A session with a store that has servers."""

    def __init__(self) -> None:
        self.servers: dict[str, bytes] = {}
        self.is_cut = False
        self.event: Callable[..., None] | None = None

    def put(self, uuid: str, port: int, peer_port: int = 0) -> None:
        record = ServerRecord(uuid, f"h-{uuid}", port, 1, tablets=peer_port > 0, peer_port=peer_port)
        self.servers[uuid] = znodes.encode(record)

    def add_watch(self, path: str, event: Callable[..., None], *, recursive: bool) -> Deferred[None]:
        assert (path, recursive) == (PATHS.servers, True)
        self.event = event
        return self._answer(None)

    def children(self, path: str) -> Deferred[Any]:
        assert path == PATHS.servers
        return self._answer(list(self.servers))

    def multi_read(self, operations: list[Any]) -> Deferred[Any]:
        uuids = [one.path.rpartition("/")[2] for one in operations]
        return self._answer([(self.servers[u], None) if u in self.servers else NoNode(u) for u in uuids])

    def _answer(self, value: Any) -> Deferred[Any]:
        return fail(ConnectionLoss("")) if self.is_cut else succeed(value)


class NeighborsTest(SynchronousTestCase):
    """One server's view."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.learned: list[tuple[str, tuple[str, int]]] = []
        self.listed: list[list[str]] = []
        self.neighbors = Neighbors(
            self.clock, PATHS, lambda *one: self.learned.append(one), lambda names: self.listed.append(sorted(names))
        )
        self.client = Client()

    def begin(self) -> None:
        self.neighbors.begin(self.client)  # type: ignore[arg-type]

    def changed(self, path: str = PATHS.server("a")) -> None:
        assert self.client.event is not None
        self.client.event(4, path, 1)

    def test_addresses_come_from_the_store(self) -> None:
        self.client.put("a", 1, 11)
        self.client.put("b", 2)
        self.begin()
        assert self.neighbors.address_of("a") == ("h-a", 1)
        assert self.neighbors.address_of("b") == ("h-b", 2)
        assert self.neighbors.address_of("c") is None
        assert self.learned == [("a", ("h-a", 11))]
        self.client.put("c", 3, 33)
        self.client.put("a", 4, 44)
        self.changed()
        assert self.learned[1:] == [("a", ("h-a", 44)), ("c", ("h-c", 33))]
        assert self.neighbors.address_of("a") == ("h-a", 4)

    def test_the_list_follows_the_addresses(self) -> None:
        """An unreadable registration still counts as a registration."""
        self.client.put("a", 1, 11)
        self.client.servers["x"] = b"\x00"
        self.begin()
        del self.client.servers["a"]
        self.changed()
        self.client.is_cut = True
        self.changed()
        assert self.listed == [["a", "x"], ["x"]]
        self.neighbors.end()

    def test_what_is_known_outlives_session_and_registration(self) -> None:
        self.client.put("a", 1, 11)
        self.begin()
        self.client.servers.clear()
        self.changed()
        self.neighbors.end()
        self.changed()
        assert self.neighbors.address_of("a") == ("h-a", 1)
        assert self.neighbors.known() == [("a", ("h-a", 11))]

    def test_a_broken_connection_is_no_end(self) -> None:
        self.client.put("a", 1, 11)
        self.client.is_cut = True
        self.begin()
        self.client.is_cut = False
        self.clock.advance(RETRY_S)
        assert self.neighbors.address_of("a") == ("h-a", 1)
        self.client.is_cut = True
        self.changed()
        self.neighbors.end()
        self.clock.advance(RETRY_S)

    def test_a_registration_that_cannot_be_read_costs_itself_alone(self) -> None:
        self.client.servers["x"] = b"\x00"
        self.client.put("y", 2, 22)
        self.begin()
        assert self.neighbors.address_of("y") == ("h-y", 2)

    def test_orders_name_members(self) -> None:
        """A member whose server is away has no address."""
        self.neighbors.named([MemberEndpoint(1, "a", "h", 9), MemberEndpoint(2, "b", "", 0)])
        self.neighbors.named([MemberEndpoint(1, "a", "h", 9)])
        assert self.learned == [("a", ("h", 9))]
