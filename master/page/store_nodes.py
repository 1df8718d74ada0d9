"""Requests the figures of the store's nodes, while the page has a listener: `mntr` on their client ports.

A browser cannot ask the nodes itself, because its policy allows only this master. `age_ms` is the age of the answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from twisted.internet.protocol import ClientFactory, Protocol, connectionDone
from twisted.python.failure import Failure

from coord.client.access import StoreAccess
from coord.client.secured import Secured
from master.page.figures import StoreNodeFigure

#: Period of the questions.
PERIOD_S: Final = 2.0
#: Time for one answer.
TIMEOUT_S: Final = 2.0
#: Answers that are older are not drawn as curves.
KNOWN_MS: Final = 5_000
_NUMBER: Final = re.compile(r"\d{1,9}(\.\d{1,9})?")
#: Longest answer that is read.
ANSWER_BYTES_MAX: Final = 64 << 10


class StoreNodes:
    """The latest answer of each node. `look` asks all nodes, unless it has just done so."""

    def __init__(self, reactor: Any, addresses: list[str], access: StoreAccess, now_ms: Callable[[], int]) -> None:
        self._reactor = reactor
        self._addresses = addresses
        self._tls = access.tls_context
        self._now_ms = now_ms
        self._answers: dict[str, StoreNodeFigure] = {}
        self._at_ms: dict[str, int] = {}
        self._asked_s = -PERIOD_S

    def look(self) -> list[StoreNodeFigure]:
        """Return the latest answers, and request newer ones. The result is empty before the first answers."""
        now_s, now_ms = self._reactor.seconds(), self._now_ms()
        if now_s - self._asked_s >= PERIOD_S:
            self._asked_s = now_s
            for address in self._addresses:
                self._ask(address)
        found = []
        for address in self._addresses:
            if address in self._answers:
                one = self._answers[address]
                one.age_ms = now_ms - self._at_ms[address]
                found.append(one)
        return found

    def greatest(self, name: str) -> float:
        """Return the greatest value of a figure that a node has named lately, NaN if none has."""
        since_ms = self._now_ms() - KNOWN_MS
        named = [one.values.get(name, "") for one in self._answers.values() if self._at_ms[one.address] > since_ms]
        return max((float(one) for one in named if _NUMBER.fullmatch(one)), default=float("nan"))

    def _ask(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        host = host.strip("[]")

        tls = self._tls()

        def carrier(question: Protocol) -> Protocol:
            inner: Any = question
            return question if tls is None else Secured(inner, tls, host)

        factory = _NodeFactory(self._reactor, carrier, lambda text, trouble: self._answered(address, text, trouble))
        self._reactor.connectTCP(host, int(port), factory, timeout=TIMEOUT_S)

    def _answered(self, address: str, text: str, trouble: str) -> None:
        values = dict(line.removeprefix("zk_").split("\t", 1) for line in text.splitlines() if "\t" in line)
        role = values.get("server_state", "")
        if text and not values:
            trouble = text.strip().splitlines()[0][:100]
        self._answers[address] = StoreNodeFigure(address, role, "" if role else trouble or "does not serve", 0, values)
        self._at_ms[address] = self._now_ms()


class _Question(Protocol):
    def __init__(self, factory: _NodeFactory) -> None:
        self._factory = factory
        self._read = b""

    def connectionMade(self) -> None:
        """Ask."""
        assert self.transport is not None, "a connection has a transport"
        self.transport.write(b"mntr")
        self._timer = self._factory.reactor.callLater(TIMEOUT_S, self._late)

    def _late(self) -> None:
        self.drop("accepts connections and does not answer")

    def drop(self, why: str) -> None:
        """End the connection without an answer."""
        if self._timer.active():
            self._timer.cancel()
        self._factory.done("", why)
        transport: Any = self.transport
        transport.loseConnection()

    def dataReceived(self, data: bytes) -> None:
        """Keep the answer, up to its bound."""
        self._read = (self._read + data)[:ANSWER_BYTES_MAX]

    def connectionLost(self, reason: Failure = connectionDone) -> None:  # noqa: ARG002 - the answer is complete
        """Handle the end: the node closes the connection after its answer."""
        if self._timer.active():
            self._timer.cancel()
            self._factory.done(self._read.decode(errors="replace"), "accepts connections and does not answer")


class _NodeFactory(ClientFactory):
    noisy = False

    def __init__(self, reactor: Any, carrier: Callable[[Protocol], Protocol], done: Callable[[str, str], None]) -> None:
        self.reactor = reactor
        self.done = done
        self._carrier = carrier

    def buildProtocol(self, addr: object) -> Protocol:  # noqa: ARG002
        """Return the protocol of one question."""
        return self._carrier(_Question(self))

    def clientConnectionFailed(self, connector: object, reason: Failure) -> None:  # noqa: ARG002
        """Handle a node that cannot be reached."""
        self.done("", "refuses connections" if "refused" in str(reason.value).lower() else "cannot be reached")
