"""Follows the list of revoked credentials in this node's own tree, and ends connections and sessions that were proved
by them.

Every node closes its connections with clients and peers. The leader also ends all sessions of a user whose keys are
revoked, connected or not, because a session keeps the identities that it has proved.
"""

from __future__ import annotations

import contextlib
from typing import Final

from twisted.logger import Logger

from coord.security import process, revocation
from coord.security.revocation import Revoked
from coord.server.clients.authentication import RK
from coord.server.clients.listener import ClientListener
from coord.server.node import Node
from coord.server.peers.link import PeerLinks
from coord.tree.command import encode_command
from coord.wire.opcodes import OP_EXPIRE

log: Final = Logger()


class RevokedCredentials:
    """Revocations in the tree of one node. `tick` is called often."""

    def __init__(self, node: Node, clients: ClientListener, links: PeerLinks) -> None:
        self._node = node
        self._clients = clients
        self._links = links
        #: Whether this node led before the latest change. A new leader knows the list already, so no entry is new to
        #: it.
        self._has_led = False
        credentials = process.own()
        self._path = b"" if credentials is None else revocation.path_of(credentials.cluster).encode()
        self._is_securing = process.is_securing()

    def tick(self) -> None:
        """Learn the list; a damaged one is left out."""
        before = revocation.known().revoked
        znode = self._node.machine.tree.find(self._path) if self._path else None
        is_changed = False
        with contextlib.suppress(ValueError):
            is_changed = revocation.learn(bytes(znode.data or b"") if znode is not None else b"")
        if self._is_securing and not process.is_securing():
            self._is_securing, is_changed = False, True
            log.info("clients and peers without a proof are served no longer")
        if is_changed:
            self._clients.close_revoked()
            self._links.close_revoked()
            if self._has_led and self._node.is_ready_to_lead():
                self._end_sessions([one for one in revocation.known().revoked if one not in before])
        self._has_led = self._node.is_ready_to_lead()

    def _end_sessions(self, new: list[Revoked]) -> None:
        """End the sessions of the users whose keys were revoked just now."""
        gone = {(RK, one.principal.encode()) for one in new if one.number}
        sessions = self._node.machine.sessions.sessions
        ended = [one for one in sessions.values() if not gone.isdisjoint(one.identities)] if gone else []
        if ended:
            log.info("{count} sessions end: their credentials are revoked", count=len(ended))
            self._node.propose([encode_command(one.session_id, one.owner, 0, OP_EXPIRE, b"") for one in ended])
