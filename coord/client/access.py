"""What a client shows a store and asks of it: TLS, a digest credential, a SASL user."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from coord.client.ops import digest_acl
from coord.errors import ConfigError
from coord.tls.context import caller_context
from coord.wire.opcodes import PERM_ALL
from coord.wire.values import OPEN_ACL, Acl


@dataclass(frozen=True)
class StoreAccess:
    """How to get into a store. Without anything: a plain connection, as nobody in particular.

    Whoever has a credential keeps what it makes to itself: znodes that are created without an access list get one for
    that credential alone. Processes that work together share it; their certificates may differ.
    """

    #: Who issued the store's certificates; None: no TLS.
    tls_ca: Path | None = None
    #: What the client shows when the store asks for a certificate; its key is in the same file or beside it.
    tls_cert: Path | None = None
    tls_key: Path | None = None
    #: Whether a node's certificate must be for the host that was dialled.
    verify_host: bool = True
    #: `user:password` of scheme digest.
    auth: str = field(default="", repr=False)
    #: `user:password` of SASL DIGEST-MD5.
    sasl: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        """Raises ConfigError with one line that names the setting."""
        if self.tls_ca is None and (self.tls_cert is not None or self.tls_key is not None):
            raise ConfigError("a certificate to show the store means TLS: name the store's authority (tls-ca), too")
        if self.tls_key is not None and self.tls_cert is None:
            raise ConfigError("there is a key, but no certificate (tls-cert)")
        for name, credential in (("auth", self.auth), ("sasl", self.sasl)):
            user, colon, password = credential.partition(":")
            if credential and not (user and colon and password):
                raise ConfigError(f"the store's {name} credential is not USER:PASSWORD")

    def acl(self) -> list[Acl]:
        """The access list of what this client makes: for its credentials, or open to all."""
        found: list[Acl] = []
        if self.auth:
            user, _, password = self.auth.partition(":")
            found.append(digest_acl(user, password))
        if self.sasl:
            found.append(Acl(PERM_ALL, b"sasl", self.sasl.partition(":")[0].encode()))
        return found or OPEN_ACL

    def tls_context(self) -> ssl.SSLContext | None:
        """For connections by TLS; None without. Raises ConfigError for files that cannot be used."""
        if self.tls_ca is None:
            return None
        return caller_context(self.tls_ca, self.tls_cert, self.tls_key, verify_host=self.verify_host)


#: A plain connection, as nobody in particular.
OPEN_ACCESS = StoreAccess()
