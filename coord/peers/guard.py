"""Authentication of peers: by certificates, a shared secret, both, or (on a private network) neither.

With certificates the whole link uses TLS. Both ends need a certificate of the cluster's own authority before any frame
of the peer protocol is read. With `verify_host` a certificate must also name the host of its node, so that the
certificate of one node is of no use to another.

Both ends prove a shared secret before the hello. The secret itself is never sent:

    dialer                                       listener
    CHALLENGE(n1, names)     ---------------->
                             <----------------   COUNTER(n2, HMAC-SHA-256(secret, "listener 2" n1 n2 names))
    PROOF(HMAC(secret, "dialer 2" n1 n2 names)), hello ->

n1 and n2 are new for every connection. `names` are the cluster, the dialer and the peer that it looks for. The listener
rejects a challenge that looks for another peer, and then a hello of another peer than the challenge names. So nobody
can listen at the address of one peer and pass the frames on to another one. A dialer that only requests the id of the
cluster sends no names, and cannot send a hello.

Earlier builds send no names. A listener still answers them, with the MACs of that time ("listener", "dialler"), so
that their nodes can be upgraded one by one; a dialer always sends names. The secret authenticates peers. It neither
encrypts the frames nor protects them from modification: use TLS for that.
"""

from __future__ import annotations

import hmac
import ssl
from collections.abc import Callable
from typing import Final

import msgspec

from coord.errors import RemoteProtocolError
from coord.peers.framing import CHALLENGE, COUNTER, PROOF, frame
from coord.security.tls_channel import misnamed, revoked_peer
from coord.tls.context import Engine, TlsFiles
from coord.tls.reloading import TlsContexts

NONCE_BYTES: Final = 32
_MAC_BYTES: Final = 32
NO_PROOF: Final = "does not prove that it has the peers' secret"
#: Rejection of a challenge by a peer without the secret.
NO_SECRET: Final = "this node has no peer secret"
_LISTENER: Final = b"listener"
_DIALER: Final = b"dialler"
_NAMED_LISTENER: Final = b"listener 2"
_NAMED_DIALER: Final = b"dialer 2"


class PeerNames(msgspec.Struct, array_like=True, frozen=True):
    """Cluster, dialer and wanted listener of a link; all empty for a dialer that only requests the id of the
    cluster."""

    cluster: str = ""
    source: str = ""
    destination: str = ""


NO_NAMES: Final = PeerNames()
_decoder: Final = msgspec.msgpack.Decoder(PeerNames)


class Handshake:
    """The challenge-response for the shared secret on one connection, for either end."""

    def __init__(self, secret: bytes, nonce: bytes, names: PeerNames = NO_NAMES) -> None:
        """`nonce` has NONCE_BYTES unpredictable bytes, used for this connection only.

        `names`: at the dialer those of the link; at the listener its own cluster and, as destination, its own name.
        """
        assert len(nonce) == NONCE_BYTES
        self._names = names
        #: At the listener: the names as the dialer sent them; b"" from an earlier build.
        self._sent_names = b""
        #: At the listener: the name that the dialer has proved; None from an earlier build.
        self.source: str | None = None
        #: True after the other end has proved that it has the secret.
        self.is_done = False
        self._secret = secret
        self._nonce = nonce
        #: At the listener: the dialer's nonce.
        self._dialer_nonce = b""

    @property
    def has_begun(self) -> bool:
        """True after a listener has received a challenge."""
        return bool(self._dialer_nonce)

    def challenge(self) -> bytes:
        """Return the dialer's first frame."""
        self._sent_names = msgspec.msgpack.encode(self._names)
        return frame(CHALLENGE, self._nonce + self._sent_names)

    def counter(self, kind: int, body: bytes) -> bytes:
        """At the listener: return the reply frame, or b"" after the dialer's proof.

        Raise RemoteProtocolError for a wrong or missing proof.
        """
        if kind == CHALLENGE and not self._dialer_nonce and len(body) >= NONCE_BYTES:
            self._dialer_nonce, self._sent_names = body[:NONCE_BYTES], body[NONCE_BYTES:]
            if self._sent_names:
                self.source = self._checked(self._sent_names).source
            return frame(COUNTER, self._nonce + self._mac(self._role(_LISTENER), self._dialer_nonce, self._nonce))
        if kind != PROOF or not self._dialer_nonce:
            raise RemoteProtocolError(NO_PROOF)
        self._check(body, self._mac(self._role(_DIALER), self._dialer_nonce, self._nonce))
        return b""

    def objection(self, source: str) -> str:
        """At the listener: return why the hello of peer `source` is rejected after this proof, or ""."""
        if self.source is None or self.source == source:
            return ""
        return f"proved to be peer {self.source or '(nobody)'}, not {source}"

    def prove(self, kind: int, body: bytes) -> bytes:
        """At the dialer: return the reply to the listener's frame. Raise RemoteProtocolError."""
        if kind != COUNTER or len(body) != NONCE_BYTES + _MAC_BYTES:
            raise RemoteProtocolError(NO_PROOF)
        nonce = body[:NONCE_BYTES]
        self._check(body[NONCE_BYTES:], self._mac(_NAMED_LISTENER, self._nonce, nonce))
        return frame(PROOF, self._mac(_NAMED_DIALER, self._nonce, nonce))

    def _checked(self, data: bytes) -> PeerNames:
        """Return the dialer's names. Raise RemoteProtocolError if the dialer looks for another peer."""
        try:
            names = _decoder.decode(data)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise RemoteProtocolError(NO_PROOF) from error
        own = self._names
        if names != NO_NAMES and names.destination != own.destination:
            raise RemoteProtocolError(f"looks for peer {names.destination[:64]!r}, this is {own.destination!r}")
        if names != NO_NAMES and own.cluster and names.cluster != own.cluster:
            raise RemoteProtocolError("belongs to another cluster")
        return names

    def _role(self, role: bytes) -> bytes:
        """Return the role in the MACs of this listener: earlier builds have another one."""
        if not self._sent_names:
            return role
        return _NAMED_LISTENER if role == _LISTENER else _NAMED_DIALER

    def _check(self, given: bytes, wanted: bytes) -> None:
        if not hmac.compare_digest(given, wanted):
            raise RemoteProtocolError("has another secret than this node")
        self.is_done = True

    def _mac(self, role: bytes, first: bytes, second: bytes) -> bytes:
        return hmac.digest(self._secret, role + first + second + self._sent_names, "sha256")


