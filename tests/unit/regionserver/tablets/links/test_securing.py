"""Copies while a cluster is being secured: they begin without a proof of the secret, and end when the proof is due."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest

from coord.peers.guard import PeerGuard
from regionserver.tablets.copying import wire
from regionserver.tablets.copying.reactor_calls import ReactorCalls
from regionserver.tablets.copying.source import CopySources
from regionserver.tablets.links.channel import Channel, ChannelLost
from regionserver.tablets.links.own_server import CopyConnection
from tests.support.store_nodes import SeededRng
from tests.unit.regionserver.tablets.links.servers import DEADLINE_S, SECRET, Machine


class Securing:
    """Whether the cluster is being secured."""

    def __init__(self) -> None:
        self.holds = True

    def guard(self) -> PeerGuard:
        """Return the guard of a server that has been restarted with the secret."""
        return PeerGuard(SeededRng(5).token, secret=SECRET, is_securing=lambda: self.holds)


@pytest.mark.parametrize("proves", ["neither end", "both ends"])
@pytest.mark.parametrize("asks", ["the source", "the dialer"])
def test_a_copy_without_a_proof_ends_when_the_proof_is_due(machine: Machine, proves: str, asks: str) -> None:
    """Then links and copies are closed, because both ends check. A copy that began with a proof continues.

    Tried: no `unproven` in `end_if_revoked`; a dialer that does not set it.
    """
    securing = Securing()
    a = machine.server("a", guarded=securing.guard() if proves == "both ends" or asks == "the source" else None,
                       secret=None)  # fmt: skip
    b = machine.server("b", guarded=securing.guard() if proves == "both ends" or asks == "the dialer" else None,
                       secret=None)  # fmt: skip
    served: list[CopyConnection] = []
    a.links.serve_copies(served.append)
    with ThreadPoolExecutor(1) as pool:
        dialing = pool.submit(b.links.dial_copy, "a", a.address)
        machine.until(lambda: served or dialing.done(), "a connection for a copy")
        if not served:  # the source has no secret: the dialer has learned that, and dials without a proof
            assert isinstance(dialing.exception(), ChannelLost)
            dialing = pool.submit(b.links.dial_copy, "a", a.address)
            machine.until(lambda: served, "a connection for a copy")
        (connection,) = served
        connection.sock.settimeout(DEADLINE_S)
        connection.sock.sendall(connection.answer)
        dialed = dialing.result(DEADLINE_S)
        source = Channel(connection.sock, connection.tls, "server b")
        source.unproven = connection.unproven
        source.established()
        end = source if asks == "the source" else dialed
        other = dialed if asks == "the source" else source
        try:
            end.end_if_revoked()
            securing.holds = False
            end.end_if_revoked()
            if proves == "both ends":
                end.send(1, b"more")
                assert bytes(other.receive()[1]) == b"more"
            else:
                with pytest.raises(ChannelLost, match="has closed the connection"):
                    other.receive()
        finally:
            dialed.close()
            source.close()


def test_a_source_ends_its_copies_without_a_proof_when_the_proof_is_due(machine: Machine) -> None:
    """Tried: without `channel.unproven` in `CopySources.serve` the connection stays."""
    securing = Securing()
    a = machine.server("a", guarded=securing.guard(), secret=None)
    b = machine.server("b", guarded=None, secret=None)
    sources = CopySources(ReactorCalls(machine.reactor), Mock(), {}, Mock(), 0)
    a.links.serve_copies(sources.serve)
    with ThreadPoolExecutor(1) as pool:
        dialing = pool.submit(b.links.dial_copy, "a", a.address)
        machine.until(dialing.done, "a connection for a copy")
        dialed = dialing.result(0)
        try:
            sources.revocations_changed()
            refused = pool.submit(_begin, dialed)
            machine.until(refused.done, "an answer of the source")
            assert isinstance(refused.result(0), wire.CopyRefused)
            securing.holds = False
            sources.revocations_changed()
            with pytest.raises(ChannelLost, match="has closed the connection"):
                dialed.receive()
        finally:
            dialed.close()


def _begin(channel: Channel) -> wire.Answer:
    channel.send(wire.ASK, wire.encode(wire.BeginCopy("t", 1, 2)))
    return wire.decode_answer(channel.receive()[1])
