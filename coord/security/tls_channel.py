"""Channels that prove principals by certificates: TLS both ways, for either end of an RPC connection."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Final

from coord.security import revocation
from coord.security.channel import IS_OPEN, IS_SECURED, OPEN_GREETING, ProofChannel, Unproven
from coord.security.handshake import GREETING, refusal, satisfies
from coord.security.principal import NOBODY, Principal, is_valid
from coord.security.revocation import ShownCredential
from coord.tls.context import Engine, TlsError

_SCHEME: Final = "regionkeeper://"
WANTS_TLS: Final = (
    "the daemon demands a certificate: --certs-dir (RK_CERTS_DIR) must have ca.crt and a certificate with its key, made"
    " by `rk certs issue`"
)


class TlsChannel(ProofChannel):
    """One end of a TLS connection. Both ends present certificates of the cluster's authority."""

    def __init__(self, context: ssl.SSLContext, *, is_server: bool, host: str = "", wanted: str = "") -> None:
        """`host`: the dialed host, which the listener's certificate must name. `wanted`: the listener's principal."""
        super().__init__()
        self._context = context
        self._is_server = is_server
        self._host = host
        self._wanted = wanted
        self._engine: Engine | None = None
        self._first = b""

    def start(self, local: str, remote: str) -> None:  # noqa: ARG002
        """Begin the handshake at the dialing end."""
        host = "" if self._is_server else self._host or remote.rpartition(":")[0].strip("[]")
        self._engine = Engine(self._context, is_server=self._is_server, host=host)
        if not self._is_server:
            self._out = self._engine.seal([])

    def receive(self, data: bytes) -> bytes:
        """See the base."""
        engine = self._engine
        assert engine is not None, "start has not been called"
        if not self.is_done and len(self._first) < len(OPEN_GREETING):
            self._first = data = self._first + data
            self._check_first(data)
            if len(data) < len(OPEN_GREETING):
                return b""
        try:
            plain = engine.unseal(data)
        except TlsError as error:
            self._out += engine.take()
            raise Unproven(f"TLS: {explained(str(error), is_server=self._is_server)}") from error
        self._out += engine.take()
        if engine.is_established and not self.is_done:
            held = self._finish(self._proved(engine))
            self._out += engine.seal([held]) if held else b""
        return plain

    def send(self, data: bytes) -> bytes:
        """See the base."""
        if not self.is_done or self._engine is None:
            return super().send(data)
        return self._engine.seal([data])

    def _check_first(self, data: bytes) -> None:
        """Raise Unproven for another protocol than TLS."""
        if data.startswith(OPEN_GREETING):
            raise Unproven(IS_SECURED if self._is_server else IS_OPEN, is_open_caller=self._is_server)
        if data.startswith(GREETING[: len(OPEN_GREETING)]):
            self._out = refusal(WANTS_TLS) if self._is_server else b""
            raise Unproven(WANTS_TLS if self._is_server else "the daemon speaks no TLS, but the credentials demand it")

    def _proved(self, engine: Engine) -> Principal:
        """Return the principal of the peer's verified certificate. Raise Unproven."""
        found = next((one for uri in engine.peer_uris() if (one := principal_in(uri)) is not NOBODY), NOBODY)
        if found is NOBODY:
            raise Unproven("TLS: the certificate names no principal of a cluster")
        self.shown = shown_by(engine, found)
        objection = revocation.known().objection(self.shown)
        if objection:
            self._finish(found)
            raise Unproven(objection, is_revoked=self._is_server)
        if not self._is_server and not found.is_daemon:
            raise Unproven(f"{found} answers, which is no daemon")
        if not self._is_server and not satisfies(found, self._wanted):
            raise Unproven(f"{found} answers, but {self._wanted} was expected")
        return found


#: Part of what the library says of a failed handshake, in lower case -> what it means for the process that dials.
_REASONS: Final = (
    ("alert certificate expired", "the other end says that our certificate has expired: {own}"),
    (
        "alert bad certificate",
        "the other end rejects our certificate: {own}. A certificate that is not valid yet means that a clock is wrong",
    ),
    ("alert unknown ca", "the other end does not accept the authority of our certificate: {other}"),
    ("alert certificate required", "the other end demands a certificate: {own}"),
    ("certificate has expired", "the other end's certificate has expired: issue a new one to that daemon"),
    ("not yet valid", "the other end's certificate is not valid yet: compare the clocks of both machines"),
    ("self signed certificate", "the other end's certificate is of another authority than our ca.crt: {other}"),
    ("unable to get local issuer", "the other end's certificate is of another authority than our ca.crt: {other}"),
    (
        "certificate is not valid for",
        "the other end's certificate names another host: dial a name that it has, or issue it again with --host",
    ),
)
_OWN: Final = "`rk certs show` prints its times, `rk certs issue` makes a new one"
_OTHER: Final = "take --certs-dir of this cluster, or copy its ca.crt again"


def explained(error: str, *, is_server: bool = False) -> str:
    """Return what a failed handshake means and what to do, followed by the library's words. A server's log has those
    words alone."""
    if is_server:
        return error
    lower = error.lower().replace("_", " ").replace("-", " ")
    found = next((text for part, text in _REASONS if part in lower), "")
    return f"{found.format(own=_OWN, other=_OTHER)} ({error})" if found else error


def shown_by(engine: Engine, who: Principal) -> ShownCredential:
    """Return the peer's verified certificate, which is that of `who`."""
    serial, valid_from_s = engine.peer_serial()
    return ShownCredential(who, serial=serial, valid_from_s=valid_from_s)


def revoked_peer(engine: Engine) -> str:
    """Return why the peer's certificate is revoked. Return "" if it is not revoked, or if the peer has not presented
    one (yet).

    The answer depends on the list that this process knows. A serial number is enough for certificates that name no
    principal.
    """
    known = revocation.known()
    if not known.revoked:
        return ""
    shown = shown_by_peer(engine)
    return "" if shown is None else known.objection(shown)


def shown_by_peer(engine: Engine) -> ShownCredential | None:
    """Return the certificate that the peer has presented, None if it has not presented one (yet)."""
    if not engine.is_established:
        return None
    found = next((one for uri in engine.peer_uris() if (one := principal_in(uri)) is not NOBODY), NOBODY)
    shown = shown_by(engine, found)
    return shown if shown.serial else None


def misnamed(uris: Sequence[str], kind: str, name: str = "") -> str:
    """Return why a certificate with these URIs is not that of `kind:name`, or "" if it is. With "" as name any identity
    of the kind fits.

    A certificate that another authority has issued names no principal. Then only its host can be checked.
    """
    found = [one for uri in uris if (one := principal_in(uri)) is not NOBODY]
    if not found or any(one.kind == kind and name in ("", one.name) for one in found):
        return ""
    wanted = f"{kind}:{name}" if name else f"a {kind}"
    return f"shows the certificate of {found[0]}, not that of {wanted}"


def principal_in(uri: str) -> Principal:
    """Return the principal that the URI of a certificate names, NOBODY for another URI."""
    parts = uri.removeprefix(_SCHEME).split("/") if uri.startswith(_SCHEME) else []
    return Principal(parts[1], parts[2]) if len(parts) == 3 and is_valid(parts[1], parts[2]) else NOBODY
