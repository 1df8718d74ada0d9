"""Challenge and response by the key of an identity, at the begin of an RPC connection. Pure: bytes in, bytes out.

    dialer                                                     listener
    "RKRS" version, HELLO(cluster, who, number, n1,     ---->
                          address, wanted)
                              <----   "RKRS" version, CHALLENGE(who, n2, HMAC(key, "listener" …))   or REFUSAL
    PROOF(HMAC(key, "dialer" …)), requests              ---->

`key` is that of the dialer's identity (`coord.security.keys`); `number` is the number of the secret that it comes from.
n1 and n2 are new for every connection. Each MAC covers all fields that both ends have sent: role, cluster, number, both
identities, the address, the wanted identity, and both nonces. So a proof is invalid on another connection, in the other
direction, for another caller, in another cluster, or at another listener:

- `address` is where the dialer's socket is connected to. A listener rejects a hello for another address than that of
  its own socket, so nobody between two processes can pass a hello on. (This needs equal addresses at both ends: through
  a forwarded port, TLS is the proof.)
- `wanted` is the identity that the dialer expects, "" if any daemon of the cluster will do.

The handshake authenticates the ends; it neither encrypts what follows nor protects it from modification.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable
from typing import Final

import msgspec

from coord.security.principal import DAEMONS, NOBODY, Principal, is_valid

GREETING: Final = b"RKRS" + struct.pack(">H", 1)
NONCE_BYTES: Final = 32
MAC_BYTES: Final = 32
#: Longest frame of a handshake.
FRAME_MAX: Final = 1024
_LENGTH: Final = struct.Struct(">H")
_PURPOSE: Final = "regionkeeper rpc 1"
_LISTENER: Final = "listener"
_DIALER: Final = "dialer"


class CallerHello(msgspec.Struct, array_like=True, tag=0, frozen=True):
    """The dialer's first frame."""

    cluster: str
    kind: str
    name: str
    number: int
    nonce: bytes
    address: str
    wanted: str


class Challenge(msgspec.Struct, array_like=True, tag=1, frozen=True):
    """The listener's frame."""

    kind: str
    name: str
    nonce: bytes
    mac: bytes


class Proof(msgspec.Struct, array_like=True, tag=2, frozen=True):
    """The dialer's second frame."""

    mac: bytes


class Rejection(msgspec.Struct, array_like=True, tag=3, frozen=True):
    """The listener's last frame: a sentence for people."""

    why: str


Message = CallerHello | Challenge | Proof | Rejection
_decoder: Final = msgspec.msgpack.Decoder(Message)

#: Returns the key of an identity by a secret's number; None if this process does not have the secret.
KeyOf = Callable[[Principal, int], "bytes | None"]


class HandshakeError(Exception):
    """The other end has not proved who it is. The connection must be closed."""


