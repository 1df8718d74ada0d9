"""TLS contexts and connections over a `Stream`'s bytes.

The `ssl` module works on memory BIOs, so a TLS connection is a stream like any other: `Engine.unseal` decrypts received
bytes, `Engine.seal` encrypts bytes to send. TLS 1.2 and later, no renegotiation, no compression.
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
from coord.tls.suites import restrict

#: Policy for client certificates.
NONE: Final = "none"
WANT: Final = "want"
NEED: Final = "need"
_MODES: Final = {NONE: ssl.CERT_NONE, WANT: ssl.CERT_OPTIONAL, NEED: ssl.CERT_REQUIRED}
#: Bytes read from the `ssl` module at once: one TLS record.
_RECORD_BYTES: Final = 16 << 10
#: The name by which both ends agree in the handshake (ALPN) that a TLS record may hold several frames.
_FRAMES_TOGETHER: Final = "regionkeeper-frames"
#: Bytes that may wait for the end of a handshake: connect requests and hello frames.
_HELD_BYTES_MAX: Final = 64 << 10


@dataclass(frozen=True)
class TlsFiles:
    """Locations of keys and certificates: PEM files or Java key stores."""

    #: Certificate followed by its chain; in a key store, with its key.
    cert: Path
    key: Path | None = None
    #: Authority whose certificates are trusted; None trusts no certificate.
    ca: Path | None = None
    client_auth: str = NONE
    key_password: str = ""
    ca_password: str = ""
    #: Between peers: whether a certificate must name the host of the node.
    verify_host: bool = False
    #: Allowed versions and cipher suites of TLS (`suites`); (): the defaults.
    versions: tuple[str, ...] = ()
    suites: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise ConfigError for settings that contradict each other."""
        if self.client_auth not in _MODES:
            raise ConfigError(f"client authentication must be none, want or need, not {self.client_auth!r}")
        if self.client_auth != NONE and self.ca is None:
            raise ConfigError("client certificates are required, but no authority is trusted to issue them; name one")

    def __repr__(self) -> str:
        """Return a form without passwords."""
        return f"TlsFiles({self.cert}, client_auth={self.client_auth})"


class TlsError(Exception):
    """The TLS handshake failed, or the received bytes fail verification."""


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """Return the context for accepted connections. Raise ConfigError."""
    return _context(ssl.PROTOCOL_TLS_SERVER, files, _MODES[files.client_auth])


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """Return the context for dialed peers, which need a certificate of `files.ca` (for their host if `verify_host`)."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, files, ssl.CERT_REQUIRED)
    context.check_hostname = files.verify_host
    return context


def caller_context(
    ca: Path, cert: Path | None = None, key: Path | None = None, *, verify_host: bool = True
) -> ssl.SSLContext:
    """Return the context of a client that trusts `ca` and, with `verify_host`, checks the dialed host.

    The client sends `cert` if the server asks for a certificate; its `key` is in the same file or a separate one.
    Raise ConfigError.
    """
    context = _bare_context(ssl.PROTOCOL_TLS_CLIENT, ssl.CERT_REQUIRED)
    context.check_hostname = verify_host
    _trust(context, ca, "")
    if cert is not None:
        _identify(context, cert, key, "")
    return context


def _context(protocol: int, files: TlsFiles, mode: ssl.VerifyMode) -> ssl.SSLContext:
    context = _bare_context(protocol, mode)
    restrict(context, files.versions, files.suites)
    _identify(context, files.cert, files.key, files.key_password)
    if files.ca is not None:
        _trust(context, files.ca, files.ca_password)
    return context


def _bare_context(protocol: int, mode: ssl.VerifyMode) -> ssl.SSLContext:
    """Return a context without trusted authorities and without a certificate."""
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.check_hostname = False
    context.verify_mode = mode
    context.set_alpn_protocols([_FRAMES_TOGETHER])
    return context


def _identify(context: ssl.SSLContext, cert: Path, key: Path | None, password: str) -> None:
    own = read_store(cert, password).own
    if key is not None:
        own = read_store(key, password).own + "\n" + own
    try:
        _load_own(context, own, password)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"{key or cert}: no usable key and certificate: {why(error)}") from error


def _trust(context: ssl.SSLContext, ca: Path, password: str) -> None:
    try:
        context.load_verify_locations(cadata=_certificates(read_store(ca, password).trusted))
    except ssl.SSLError as error:
        raise ConfigError(f"{ca}: no certificates: {why(error)}") from error


def _load_own(context: ssl.SSLContext, pem: str, password: str) -> None:
    """Load key and certificate. The `ssl` module reads keys only from files: use one in memory, not on disk."""
    fd = os.memfd_create("key")
    try:
        os.write(fd, pem.encode("latin-1"))
        # Without a password an encrypted key is an error; the library must not prompt on the terminal.
        context.load_cert_chain(f"/proc/self/fd/{fd}", password=lambda: password)
    finally:
        os.close(fd)


def _certificates(pem: str) -> str:
    """Return only the certificates of a PEM text, which may also hold keys and comments."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    return "\n".join(begin + part.partition(end)[0] + end for part in pem.split(begin)[1:])