class PeerGuard:
    """A node's settings for the authentication of its peers."""

    def __init__(
        self,
        token: Callable[[int], bytes],
        *,
        secret: bytes = b"",
        tls: TlsFiles | None = None,
        is_securing: Callable[[], bool] = lambda: False,
    ) -> None:
        """`token(n)` returns n unpredictable bytes. `is_securing` returns True while peers without the secret are
        accepted and dialed, too. Raise ConfigError for unusable certificates."""
        self._token = token
        self._is_securing = is_securing
        #: Names of peers that have rejected a challenge for want of the secret: the next hello has no proof.
        self._open_peers: set[str] = set()
        self._secret = secret
        self._contexts = TlsContexts(tls) if tls is not None else None
        #: Cluster and name of this peer, for proofs; set by `introduce`.
        self._own = NO_NAMES
        #: True if a peer's certificate must name the host of the peer, and no other principal of the cluster.
        self.verifies_host: bool = tls is not None and tls.verify_host

    def is_open(self) -> bool:
        """Return True if peers are not authenticated."""
        return not self._secret and self._contexts is None

    def engine(self, *, is_server: bool, host: str = "") -> Engine | None:
        """Return the TLS engine of a new connection, None without certificates; `host` is the dialed host."""
        if self._contexts is None:
            return None
        context = self._contexts.server() if is_server else self._contexts.client()
        return Engine(context, is_server=is_server, host=host if self.verifies_host and not is_server else "")

    def client(self) -> ssl.SSLContext | None:
        """Return the TLS context of a connection that this node opens now, None without certificates."""
        return None if self._contexts is None else self._contexts.client()

    def misnamed(self, tls: Engine | None, kind: str, name: str = "") -> str:
        """Return why the peer's certificate is not valid for `kind:name`. Return "" if it is valid, or if names are not
        checked."""
        revoked = self.revoked(tls)
        if revoked or tls is None or not self.verifies_host:
            return revoked
        return misnamed(tls.peer_uris(), kind, name)

    def revoked(self, tls: Engine | None) -> str:
        """Return why the peer's certificate is worth nothing any more, "" if it is valid. Names do not matter."""
        objection = revoked_peer(tls) if tls is not None else ""
        return f"shows a revoked certificate: {objection}" if objection else ""

    def admits_open(self) -> bool:
        """Return True while links without a proof are accepted, although this node has the secret."""
        return self._contexts is None and self._is_securing()

    def unproven(self, handshake: Handshake | None) -> str:
        """Return why a link that began with this challenge-response may not stand any more, "" if it may."""
        is_proved = not self._secret or (handshake is not None and handshake.is_done)
        return "" if is_proved or self.admits_open() else NO_PROOF

    def refused(self, names: PeerNames, reason: str) -> None:
        """Note a rejection of this node's challenge."""
        if reason == NO_SECRET and self.admits_open():
            self._open_peers.add(names.destination)

    def introduce(self, cluster: str, name: str) -> None:
        """Set this peer's own cluster and name, which accepted connections must look for."""
        self._own = PeerNames(cluster, "", name)

    def accepting(self) -> Handshake | None:
        """Return the challenge-response of an accepted connection, None without a secret."""
        return Handshake(self._secret, self._token(NONCE_BYTES), self._own) if self._secret else None

    def dialing(self, names: PeerNames = NO_NAMES) -> Handshake | None:
        """Return the challenge-response of a connection that this process opens, None without a secret, or if the peer
        has just announced that it has none."""
        if names.destination in self._open_peers:
            self._open_peers.discard(names.destination)
            if self.admits_open():
                return None
        return Handshake(self._secret, self._token(NONCE_BYTES), names) if self._secret else None
