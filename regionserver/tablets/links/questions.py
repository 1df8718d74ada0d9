"""Questions to other servers, on the port where they take requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from twisted.internet.defer import Deferred, fail

from coord.peers.stream import Address
from coord.rpc.client import RpcClient
from coord.rpc.wire import RpcError

#: Time limit of a question.
ANSWER_S: Final = 10.0

#: Asks a server: (uuid, message, type of the reply).
Ask = Callable[[str, msgspec.Struct, type[Any]], Deferred[Any]]


class ServerQuestions:
    """Asks servers by their uuid. Every method is called on the reactor's thread."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        #: Returns the address of a server for requests, by its uuid; None if unknown.
        self.address_of: Callable[[str], Address | None] = lambda _server: None
        #: Connections by address, with the number of their open questions. The last answer closes them.
        self._clients: dict[Address, tuple[RpcClient, int]] = {}

    def ask(self, server: str, message: msgspec.Struct, expect: type[Any]) -> Deferred[Any]:
        """Ask a server. Fires with its answer, or fails with RpcError."""
        address = self.address_of(server)
        if address is None:
            return fail(RpcError("UNREACHABLE", f"the address of server {server} is not known"))
        client, count = self._clients.get(address) or (RpcClient(self._reactor, *address), 0)
        self._clients[address] = client, count + 1

        def answered(result: object) -> object:
            left = self._clients[address][1] - 1
            if left:
                self._clients[address] = client, left
            else:
                del self._clients[address]
                client.close()
            return result

        asked: Deferred[Any] = client.call(message, ANSWER_S, expect=expect)
        return asked.addBoth(answered)
