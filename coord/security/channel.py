"""The security of one connection, without a socket: first a handshake, then the bytes of the protocol above.

    channel.start(local, remote)           once, when the socket is connected
    plain = channel.receive(data)          for every read; raises Unproven
    wire = channel.send(plain)             for every write; holds bytes back until the handshake is done
    wire = channel.take()                  after every `start` and `receive`: further bytes to write

When `is_plain` is True the channel is finished and the caller may drop it. From then on a request costs no more than on
an open connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from coord.errors import CoordError
from coord.security.handshake import DialingEnd, HandshakeError, KeyOf, ListeningEnd, refusal
from coord.security.principal import NOBODY, Principal
from coord.security.revocation import ShownCredential

#: First bytes of a stream without a proof (`coord.rpc.wire`).
OPEN_GREETING: Final = b"RKRP"
IS_SECURED: Final = (
    "the cluster is secured and accepts no caller without a proof: give --certs-dir DIR (RK_CERTS_DIR) with credentials"
    " that `rk certs issue` has made"
)
IS_OPEN: Final = (
    "the daemon is open, it proves nothing to its callers: omit --certs-dir (RK_CERTS_DIR), or start the daemon with it"
)


class Unproven(CoordError):  # noqa: N818 - a state of affairs
    """The other end has not proved who it is, or rejects our proof. The text is a sentence for people.

    `take` returns the bytes to write before the connection is closed. `is_open_caller`: the caller speaks the protocol
    without a proof, and can be rejected in the words of the protocol. The same holds for a caller whose certificate is
    revoked: `is_done` of its channel is True. `is_open_daemon`: the listener proves nothing, because it runs without
    credentials.
    """

    def __init__(
        self, why: str, *, is_open_caller: bool = False, is_revoked: bool = False, is_open_daemon: bool = False
    ) -> None:
        super().__init__(why)
        self.is_open_caller = is_open_caller
        self.is_revoked = is_revoked
        self.is_open_daemon = is_open_daemon


class ProofChannel:
    """The base of both forms of proof."""

    def __init__(self) -> None:
        #: The identity of the other end, once proved.
        self.peer: Principal = NOBODY
        #: The credential by which the other end has proved its identity; None while nothing can revoke it.
        self.shown: ShownCredential | None = None
        self.is_done = False
        #: True if the other end has proved nothing and is served all the same: the cluster is being secured.
        self.is_unproven = False
        #: True once bytes pass through unchanged.
        self.is_plain = False
        self._out = b""
        self._held: list[bytes] = []

    def start(self, local: str, remote: str) -> None:
        """Begin the handshake. The arguments are the addresses `host:port` of the socket's two ends."""
        raise NotImplementedError

    def receive(self, data: bytes) -> bytes:
        """Return the plain bytes in `data`. Raise Unproven."""
        raise NotImplementedError

    def send(self, data: bytes) -> bytes:
        """Return what to write to the socket for these plain bytes, b"" while the handshake is under way."""
        if self.is_done:
            return data
        self._held.append(data)
        return b""

    def take(self) -> bytes:
        """Return further bytes to write to the socket."""
        out, self._out = self._out, b""
        return out

    def _finish(self, peer: Principal) -> bytes:
        """Note the end of the handshake. Return the plain bytes that were held back."""
        self.peer, self.is_done = peer, True
        held = b"".join(self._held)
        self._held.clear()
        return held


class DialingChannel(ProofChannel):
    """The end that opens the connection, and proves that it has the key of an identity."""

    def __init__(self, who: Principal, cluster: str, number: int, key: bytes, nonce: bytes, wanted: str = "") -> None:
        super().__init__()
        self._proof = (who, cluster, number, key, nonce, wanted)
        self._dialer: DialingEnd | None = None

    def start(self, local: str, remote: str) -> None:  # noqa: ARG002
        """Say hello."""
        who, cluster, number, key, nonce, wanted = self._proof
        self._dialer = DialingEnd(who, cluster, number, key, nonce=nonce, address=remote, wanted=wanted)
        self._out = self._dialer.begin()

    def receive(self, data: bytes) -> bytes:
        """See the base."""
        assert self._dialer is not None, "start has not been called"
        if self.is_plain:
            return data
        if data.startswith(OPEN_GREETING):
            raise Unproven(IS_OPEN, is_open_daemon=True)
        try:
            reply, rest = self._dialer.receive(data)
        except HandshakeError as error:
            raise Unproven(str(error)) from error
        self._out += reply
        if self._dialer.is_done:
            self.is_plain = True
            self._out += self._finish(self._dialer.peer)
        return rest


class ListeningChannel(ProofChannel):
    """The end that accepts the connection and demands the proof of a key."""

    def __init__(
        self,
        who: Principal,
        cluster: str,
        key_of: KeyOf,
        nonce: bytes,
        admits_open: Callable[[], bool] = lambda: False,
    ) -> None:
        """`admits_open` returns True while callers without a proof are served, too."""
        super().__init__()
        self._proof = (who, cluster, key_of, nonce)
        self._admits_open = admits_open
        self._listener: ListeningEnd | None = None
        self._first = b""

    def start(self, local: str, remote: str) -> None:  # noqa: ARG002
        """Wait for the hello."""
        who, cluster, key_of, nonce = self._proof
        self._listener = ListeningEnd(who, cluster, key_of, nonce=nonce, address=local)

    def receive(self, data: bytes) -> bytes:
        """See the base."""
        assert self._listener is not None, "start has not been called"
        if self.is_plain:
            return data
        if len(self._first) < len(OPEN_GREETING):
            # The first bytes of the open protocol and of the handshake are alike.
            self._first = data = self._first + data
            if data.startswith(OPEN_GREETING):
                return self._admit_open(data)
            if OPEN_GREETING.startswith(data):
                return b""
        try:
            reply, rest = self._listener.receive(data)
        except HandshakeError as error:
            self._out = refusal(str(error))
            raise Unproven(str(error)) from error
        self._out += reply
        if self._listener.is_done:
            self.is_plain = True
            self.shown = ShownCredential(self._listener.peer, self._listener.number)
            self._out += self._finish(self._listener.peer)
        return rest

    def _admit_open(self, data: bytes) -> bytes:
        """Return the plain bytes of a caller without a proof. Raise Unproven unless such callers are served, too."""
        if not self._admits_open():
            raise Unproven(IS_SECURED, is_open_caller=True)
        self.is_plain = self.is_unproven = True
        self._out += self._finish(NOBODY)
        return data


def address_of(host: object, port: object) -> str:
    """Return `host:port` as both ends of a connection write it: an IPv4 address within IPv6 as IPv4."""
    text = str(host).partition("%")[0]
    if text.startswith("::ffff:") and "." in text:
        text = text[len("::ffff:") :]
    return f"[{text}]:{port}" if ":" in text else f"{text}:{port}"
