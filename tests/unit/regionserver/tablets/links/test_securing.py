"""Copies while a cluster is being secured: they begin without a proof of the secret, and end when the proof is due."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from coord.peers.guard import PeerGuard
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
    """Links are closed then, and so are copies: both ends look. A copy that began with a proof goes on.

    Tried: no `unproven` in `end_if_revoked`; a dialer that does not set it; a source that does not.
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
