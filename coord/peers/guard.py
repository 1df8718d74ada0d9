"""Authentication of peers: by certificates, a shared secret, both, or (on a private network) neither.

With certificates the whole link uses TLS. Both ends need a certificate of the cluster's own authority before any frame
of the peer protocol is read. With `verify_host` a certificate must also name the host of its node, so that the
certificate of one node is of no use to another.

Both ends prove a shared secret before the hello. The secret itself is never sent:

    dialer                                       listener
    CHALLENGE(n1)            ---------------->
                             <----------------   COUNTER(n2, HMAC-SHA-256(secret, "listener" n1 n2))
    PROOF(HMAC(secret, "dialler" n1 n2)), hello ->

n1 and n2 are new for every connection. The secret authenticates peers. It neither encrypts the frames nor protects them
from modification: use TLS for that. The spelling "dialler" is part of the protocol.
"""

from __future__ import annotations

import hmac
import ssl
from collections.abc import Callable
from typing import Final

from coord.errors import RemoteProtocolError
from coord.peers.framing import CHALLENGE, COUNTER, PROOF, frame
from coord.tls.context import Engine, TlsFiles, client_context, server_context

NONCE_BYTES: Final = 32
_MAC_BYTES: Final = 32
NO_PROOF: Final = "does not prove that it has the peers' secret"
_LISTENER: Final = b"listener"
_DIALER: Final = b"dialler"


class Handshake:
    """The challenge-response for the shared secret on one connection, for either end."""

    def __init__(self, secret: bytes, nonce: bytes) -> None:
        """`nonce` has NONCE_BYTES unpredictable bytes, used for this connection only."""
        assert len(nonce) == NONCE_BYTES
        #: True after the other end has proved that it has the secret.
        self.is_done = False
        self._secret = secret
        self._nonce = nonce
        #: At the listener: the dialer's nonce.
        self._dialer_nonce = b""

    def challenge(self) -> bytes:
        """Return the dialer's first frame."""
        return frame(CHALLENGE, self._nonce)

    def counter(self, kind: int, body: bytes) -> bytes:
        """At the listener: return the reply frame, or b"" after the dialer's proof.

        Raise RemoteProtocolError for a wrong or missing proof.
        """
        if kind == CHALLENGE and not self._dialer_nonce and len(body) == NONCE_BYTES:
            self._dialer_nonce = body
            return frame(COUNTER, self._nonce + self._mac(_LISTENER, body, self._nonce))
        if kind != PROOF or not self._dialer_nonce:
            raise RemoteProtocolError(NO_PROOF)
        self._check(body, self._mac(_DIALER, self._dialer_nonce, self._nonce))
        return b""

    def prove(self, kind: int, body: bytes) -> bytes:
        """At the dialer: return the reply to the listener's frame. Raise RemoteProtocolError."""
        if kind != COUNTER or len(body) != NONCE_BYTES + _MAC_BYTES:
            raise RemoteProtocolError(NO_PROOF)
        nonce = body[:NONCE_BYTES]
        self._check(body[NONCE_BYTES:], self._mac(_LISTENER, self._nonce, nonce))
        return frame(PROOF, self._mac(_DIALER, self._nonce, nonce))

    def _check(self, given: bytes, wanted: bytes) -> None:
        if not hmac.compare_digest(given, wanted):
            raise RemoteProtocolError("has another secret than this node")
        self.is_done = True

    def _mac(self, role: bytes, first: bytes, second: bytes) -> bytes:
        return hmac.digest(self._secret, role + first + second, "sha256")


class PeerGuard:
    """A node's settings for the authentication of its peers."""

    def __init__(self, token: Callable[[int], bytes], *, secret: bytes = b"", tls: TlsFiles | None = None) -> None:
        """`token(n)` returns n unpredictable bytes. Raise ConfigError for unusable certificates."""
        self._token = token
        self._secret = secret
        self._server = server_context(tls) if tls is not None else None
        #: TLS context of connections that this node opens.
        self.client: ssl.SSLContext | None = client_context(tls) if tls is not None else None
        #: True if a peer's certificate must name the host of the peer.
        self.verifies_host: bool = tls is not None and tls.verify_host

    def is_open(self) -> bool:
        """Return True if peers are not authenticated."""
        return not self._secret and self._server is None

    def engine(self, *, is_server: bool, host: str = "") -> Engine | None:
        """Return the TLS engine of a new connection, None without certificates; `host` is the dialed host."""
        context = self._server if is_server else self.client
        named = host if self.verifies_host and not is_server else ""
        return Engine(context, is_server=is_server, host=named) if context is not None else None

    def handshake(self) -> Handshake | None:
        """Return the challenge-response for a new connection, None without a secret."""
        return Handshake(self._secret, self._token(NONCE_BYTES)) if self._secret else None