class _HandshakeEnd:
    """The part that both ends share: it cuts a stream of bytes into frames of the handshake."""

    def __init__(self, nonce: bytes) -> None:
        assert len(nonce) == NONCE_BYTES
        #: The identity that the other end has proved.
        self.peer = NOBODY
        self.is_done = False
        self._nonce = nonce
        self._buffer = b""
        self._is_greeted = False

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the bytes to send, and the bytes that follow the handshake. Raise HandshakeError."""
        self._buffer += data
        reply = b""
        while not self.is_done:
            message = self._next()
            if message is None:
                return reply, b""
            reply += self._answer(message)
        rest, self._buffer = self._buffer, b""
        return reply, rest

    def _answer(self, message: Message) -> bytes:
        raise NotImplementedError

    def _next(self) -> Message | None:
        """Return the next frame, None until it is complete."""
        if not self._is_greeted:
            if self._buffer[: len(GREETING)] != GREETING[: len(self._buffer)]:
                raise HandshakeError(f"the peer uses another protocol: its first bytes are {self._buffer[:6]!r}")
            if len(self._buffer) < len(GREETING):
                return None
            self._is_greeted = True
            self._buffer = self._buffer[len(GREETING) :]
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > FRAME_MAX:
            raise HandshakeError(f"the peer announced {length} bytes for its proof; the limit is {FRAME_MAX}")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        body, self._buffer = self._buffer[_LENGTH.size : end], self._buffer[end:]
        try:
            message: Message = _decoder.decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise HandshakeError("the peer sent no proof that can be decoded") from error
        return message


class DialingEnd(_HandshakeEnd):
    """The end that opened the connection."""

    def __init__(
        self, who: Principal, cluster: str, number: int, key: bytes, *, nonce: bytes, address: str, wanted: str = ""
    ) -> None:
        super().__init__(nonce)
        self._key = key
        self._hello = CallerHello(cluster, who.kind, who.name, number, nonce, address, wanted)

    def begin(self) -> bytes:
        """Return the first bytes of the connection."""
        return GREETING + _frame(self._hello)

    def _answer(self, message: Message) -> bytes:
        if isinstance(message, Rejection):
            raise HandshakeError(_printable(message.why))
        if not isinstance(message, Challenge) or len(message.nonce) != NONCE_BYTES:
            raise HandshakeError("the peer does not prove that it belongs to the cluster")
        listener = Principal(message.kind, message.name)
        if not hmac.compare_digest(message.mac, _mac(self._key, _LISTENER, self._hello, listener, message.nonce)):
            raise HandshakeError("the peer does not prove that it belongs to the cluster: it has another secret")
        if listener.kind not in DAEMONS:
            raise HandshakeError(f"{listener} answers, which is no daemon")
        if not satisfies(listener, self._hello.wanted):
            raise HandshakeError(f"{listener} answers, but {self._hello.wanted} was expected")
        self.peer, self.is_done = listener, True
        return _frame(Proof(_mac(self._key, _DIALER, self._hello, listener, message.nonce)))


class ListeningEnd(_HandshakeEnd):
    """The end that accepted the connection."""

    def __init__(self, who: Principal, cluster: str, key_of: KeyOf, *, nonce: bytes, address: str) -> None:
        super().__init__(nonce)
        self._who = who
        self._cluster = cluster
        self._key_of = key_of
        self._address = address
        self._hello: CallerHello | None = None
        self._key = b""

    @property
    def number(self) -> int:
        """Return the number of the secret that the caller's key comes from, 0 before its hello."""
        return 0 if self._hello is None else self._hello.number

    def _answer(self, message: Message) -> bytes:
        if self._hello is None and isinstance(message, CallerHello):
            self._key = self._checked(message)
            self._hello = message
            mac = _mac(self._key, _LISTENER, message, self._who, self._nonce)
            return GREETING + _frame(Challenge(self._who.kind, self._who.name, self._nonce, mac))
        if self._hello is None or not isinstance(message, Proof):
            raise HandshakeError("the caller sent something else than its proof")
        if not hmac.compare_digest(message.mac, _mac(self._key, _DIALER, self._hello, self._who, self._nonce)):
            raise HandshakeError(f"the key of {self._hello.kind}:{self._hello.name} is wrong")
        self.peer, self.is_done = Principal(self._hello.kind, self._hello.name), True
        return b""

    def _checked(self, hello: CallerHello) -> bytes:
        """Return the caller's key. Raise HandshakeError for a hello that cannot lead to a proof."""
        if not is_valid(hello.kind, hello.name) or len(hello.nonce) != NONCE_BYTES:
            raise HandshakeError("the caller's hello names no identity")
        if hello.cluster != self._cluster:
            raise HandshakeError("the credentials are those of another cluster: check --certs-dir (RK_CERTS_DIR)")
        if hello.address != self._address:
            raise HandshakeError(
                f"the caller is connected to {hello.address[:64]!r}, but the connection arrived at {self._address}:"
                " through a forwarded port or another process, only TLS is a proof"
            )
        if not satisfies(self._who, hello.wanted):
            raise HandshakeError(f"the caller expects {hello.wanted[:128]!r} here, but this is {self._who}")
        key = self._key_of(Principal(hello.kind, hello.name), hello.number)
        if key is None:
            raise HandshakeError(
                f"the key of {hello.kind}:{hello.name} is of secret {hello.number}, which the cluster does not have;"
                " get a new key by `rk certs issue`"
            )
        return key


def refusal(why: str) -> bytes:
    """Return the bytes that a listener sends before it closes the connection of a caller that speaks this handshake."""
    return GREETING + _frame(Rejection(why[: FRAME_MAX // 2]))


def satisfies(listener: Principal, wanted: str) -> bool:
    """Return True if a listener has the wanted identity, or is of the wanted kind (`server:`). "" accepts any
    daemon."""
    return wanted in ("", f"{listener.kind}:", str(listener))


def _mac(key: bytes, role: str, hello: CallerHello, listener: Principal, nonce: bytes) -> bytes:
    covered = [_PURPOSE, role, hello, listener.kind, listener.name, nonce]
    return hmac.digest(key, msgspec.msgpack.encode(covered), "sha256")


def _frame(message: Message) -> bytes:
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


def _printable(text: str) -> str:
    """Return the text of the other end without control characters, because that end has proved nothing yet."""
    return "".join(one if one.isprintable() else "?" for one in text)
