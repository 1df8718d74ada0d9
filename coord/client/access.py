"""Client credentials for the store: TLS certificates, a digest credential, a SASL user."""

from __future__ import annotations

import functools
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from coord.client.ops import digest_acl
from coord.errors import ConfigError
from coord.security import process
from coord.security.credentials import STORE_AUTH_FILE, STORE_MASTERS_FILE, check_directory, read_private
from coord.tls.reloading import CallerContext
from coord.wire.digests import digest_of, is_digest
from coord.wire.opcodes import PERM_ALL, PERM_READ
from coord.wire.values import OPEN_ACL, Acl

#: Who may read the znodes of a secured cluster: every user with a key of the cluster.
READERS: Final = "rk:user"
#: The identity of region servers in access lists: every server proves it by a token of its credentials.
SERVERS_IDENTITY: Final = "rk:server"
#: Schemes of identities that prove something.
_PROVING_SCHEMES: Final = ("digest", "rk", "sasl", "x509")
#: One per set of files, so that each file is read once for many connections.
_caller_context: Final = functools.cache(CallerContext)
_BETWEEN_IDENTITIES: Final = re.compile(r",(?=\s*(?:digest|rk|sasl|x509):)")


@dataclass(frozen=True)
class StoreAccess:
    """Connection settings for the store. The defaults give a plain TCP connection without authentication.

    With a credential, znodes created without an access list get one for that credential alone. Processes that
    cooperate share the credential; their certificates may differ. Region servers may have an identity of their own
    (`servers`) instead of the masters' credential: then they name the masters' identity (`masters`).
    """

    #: Authority that issued the store's certificates; None disables TLS.
    tls_ca: Path | None = None
    #: Certificate sent when the store asks for one; its key is in the same file or in `tls_key`.
    tls_cert: Path | None = None
    tls_key: Path | None = None
    #: Whether the certificate of a node must match the host that this client dials.
    verify_host: bool = True
    #: `user:password` of scheme digest.
    auth: str = field(default="", repr=False)
    #: `user:password` of SASL DIGEST-MD5.
    sasl: str = field(default="", repr=False)
    #: Identities that may read the znodes that this client creates: (scheme, id).
    readers: tuple[tuple[str, str], ...] = ()
    #: Identities of region servers without the masters' credential: (scheme, id). They may read every znode, and change
    #: the znodes that servers write (`regions/records/znode_table.py`).
    servers: tuple[tuple[str, str], ...] = ()
    #: For a region server without the masters' credential: the masters' identities, which may do everything.
    masters: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        """Raise ConfigError with one line that names the setting."""
        if self.tls_ca is None and (self.tls_cert is not None or self.tls_key is not None):
            raise ConfigError("a client certificate needs TLS: name the store's certificate authority, too (tls-ca)")
        if self.tls_key is not None and self.tls_cert is None:
            raise ConfigError("tls-key is given without its certificate (tls-cert)")
        for name, credential in (("auth", self.auth), ("sasl", self.sasl)):
            user, colon, password = credential.partition(":")
            if credential and not (user and colon and password):
                raise ConfigError(f"the store's {name} credential is not USER:PASSWORD")
        for name, identities in (("readers", self.readers), ("servers", self.servers)):
            if identities and not self.has_credential():
                raise ConfigError(
                    f"{name} are named, but without a credential (auth or sasl) everybody may do everything"
                )
        if self.masters and not self.servers:
            raise ConfigError("masters are named, but not the identity of this region server (servers)")

    def digests(self) -> list[str]:
        """Return the digest credentials that a new connection proves: the configured one, and this process's token."""
        return [credential for credential in (self.auth, process.store_token()) if credential]

    def has_credential(self) -> bool:
        """Return True if the znodes that this client creates are closed to others."""
        return bool(self.auth or self.sasl or self.masters)

    def identities(self) -> str:
        """Return the identities that these credentials prove, as `parse_identities` reads them."""
        user, _, password = self.auth.partition(":")
        found = [f"digest:{digest_of(user, password)}"] if self.auth else []
        return ",".join([*found, *([f"sasl:{self.sasl.partition(':')[0]}"] if self.sasl else [])])

    def shares_credential(self) -> bool:
        """Return True if a region server with these settings has the masters' credential."""
        return bool(self.auth or self.sasl) and not self.masters

    def acl(self, server_rights: int = PERM_READ) -> list[Acl]:
        """Return the access list of znodes that this client creates: masters, region servers (with `server_rights`) and
        readers. Without credentials the list is open to everyone.

        While the cluster is being secured, everyone also has all permissions, because daemons that still run without
        the credential must read and change these znodes. `rk secure --finish` removes these permissions.
        """
        found = self.closed_acl(server_rights)
        return [*found, *OPEN_ACL] if found and process.is_securing() else found or OPEN_ACL

    def closed_acl(self, server_rights: int = PERM_READ) -> list[Acl]:
        """Return the access list of the masters' credentials, region servers and the readers, [] without a
        credential."""
        found = _lines(PERM_ALL, self.masters)
        if self.auth and not self.masters:
            user, _, password = self.auth.partition(":")
            found.append(digest_acl(user, password))
        if self.sasl and not self.masters:
            found.append(Acl(PERM_ALL, b"sasl", self.sasl.partition(":")[0].encode()))
        return [*found, *_lines(server_rights, self.servers), *_lines(PERM_READ, self.readers)]

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the TLS context of a connection that is opened now, None without TLS. Changed files are read again.

        Raise ConfigError for unusable files, at the first call.
        """
        paths = self.tls_paths()
        return None if paths is None else _caller_context(*paths, verify_host=self.verify_host).now()

    def tls_paths(self) -> tuple[Path, Path | None, Path | None] | None:
        """Return the paths of authority, certificate and key, None without TLS. Without configured paths, return those
        of this process if every port of its cluster speaks TLS. Raise ConfigError."""
        if self.tls_ca is not None:
            return self.tls_ca, self.tls_cert, self.tls_key
        files = process.tls_files()
        return None if files is None or files.ca is None else (files.ca, files.cert, files.key)

    def kazoo_tls(self) -> dict[str, Any]:
        """Return the arguments of KazooClient that set up TLS, empty without TLS. kazoo reads the files again for each
        connection. Raise ConfigError."""
        paths = self.tls_paths()
        if paths is None:
            return {}
        ca, cert, key = paths
        options: dict[str, Any] = {"use_ssl": True, "ca": str(ca), "check_hostname": self.verify_host}
        if cert is not None:
            options |= {"certfile": str(cert), "keyfile": str(key or cert)}
        return options


def _lines(perms: int, identities: tuple[tuple[str, str], ...]) -> list[Acl]:
    return [Acl(perms, scheme.encode(), name.encode()) for scheme, name in identities]


def parse_identities(text: str, what: str) -> tuple[tuple[str, str], ...]:
    """Parse identities: `x509:CN=ops,O=Example,sasl:ann`. `what` is the word for an identity in errors, such as
    "reader". Raise ConfigError.

    A comma separates two identities only before a scheme, because certificates' subjects contain commas.
    """
    found = []
    for part in filter(None, (part.strip() for part in _BETWEEN_IDENTITIES.split(text))):
        scheme, colon, name = part.partition(":")
        if scheme not in _PROVING_SCHEMES or not colon or not name:
            raise ConfigError(f"{what} {part!r} is not SCHEME:ID with one of the schemes {', '.join(_PROVING_SCHEMES)}")
        if scheme == "digest" and not is_digest(name):
            raise ConfigError(f"a {what} of scheme digest is digest:USER:HASH with base64 of SHA-1 of USER:PASSWORD")
        found.append((scheme, name))
    return tuple(dict.fromkeys(found))


def read_role(directory: Path, *, is_server: bool) -> StoreAccess:
    """Return how a daemon or command proves itself to the store of its cluster by the files of a directory.

    A region server proves its own key if the directory has STORE_MASTERS_FILE. Otherwise it has the masters'
    credential, as in clusters of earlier builds. Masters and commands have the credential. Raise ConfigError.
    """
    check_directory(directory)
    servers, readers = parse_identities(SERVERS_IDENTITY, "server"), parse_identities(READERS, "reader")
    masters, credential = directory / STORE_MASTERS_FILE, directory / STORE_AUTH_FILE
    if is_server and masters.exists():
        return StoreAccess(masters=parse_identities(_line_of(masters), "master"), servers=servers, readers=readers)
    if not credential.exists():
        needed = f"{STORE_MASTERS_FILE} for a region server" if is_server else f"{STORE_AUTH_FILE} of the masters"
        raise ConfigError(
            f"{directory} has no file {needed}: copy it from the directory in which the cluster's credentials were made"
        )
    return StoreAccess(auth=_line_of(credential), servers=servers, readers=readers)


def _line_of(path: Path) -> str:
    """Return the first line of a file with a secret. Raise ConfigError if there is none."""
    line = read_private(path).decode("utf-8", "replace").partition("\n")[0].strip()
    if not line:
        raise ConfigError(f"{path} is empty: copy it again from where the cluster's credentials were made")
    return line


#: A plain TCP connection without authentication.
OPEN_ACCESS = StoreAccess()
