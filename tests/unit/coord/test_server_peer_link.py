"""Links between nodes, as far as no real peer is needed to see what they do."""

from __future__ import annotations

import errno
import socket
from typing import Any

import pytest

from coord.server.peer_link import PeerLinks
from coord.server.reactor import TurnReactor
from tests.store_nodes import SeededRng


def test_link_for_which_there_is_no_descriptor_is_dialled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crowd of clients may have taken the last one; when they have gone the peer is to be reached."""

    def refuse(*arguments: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    reactor = TurnReactor()
    node: Any = None
    links = PeerLinks(
        reactor, node_id=1, cluster=bytes(16), incarnation=1, addresses={2: ("127.0.0.1", 9)}, rng=SeededRng(1)
    )
    with monkeypatch.context() as patched:
        patched.setattr(socket, "socket", refuse)
        links.start(node, None)
    [again] = reactor.getDelayedCalls()
    assert again.getTime() - reactor.seconds() < 1
    again.cancel()
    links.stop()
