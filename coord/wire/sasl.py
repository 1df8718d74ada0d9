"""SASL DIGEST-MD5 (RFC 2831), client and server, as ZooKeeper's clients and servers use it.

    client                                                server
    (empty token)  ------------------------------------>
                   <------------------------------------  challenge: realm, nonce, charset, algorithm
    response: username, nonce, cnonce, digest  --------->  check user, nonce and digest
                   <------------------------------------  rspauth: proves that the server knows the secret

The only quality of protection is `auth`: later bytes are not wrapped. The caller supplies the nonces. A peer that fails
learns only the failure. `SaslError` has the reason, for the log, and never contains a secret.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Final

from coord.errors import ProtocolError

#: ZooKeeper's service name and realm in DIGEST-MD5, on every host.
SERVICE: Final = b"zookeeper"
REALM: Final = b"zk-sasl-md5"
#: RFC 2831 §2.1.1 and §2.1.2.
CHALLENGE_BYTES_MAX: Final = 2048
RESPONSE_BYTES_MAX: Final = 4096

_FIRST_USE: Final = b"00000001"
_TOKEN_STOPS: Final = frozenset(b',="\\ \t\r\n')
_SPACE: Final = b" \t\r\n"


class SaslError(ProtocolError):
    """The SASL exchange failed. The text has the reason and may name the user; it never contains a secret."""


class SaslServer:
    """The server side of one exchange. `user` is set when `is_complete` becomes True."""

    def __init__(
        self,
        secret_of: Callable[[str], str | None],
        nonce: bytes,
        *,
        service: bytes = SERVICE,
        realm: bytes = REALM,
    ) -> None:
        """`secret_of` returns the password of a user. `nonce` must be fresh and unpredictable."""
        self.is_complete = False
        self.user = ""
        self._secret_of = secret_of
        self._nonce = nonce
        self._realm = realm
        self._uri = service + b"/" + realm
        self._was_asked = False

    def evaluate(self, token: bytes) -> bytes:
        """Return the reply to the client's token. Raise SaslError, which ends the exchange."""
        if self.is_complete:
            raise SaslError("the exchange is already complete")
        if not self._was_asked:
            if token:
                raise SaslError("the client sent a response before the challenge")
            self._was_asked = True
            parts = (
                b'realm="',
                self._realm,
                b'",nonce="',
                self._nonce,
                b'",charset=utf-8,algorithm=md5-sess,qop="auth"',
            )
            return b"".join(parts)
        return self._check_response(token)

    def _check_response(self, token: bytes) -> bytes:
        """Complete the exchange and return the proof for the client. Raise SaslError for a wrong response."""
        given = parse_directives(token, RESPONSE_BYTES_MAX)
        charset = _charset(given)
        name = given.get("username", b"")
        try:
            user = name.decode(charset)
        except UnicodeDecodeError:
            raise SaslError("the user name is not encoded in the declared charset") from None
        self._check_form(given, name, user)
        secret = self._secret_of(user)
        key = _user_key(name, given.get("realm", b""), (secret or "").encode(charset, "replace"), charset)
        nonce, cnonce = given["nonce"], given["cnonce"]
        authzid = given.get("authzid", b"")
        wanted = _digest(key, nonce, cnonce, authzid, b"AUTHENTICATE:" + given["digest-uri"])
        # An unknown user must take as long as a wrong password: timing must not reveal which users exist.
        is_right = hmac.compare_digest(wanted, given.get("response", b""))
        if secret is None or not is_right:
            raise SaslError(f"unknown user or wrong password for {user!r}")
        self.is_complete = True
        self.user = user
        return b"rspauth=" + _digest(key, nonce, cnonce, authzid, b":" + given["digest-uri"])

    def _check_form(self, given: dict[str, bytes], name: bytes, user: str) -> None:
        """Raise SaslError unless the response is complete and matches this challenge. The caller checks the digest."""
        if not name:
            raise SaslError("no user name")
        if not hmac.compare_digest(given.get("nonce", b""), self._nonce) or given.get("nc") != _FIRST_USE:
            raise SaslError(f"the response of {user!r} does not match this challenge")
        if not given.get("cnonce"):
            raise SaslError(f"the response of {user!r} has no client nonce")
        if given.get("realm") != self._realm or given.get("digest-uri", b"").lower() != self._uri:
            raise SaslError(f"the response of {user!r} is for another service")
        if given.get("qop", b"auth") != b"auth":
            raise SaslError(f"the response of {user!r} selects a quality of protection that was not offered")
        if given.get("authzid", name) not in (name, b""):
            raise SaslError(f"{user!r} asks to act as another user; this is not supported")


