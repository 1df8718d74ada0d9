"""TLS over a `Stream`'s bytes: who we are, whom we trust, and the state of one connection.

The library works on memory here, so that a connection with TLS is a stream like any other: `Engine.unseal` what was
read, `Engine.seal` what is to leave. TLS 1.2 and later, no renegotiation, no compression.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from coord.errors import ConfigError
from coord.tls.der import subject_of
from coord.tls.keystore import read_store

#: What is done about certificates of clients.
NONE: Final = "none"
WANT: Final = "want"
NEED: Final = "need"
_MODES: Final = {NONE: ssl.CERT_NONE, WANT: ssl.CERT_OPTIONAL, NEED: ssl.CERT_REQUIRED}
#: Taken out of the library at once: a TLS record.
_RECORD_BYTES: Final = 16 << 10
#: What may wait for a handshake to end: hellos.
_HELD_BYTES_MAX: Final = 64 << 10


@dataclass(frozen=True)
class TlsFiles:
    """Where keys and certificates are: PEM files, or Java key stores."""

    #: Certificate, with its chain behind it; of a key store also the key.
    cert: Path
    key: Path | None = None
    #: Whose certificates are trusted; None: nobody's.
    ca: Path | None = None
    client_auth: str = NONE
    key_password: str = ""
    ca_password: str = ""
    #: Between peers: whether a certificate must name the host where the node is.
    verify_host: bool = False

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        if self.client_auth not in _MODES:
            raise ConfigError(f"client authentication is none, want or need, not {self.client_auth!r}")
        if self.client_auth != NONE and self.ca is None:
            raise ConfigError("certificates of clients are asked for, but nobody is trusted to issue them")

    def __repr__(self) -> str:
        """Without the passwords."""
        return f"TlsFiles({self.cert}, client_auth={self.client_auth})"


class TlsError(Exception):
    """The connection cannot be secured, or was tampered with."""


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """For those who connect to us. Raises ConfigError."""
    return _context(ssl.PROTOCOL_TLS_SERVER, files, _MODES[files.client_auth])


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """For those we connect to, who must have a certificate of `files.ca`, for their host if `files` says so."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, files, ssl.CERT_REQUIRED)
    context.check_hostname = files.verify_host
    return context


def caller_context(
    ca: Path, cert: Path | None = None, key: Path | None = None, *, verify_host: bool = True
) -> ssl.SSLContext:
    """For clients of a server whose certificate `ca` issued, for the host dialled unless that does not matter.

    `cert`, with its `key` in it or beside it, is what the client shows if it is asked. Raises ConfigError.
    """
    context = _bare_context(ssl.PROTOCOL_TLS_CLIENT, ssl.CERT_REQUIRED)
    context.check_hostname = verify_host
    _trust(context, ca, "")
    if cert is not None:
        _identify(context, cert, key, "")
    return context


def _context(protocol: int, files: TlsFiles, mode: ssl.VerifyMode) -> ssl.SSLContext:
    context = _bare_context(protocol, mode)
    _identify(context, files.cert, files.key, files.key_password)
    if files.ca is not None:
        _trust(context, files.ca, files.ca_password)
    return context


def _bare_context(protocol: int, mode: ssl.VerifyMode) -> ssl.SSLContext:
    """Nobody is trusted and nothing is shown."""
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.check_hostname = False
    context.verify_mode = mode
    return context


def _identify(context: ssl.SSLContext, cert: Path, key: Path | None, password: str) -> None:
    own = read_store(cert, password).own
    if key is not None:
        own = read_store(key, password).own + "\n" + own
    try:
        _load_own(context, own, password)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"{key or cert}: no usable key with its certificate: {why(error)}") from error


def _trust(context: ssl.SSLContext, ca: Path, password: str) -> None:
    try:
        context.load_verify_locations(cadata=_certificates(read_store(ca, password).trusted))
    except ssl.SSLError as error:
        raise ConfigError(f"{ca}: no certificates: {why(error)}") from error


