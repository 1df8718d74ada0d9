"""Authentication of clients: credentials in, identities out. Only the identity goes into the log, never the secret.

| proof | identity |
| --- | --- |
| auth packet `digest` with user:password | (digest, user:hash); also (super, "") if that is the super digest |
| auth packet `ip` | the address, which the session has from the start |
| SASL DIGEST-MD5 | (sasl, user) |
| the packet `digest` with a token of the cluster's credentials | (rk, kind:name) and (rk, kind) |
| SASL DIGEST-MD5 by the same token: `kind:name:number` as user, the rest as password | the same |
| TLS with a client certificate | (x509, subject), when the session is opened |

If identities of certain schemes are required, a connection without one may only authenticate. Any other request is
answered SessionClosedRequireSaslAuth, for every scheme, and ends the connection, as in ZooKeeper
(`enforce.auth.enabled`). The superuser counts as an identity of `rk`. As in ZooKeeper, each connection of a session
must authenticate. Unlike ZooKeeper, a failed SASL exchange is answered AuthFailed: ZooKeeper's code ends the thread of
a kazoo client with a traceback.

Every attempt is a line of the audit log, `authentication scheme=… id=… session=… address=… result=…`, and so is every
setACL, `acl path=… session=… address=… result=…`. No line contains a secret or a hash of one.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from coord.errors import OK, RemoteProtocolError
from coord.security.revocation import ShownCredential
from coord.server.clients.audit import AuditLog
from coord.server.clients.connection import Connection
from coord.tree.acl import DIGEST, IP, SUPER, Identity
from coord.tree.command import COMMAND_HEADER_BYTES
from coord.wire.records import decode_set_acl
from coord.wire.sasl import SaslError, SaslServer

X509: Final = b"x509"
SASL: Final = b"sasl"
#: Scheme of the cluster's principals, with ids such as `user:alice`; the id `user` stands for every user.
RK: Final = b"rk"
_NONCE_BYTES: Final = 18
#: Characters of a path that an audit line shows; a path may have a million.
PATH_SHOWN_MAX: Final = 1024
#: Longest user name of a digest credential. Every node keeps it with the session, in memory and in snapshots, and a
#: stranger may give 255 names.
USER_BYTES_MAX: Final = 1024
#: The identity with all permissions.
_SUPERUSER: Final[Identity] = (SUPER, b"")


class Authenticator:
    """Checks credentials against the node's settings."""

    def __init__(
        self,
        token: Callable[[int], bytes],
        *,
        super_digest: str = "",
        sasl_users: Mapping[str, str] | None = None,
        required: Iterable[str] = (),
        shown_by: Callable[[str], ShownCredential | None] = lambda _: None,
        secret_part_of: Callable[[str], tuple[ShownCredential, str] | None] | None = None,
        is_securing: Callable[[], bool] = lambda: False,
        monotonic_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        """`token(n)` returns n unpredictable bytes; `super_digest` is `user:base64 of SHA-1`, "" for no superuser.

        `required` has the schemes of which a connection must prove one; empty: none. `shown_by` returns the key from
        which a token is derived; `secret_part_of` returns the key and the last part of the token that begins with a
        text. Without tokens both are None. `is_securing` returns True while connections without a required proof are
        served, too. `monotonic_ms` is the audit log's clock.
        """
        self._token = token
        self._super_digest = super_digest.encode()
        self._sasl_users = sasl_users or {}
        self._shown_by = shown_by
        self._secret_part_of = secret_part_of
        self._is_securing = is_securing
        self._required = frozenset(scheme.encode() for scheme in required)
        self.audit = AuditLog(monotonic_ms)

    def begin(self, connection: Connection) -> None:
        """Decide whether a connection whose session begins may send requests."""
        is_proved = not self._required or (X509 in self._required and bool(connection.certificate))
        connection.is_unproven = not is_proved
        connection.is_admitted = is_proved or self._is_securing()

    def refused(self, connection: Connection) -> None:
        """Write the audit line of a request before the required proof."""
        self._note(connection, "none", b"", "refused: no identity of a required scheme")

    def _proved(self, connection: Connection, scheme: bytes) -> None:
        if scheme in self._required:
            connection.is_admitted = True
            connection.is_unproven = False

    def auth(self, connection: Connection, scheme: bytes, credential: bytes) -> list[Identity] | None:
        """Return the identities that an auth packet proves, [] if the session has them already, None if it is
        rejected."""
        if scheme == DIGEST:
            user = credential.partition(b":")[0]
            if len(user) > USER_BYTES_MAX:
                self._note(connection, "digest", user, f"refused: the user name has more than {USER_BYTES_MAX} bytes")
                return None
            name = user + b":" + base64.b64encode(hashlib.sha1(credential, usedforsecurity=False).digest())
            proved = [(DIGEST, name)]
            scheme_of_line = "digest"
            if self._super_digest and hmac.compare_digest(name, self._super_digest):
                proved.append(_SUPERUSER)
                self._proved(connection, RK)
                scheme_of_line = "super"
            elif (shown := self._shown_by(credential.decode(errors="replace"))) is not None:
                # Not the digest: the digest changes with the secret, and access lists name the principal.
                proved = self._proved_principal(connection, shown)
                scheme_of_line, user = "rk", str(shown.who).encode()
            self._note(connection, scheme_of_line, user, "ok")
            self._proved(connection, DIGEST)
            return proved
        if scheme == IP or (scheme == X509 and connection.certificate):
            # The session has this identity already.
            return []
        self._note(connection, scheme.decode(errors="replace")[:32], b"", "refused: unsupported scheme")
        return None

    def sasl(self, connection: Connection, token: bytes) -> tuple[bytes | None, list[Identity]]:
        """Perform the next step of the connection's SASL exchange: return (token for the client, proved identities).

        Without SASL users and tokens the reply is null, as in a ZooKeeper without SASL. Raise SaslError.
        """
        if not self._sasl_users and self._secret_part_of is None:
            return None, []
        exchange = connection.sasl
        if exchange is None or exchange.is_complete:
            nonce = base64.b64encode(self._token(_NONCE_BYTES))
            exchange = connection.sasl = SaslServer(self._secret_of, nonce)
        try:
            answer = exchange.evaluate(token)
        except SaslError as refused:
            connection.sasl = None
            self._note(connection, "sasl", b"", f"refused: {refused}")
            raise
        if not exchange.is_complete:
            return answer, []
        self._proved(connection, SASL)
        if exchange.user in self._sasl_users:
            self._note(connection, "sasl", exchange.user.encode(), "ok")
            return answer, [(SASL, exchange.user.encode())]
        found = None if self._secret_part_of is None else self._secret_part_of(exchange.user)
        if found is None:
            connection.sasl = None
            raise SaslError(f"the key of {exchange.user!r} was revoked during the exchange")
        shown, _ = found
        self._note(connection, "rk", str(shown.who).encode(), "ok")
        return answer, self._proved_principal(connection, shown)

    def _secret_of(self, user: str) -> str | None:
        secret = self._sasl_users.get(user)
        if secret is not None or self._secret_part_of is None:
            return secret
        found = self._secret_part_of(user)
        return None if found is None else found[1]

    def _proved_principal(self, connection: Connection, shown: ShownCredential) -> list[Identity]:
        """Admit the connection; return the identities of a key's principal."""
        self._proved(connection, RK)
        connection.shown.append(shown)
        return [(RK, str(shown.who).encode()), (RK, shown.who.kind.encode())]

    def certificate(self, connection: Connection) -> list[Identity]:
        """Return the identity of the client's TLS certificate; [] without a certificate."""
        if not connection.certificate:
            return []
        self._note(connection, "x509", connection.certificate, "ok")
        return [(X509, connection.certificate)]

    def acl_changed(self, connection: Connection, command: bytes, err: int) -> None:
        """Write the audit line of a performed or rejected setACL; `command` is its form in the log."""
        try:
            path = decode_set_acl(command, COMMAND_HEADER_BYTES, len(command))[0].decode(errors="replace")
        except RemoteProtocolError:
            path = "?"
        self.audit.note(
            connection.session_id,
            connection.address,
            "acl path={path!r} session={session:#x} address={address} result={result}",
            is_refused=err != OK,
            path=path[:PATH_SHOWN_MAX],
            result="ok" if err == OK else f"refused: {err}",
        )

    def _note(self, connection: Connection, scheme: str, name: bytes, result: str) -> None:
        self.audit.note(
            connection.session_id,
            connection.address,
            "authentication scheme={scheme} id={name!r} session={session:#x} address={address} result={result}",
            is_refused=result != "ok",
            is_kept=scheme == "super",
            scheme=scheme,
            name=name.decode(errors="replace")[:128],
            result=result,
        )
