"""Asks the other masters which servers' heartbeats reach them, while somebody looks at the page."""

from __future__ import annotations

from typing import Any, Final

from coord.errors import CoordError
from coord.rpc.client import RpcClient
from master.process import MasterProcess
from regions import messages as ms

#: Period of the questions.
PERIOD_S: Final = 2.0
#: Answers older than this are not shown.
OUTDATED_S: Final = 10.0
TIMEOUT_S: Final = 2.0


class OtherMasters:
    """The latest answer of each other master."""

    def __init__(self, reactor: Any, master: MasterProcess) -> None:
        self._reactor = reactor
        self._master = master
        self._clients: dict[str, RpcClient] = {}
        self._answers: dict[str, tuple[float, dict[str, int]]] = {}
        self._asked_s = -PERIOD_S

    def look(self) -> dict[str, dict[str, int]]:
        """Return for each other master, by address, the milliseconds since each server's last heartbeat by uuid."""
        now_s = self._reactor.seconds()
        if now_s - self._asked_s >= PERIOD_S:
            self._asked_s = now_s
            self._ask()
        self._answers = {one: kept for one, kept in self._answers.items() if now_s - kept[0] <= OUTDATED_S}
        return {
            address: {uuid: heard_ms + round((now_s - at_s) * 1000) for uuid, heard_ms in heard.items()}
            for address, (at_s, heard) in self._answers.items()
        }

    def _ask(self) -> None:
        others = {f"{one.host}:{one.port}": one for one in self._master.registered if one.uuid != self._master.uuid}
        for address in [one for one in self._clients if one not in others]:
            self._clients.pop(address).close()
            self._answers.pop(address, None)
        for address, one in others.items():
            client = self._clients.get(address)
            if client is None:
                client = self._clients[address] = RpcClient(self._reactor, one.host, one.port, replies=ms.Contacts)
            asked = client.call(ms.ListContacts(), TIMEOUT_S)
            asked.addCallbacks(lambda found, address=address: self._answered(address, found), _no_answer)

    def _answered(self, address: str, found: ms.Contacts) -> None:
        heard = {one.server.uuid: one.heard_ms for one in found.contacts}
        self._answers[address] = (self._reactor.seconds(), heard)

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()


def _no_answer(failure: Any) -> None:
    """Handle a master that does not answer: its old answer becomes outdated."""
    failure.trap(CoordError)