def _load_own(context: ssl.SSLContext, pem: str, password: str) -> None:
    """The library reads keys from files only: from one in memory, so that no key gets onto a disk."""
    fd = os.memfd_create("key")
    try:
        os.write(fd, pem.encode("latin-1"))
        # An encrypted key without a password is an error, never a question on the terminal.
        context.load_cert_chain(f"/proc/self/fd/{fd}", password=lambda: password)
    finally:
        os.close(fd)


def _certificates(pem: str) -> str:
    """The certificates alone: there may be keys and comments beside them."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    return "\n".join(begin + part.partition(end)[0] + end for part in pem.split(begin)[1:])


class Engine:
    """One connection's TLS, from the first byte on."""

    def __init__(self, context: ssl.SSLContext, *, is_server: bool, host: str = "") -> None:
        """`host`: whom a client dialled, needed where the context compares it with the certificate."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(
            self._incoming, self._outgoing, server_side=is_server, server_hostname=host or None
        )
        self.is_established = False
        #: The peer said that it sends no more.
        self.is_ended = False
        self._held: list[bytes] = []
        self._held_bytes = 0

    def unseal(self, data: bytes) -> bytes:
        """What the peer said with these bytes. Raises TlsError; ask `take` for what is to be sent, also then."""
        self._incoming.write(data)
        parts: list[bytes] = []
        try:
            if not self.is_established and not self._shake():
                return b""
            with contextlib.suppress(ssl.SSLWantReadError):
                while part := self._ssl.read(_RECORD_BYTES):
                    parts.append(part)
                self.is_ended = True
        except ssl.SSLZeroReturnError:
            self.is_ended = True
        except ssl.SSLError as error:
            raise TlsError(why(error)) from error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def seal(self, frames: list[bytes]) -> bytes:
        """Return the bytes to send for `frames`, nothing before the handshake has ended. Raises TlsError.

        Each frame begins a TLS record of its own, as at ZooKeeper. A client that selects on its socket and reads one
        frame at a time (kazoo) does not see what the library has already decrypted of the next frame, so a record must
        not hold the beginning of another frame.
        """
        if self.is_established:
            for frame in frames:
                self._ssl.write(frame)
            return self.take()
        self._held_bytes += sum(map(len, frames))
        if self._held_bytes > _HELD_BYTES_MAX:
            raise TlsError("the handshake does not end")
        self._held += frames
        try:
            self._shake()
        except ssl.SSLError as error:
            raise TlsError(why(error)) from error
        return self.take()

    def take(self) -> bytes:
        """What the library wants to send."""
        return self._outgoing.read()

    def farewell(self) -> bytes:
        """The end, as TLS says it: without it the peer could not tell a closed connection from a cut one."""
        with contextlib.suppress(ssl.SSLError, ValueError):
            if self.is_established:
                self._ssl.unwrap()
        return self.take()

    def peer_subject(self) -> str:
        """Subject of the peer's verified certificate, "" without one."""
        try:
            certificate = self._ssl.getpeercert(binary_form=True)
            return subject_of(certificate) if certificate else ""
        except ValueError:
            return ""

    def names_host(self, host: str) -> bool:
        """Whether the peer's verified certificate is for that host, by its alternative names: DNS or IP address."""
        certificate: Any = self._ssl.getpeercert() or {}
        names = [str(value) for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "IP Address")]
        return any(_is_for(name, host) for name in names)

    def _shake(self) -> bool:
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.is_established = True
        for data in self._held:
            self._ssl.write(data)
        self._held.clear()
        return True


def _is_for(name: str, host: str) -> bool:
    """Whether a name in a certificate stands for a host; `*.` in front stands for one label."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(name) == ipaddress.ip_address(host)
    name, host = name.lower().rstrip("."), host.lower().rstrip(".")
    return name == host or (name.startswith("*.") and name[1:] == host[host.find(".") :] and not host.startswith("."))


def why(error: OSError) -> str:
    """The library's reason, in its words."""
    detail = getattr(error, "verify_message", "") or getattr(error, "reason", "") or error.strerror or str(error)
    return str(detail).replace("_", " ").lower()