class Engine:
    """TLS state of one connection, from the first byte on."""

    def __init__(self, context: ssl.SSLContext, *, is_server: bool, host: str = "") -> None:
        """`host` is the host that a client dialed; needed if the context checks it against the certificate."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(
            self._incoming, self._outgoing, server_side=is_server, server_hostname=host or None
        )
        self.is_established = False
        #: The peer has sent close_notify.
        self.is_ended = False
        self._held: list[bytes] = []
        self._held_bytes = 0
        #: The other end is of this program: it reads all frames of a record.
        self._is_together = False

    def unseal(self, data: bytes) -> bytes:
        """Return the decrypted bytes. Raise TlsError. In both cases `take` returns the bytes to send in reply."""
        self._incoming.write(data)
        parts: list[bytes] = []
        try:
            if not self.is_established and not self._shake():
                return b""
            with contextlib.suppress(ssl.SSLWantReadError):
                while part := self._ssl.read(_RECORD_BYTES):
                    parts.append(part)
                    if not self._incoming.pending and not self._ssl.pending():
                        break  # an exception would carry the same result, at twice the cost of a record
                self.is_ended = not part
        except ssl.SSLZeroReturnError:
            self.is_ended = True
        except ssl.SSLError as error:
            raise TlsError(why(error)) from error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def seal(self, frames: list[bytes]) -> bytes:
        """Return the bytes to send for `frames`; before the handshake has ended, hold the frames back. Raise TlsError.

        Each frame begins a new TLS record, as in ZooKeeper. kazoo selects on its socket and reads one frame at a time;
        it would not notice bytes of the next frame that the `ssl` module has already decrypted. So a record must not
        hold the beginning of another frame, unless both ends have agreed in the handshake that it may, as two ends of
        this program do.
        """
        if self.is_established:
            if self._is_together and len(frames) > 1:
                frames = [b"".join(frames)]
            for frame in frames:
                self._ssl.write(frame)
            return self.take()
        self._held_bytes += sum(map(len, frames))
        if self._held_bytes > _HELD_BYTES_MAX:
            raise TlsError(f"the TLS handshake is not complete and {self._held_bytes} bytes wait for it")
        self._held += frames
        try:
            self._shake()
        except ssl.SSLError as error:
            raise TlsError(why(error)) from error
        return self.take()

    def take(self) -> bytes:
        """Return the bytes that the `ssl` module wants to send."""
        return self._outgoing.read()

    def close_notify(self) -> bytes:
        """Return a close_notify alert: without it the peer cannot distinguish a clean close from a truncated stream."""
        with contextlib.suppress(ssl.SSLError, ValueError):
            if self.is_established:
                self._ssl.unwrap()
        return self.take()

    def peer_subject(self) -> str:
        """Return the subject of the peer's verified certificate, or "" without a certificate."""
        try:
            certificate = self._ssl.getpeercert(binary_form=True)
            return subject_of(certificate) if certificate else ""
        except ValueError:
            return ""

    def peer_uris(self) -> list[str]:
        """Return the URIs among the alternative names of the peer's verified certificate."""
        certificate: Any = self._ssl.getpeercert() or {}
        return [str(value) for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"]

    def peer_serial(self) -> tuple[str, float]:
        """Return the serial number of the peer's verified certificate, in hexadecimal, and since when it is valid."""
        certificate: Any = self._ssl.getpeercert() or {}
        begins = certificate.get("notBefore")
        return str(certificate.get("serialNumber", "")), ssl.cert_time_to_seconds(begins) if begins else 0.0

    def names_host(self, host: str) -> bool:
        """Return True if the peer's verified certificate has `host` as alternative name (DNS or IP address)."""
        certificate: Any = self._ssl.getpeercert() or {}
        names = [str(value) for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "IP Address")]
        return any(_is_for(name, host) for name in names)

    def _shake(self) -> bool:
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.is_established = True
        self._is_together = self._ssl.selected_alpn_protocol() == _FRAMES_TOGETHER
        for data in self._held:
            self._ssl.write(data)
        self._held.clear()
        return True


def _is_for(name: str, host: str) -> bool:
    """Return True if a certificate name matches a host; a leading `*.` matches one label."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(name) == ipaddress.ip_address(host)
    name, host = name.lower().rstrip("."), host.lower().rstrip(".")
    return name == host or (name.startswith("*.") and name[1:] == host[host.find(".") :] and not host.startswith("."))


def why(error: OSError) -> str:
    """Return the library's reason as lower-case text."""
    detail = getattr(error, "verify_message", "") or getattr(error, "reason", "") or error.strerror or str(error)
    return str(detail).replace("_", " ").lower()
