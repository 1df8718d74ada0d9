"""Who may speak as a peer: certificates, a shared secret, both, or (on a network of its own) anybody.

With certificates the whole link is TLS, both ends show one that the cluster's own authority issued, and nothing of the
peers' protocol is read before that. Where that is asked for, each must also be for the host at which the node is known
to be: who has one node's certificate cannot speak as another. A shared secret is proved in front of the hello, by both
ends, without being sent:

    dialler                                      listener
    CHALLENGE(n1)            ---------------->
                             <----------------   COUNTER(n2, HMAC-SHA-256(secret, "listener" n1 n2))
    PROOF(HMAC(secret, "dialler" n1 n2)), hello ->

n1 and n2 are new for every connection. A secret keeps strangers out; it hides nothing from those who can listen, and
does not bind what follows: for that there is TLS.
"""

from __future__ import annotations

import hmac
import ssl
from collections.abc import Callable
from typing import Final

from coord.errors import RemoteProtocolError
from coord.server.peers.codec import CHALLENGE, COUNTER, PROOF, frame
from coord.tls.context import Engine, TlsFiles, client_context, server_context

NONCE_BYTES: Final = 32
_MAC_BYTES: Final = 32
NO_PROOF: Final = "gives no proof of the peers' secret"


class Handshake:
    """One connection's proof of the shared secret, either end."""

    def __init__(self, secret: bytes, nonce: bytes) -> None:
        """`nonce`: NONCE_BYTES that nobody could guess, for this connection alone."""
        self.is_done = False
        self._secret = secret
        self._nonce = nonce
        self._theirs = b""

    def challenge(self) -> bytes:
        """What a dialler sends first."""
        return frame(CHALLENGE, self._nonce)

    def counter(self, kind: int, body: bytes) -> bytes:
        """The listener's part: the frame to answer with, b"" when the dialler is proved. Raises RemoteProtocolError."""
        if kind == CHALLENGE and not self._theirs and len(body) == NONCE_BYTES:
            self._theirs = body
            return frame(COUNTER, self._nonce + self._mac(b"listener", body, self._nonce))
        if kind != PROOF or not self._theirs:
            raise RemoteProtocolError(NO_PROOF)
        self._check(body, self._mac(b"dialler", self._theirs, self._nonce))
        return b""

    def prove(self, kind: int, body: bytes) -> bytes:
        """The dialler's part: the frame that follows the listener's. Raises RemoteProtocolError."""
        if kind != COUNTER or len(body) != NONCE_BYTES + _MAC_BYTES:
            raise RemoteProtocolError(NO_PROOF)
        nonce = body[:NONCE_BYTES]
        self._check(body[NONCE_BYTES:], self._mac(b"listener", self._nonce, nonce))
        return frame(PROOF, self._mac(b"dialler", self._nonce, nonce))

    def _check(self, given: bytes, wanted: bytes) -> None:
        if not hmac.compare_digest(given, wanted):
            raise RemoteProtocolError("has another secret than this node")
        self.is_done = True

    def _mac(self, role: bytes, first: bytes, second: bytes) -> bytes:
        return hmac.digest(self._secret, role + first + second, "sha256")


class PeerGuard:
    """What a node was told about its peers' proofs."""

    def __init__(self, token: Callable[[int], bytes], *, secret: bytes = b"", tls: TlsFiles | None = None) -> None:
        """`token(n)`: n unguessable bytes. Raises ConfigError for certificates that cannot be used."""
        self._token = token
        self._secret = secret
        self._server = server_context(tls) if tls is not None else None
        #: For those that this node dials.
        self.client: ssl.SSLContext | None = client_context(tls) if tls is not None else None

        #: Whether a peer's certificate must name the host where that node is.
        self.verifies_host: bool = tls is not None and tls.verify_host

    def is_open(self) -> bool:
        """Whether anybody may speak as a peer."""
        return not self._secret and self._server is None

    def engine(self, *, is_server: bool, host: str = "") -> Engine | None:
        """TLS for a new connection, if there is any; `host`: whom this node dials."""
        context = self._server if is_server else self.client
        named = host if self.verifies_host and not is_server else ""
        return Engine(context, is_server=is_server, host=named) if context is not None else None

    def handshake(self) -> Handshake | None:
        """The proof of a new connection, if one is asked for."""
        return Handshake(self._secret, self._token(NONCE_BYTES)) if self._secret else None