class SaslClient:
    """The client side of one exchange."""

    def __init__(self, user: str, secret: str, cnonce: bytes, *, service: bytes = SERVICE, host: bytes = REALM) -> None:
        """`cnonce` must be fresh and unpredictable."""
        self.is_complete = False
        self._user = user
        self._secret = secret
        self._cnonce = cnonce
        self._uri = service + b"/" + host
        self._expected = b""

    def evaluate(self, token: bytes | None) -> bytes:
        """Return the next token: the initial one for None, the response to the challenge, b"" for the server's proof.

        Raise SaslError if the server does not know the secret or requires an unsupported option.
        """
        if token is None:
            return b""
        if self._expected:
            proof = parse_directives(token, CHALLENGE_BYTES_MAX).get("rspauth", b"")
            if not hmac.compare_digest(proof, self._expected):
                raise SaslError("the server does not know the secret")
            self.is_complete = True
            return b""
        given = parse_directives(token, CHALLENGE_BYTES_MAX)
        if b"auth" not in [word.strip(_SPACE) for word in given.get("qop", b"auth").split(b",")]:
            raise SaslError("the server requires wrapping, which is not supported")
        nonce = given.get("nonce", b"")
        if not nonce or given.get("algorithm") != b"md5-sess":
            raise SaslError("the server's challenge is not a DIGEST-MD5 challenge")
        return self._respond(nonce, given.get("realm", b""), _charset(given))

    def _respond(self, nonce: bytes, realm: bytes, charset: str) -> bytes:
        try:
            name, secret = self._user.encode(charset), self._secret.encode(charset)
        except UnicodeEncodeError:
            raise SaslError("the server accepts only ISO 8859-1 in user names and secrets") from None
        key = _user_key(name, realm, secret, charset)
        self._expected = _digest(key, nonce, self._cnonce, b"", b":" + self._uri)
        response = _digest(key, nonce, self._cnonce, b"", b"AUTHENTICATE:" + self._uri)
        parts = [
            b"charset=utf-8" if charset == "utf-8" else b"",
            b"username=" + _quoted(name),
            b"realm=" + _quoted(realm),
            b"nonce=" + _quoted(nonce),
            b"nc=" + _FIRST_USE,
            b"cnonce=" + _quoted(self._cnonce),
            b"digest-uri=" + _quoted(self._uri),
            b"qop=auth",
            b"response=" + response,
        ]
        return b",".join(part for part in parts if part)


def _charset(given: dict[str, bytes]) -> str:
    charset = given.get("charset", b"").lower()
    if charset not in (b"", b"utf-8"):
        raise SaslError("the charset is not utf-8")
    return "utf-8" if charset else "iso-8859-1"


def _user_key(name: bytes, realm: bytes, secret: bytes, charset: str) -> bytes:
    """Return H(user:realm:secret). UTF-8 text that fits into ISO 8859-1 is hashed in that charset (RFC 2831
    §2.1.2.1)."""
    if charset == "utf-8":
        name, realm, secret = _narrowed(name), _narrowed(realm), _narrowed(secret)
    return _md5(name + b":" + realm + b":" + secret)


def _narrowed(text: bytes) -> bytes:
    try:
        return text.decode().encode("iso-8859-1")
    except UnicodeError:
        return text


def _digest(key: bytes, nonce: bytes, cnonce: bytes, authzid: bytes, a2: bytes) -> bytes:
    """Return the response-value of RFC 2831 §2.1.2.1 in hex."""
    a1 = key + b":" + nonce + b":" + cnonce
    if authzid:
        a1 += b":" + authzid
    text = b":".join((_md5(a1).hex().encode(), nonce, _FIRST_USE, cnonce, b"auth", _md5(a2).hex().encode()))
    return _md5(text).hex().encode()


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def _quoted(text: bytes) -> bytes:
    return b'"' + text.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


def parse_directives(data: bytes, size_max: int) -> dict[str, bytes]:
    """Return the values of `name=value,name="quoted value"` by lower-case name.

    Raise SaslError for a malformed token and for a name that occurs twice.
    """
    if len(data) > size_max:
        raise SaslError(f"the token has {len(data)} bytes; the limit is {size_max}")
    found: dict[str, bytes] = {}
    at = 0
    while True:
        at = _skip(data, at, b", \t\r\n")
        if at == len(data):
            return found
        start = at
        while at < len(data) and data[at] not in _TOKEN_STOPS:
            at += 1
        name = data[start:at].decode("ascii", "replace").lower()
        at = _skip(data, at, _SPACE)
        if not name or data[at : at + 1] != b"=":
            raise SaslError("a directive has no name or no value")
        value, at = _value(data, _skip(data, at + 1, _SPACE))
        if name in found:
            raise SaslError(f"directive {name!r} occurs twice")
        found[name] = value
        at = _skip(data, at, _SPACE)
        if at < len(data) and data[at] != 0x2C:
            raise SaslError(f"no comma after directive {name!r}")


def _value(data: bytes, at: int) -> tuple[bytes, int]:
    """Return the token or quoted string at `at`, and the position after it."""
    if data[at : at + 1] != b'"':
        start = at
        while at < len(data) and data[at] not in _TOKEN_STOPS:
            at += 1
        return data[start:at], at
    value = bytearray()
    at += 1
    while at < len(data) and data[at] != 0x22:
        if data[at] == 0x5C:
            at += 1
        value += data[at : at + 1]
        at += 1
    if at >= len(data):
        raise SaslError("a quoted value has no closing quote")
    return bytes(value), at + 1


def _skip(data: bytes, at: int, what: bytes) -> int:
    while at < len(data) and data[at] in what:
        at += 1
    return at
