"""The directory of --certs-dir: the identity that this process proves, and the identities that it accepts.

    cluster-secret.json    the cluster's secret: for daemons, and to issue keys
    user.NAME.json         the key of one user
    ca.crt                 authorities whose certificates are accepted
    KIND.NAME.crt, .key    certificate of a daemon or user, and its key
    tls-on-every-port      says that every port of the cluster speaks TLS by these certificates
    open-while-securing    says that callers and peers without a proof are served, too
    store-auth             the masters' credential for the store, USER:PASSWORD (`--store-auth @DIR`)
    store-masters          the masters' identities, for region servers that prove their own key to the store

With a certificate this process proves it, and accepts nothing but certificates: TLS both ways. Without one it proves
keys (`coord.security.handshake`). Without `tls-on-every-port` certificates are for RPC alone, and the store, peers and
admin ports have options of their own.

`open-while-securing` is for the change of an open cluster to a secured one while it runs (`rk secure`). A daemon that
finds this file when it starts proves its key to every caller that requests it, and serves the others as an open daemon
does, until the file is removed. Credentials with a certificate ignore the file.

Files are read again when they change, so a rotation needs no restart. A file that other users can read is not a secret,
and is rejected.
"""

from __future__ import annotations

import datetime
import hmac
import os
import ssl
import stat
from pathlib import Path
from typing import Final

from coord.errors import ConfigError
from coord.security import revocation
from coord.security.channel import DialingChannel, ListeningChannel, ProofChannel
from coord.security.handshake import NONCE_BYTES, HandshakeError
from coord.security.keys import ClusterSecrets, IdentityKey, decode_key, decode_secrets, issue
from coord.security.principal import USER, Principal, is_valid, parse_principal
from coord.security.revocation import ShownCredential
from coord.security.tls_channel import TlsChannel
from coord.tls.context import NEED, TlsFiles, client_context, server_context
from coord.tls.reloading import version_of

CLUSTER_FILE: Final = "cluster-secret.json"
AUTHORITY_FILE: Final = "ca.crt"
CERTIFICATE_SUFFIX: Final = ".crt"
_KEY_SUFFIX: Final = ".key"
EVERY_PORT_FILE: Final = "tls-on-every-port"
OPEN_TOO_FILE: Final = "open-while-securing"
STORE_AUTH_FILE: Final = "store-auth"
STORE_MASTERS_FILE: Final = "store-masters"
#: Purposes of tokens: a token for one kind of port is worth nothing at the other kind.
FOR_ADMIN: Final = b"regionkeeper admin 1 "
FOR_STORE: Final = b"regionkeeper store 1 "
#: Permissions that a file with secrets must not give: anything to other users, or writing to its group.
_TOO_OPEN: Final = 0o027
#: Longest number of a secret in a token.
_NUMBER_DIGITS: Final = 9


def key_file(directory: Path, principal: Principal) -> Path:
    """Return the path of an identity's key."""
    return directory / f"{principal.kind}.{principal.name}.json"


class Credentials:
    """The credentials of this process, for both ends of its connections."""

    def __init__(self, directory: Path, principal: Principal) -> None:
        """Read the directory for `principal`. Raise ConfigError."""
        self.directory = directory
        #: This process's certificate, None if it proves a key.
        self.certificate = certificate_of(directory, principal)
        self.principal = principal if self.certificate is None else _named_by(self.certificate)
        #: TLS contexts of accepted and of opened connections.
        self._contexts: tuple[ssl.SSLContext, ssl.SSLContext] | None = None
        self._seen: tuple[object, ...] = ()
        self._secrets: ClusterSecrets | None = None
        self._key: IdentityKey | None = None
        self._problem = ""
        #: When this process's certificate and the newest authority expire; empty without a certificate.
        self._ends: dict[str, datetime.datetime] = {}
        #: The file was there at the start, and has not been missed since.
        self._is_securing = self.certificate is None and (directory / OPEN_TOO_FILE).exists()
        self._read()

    @property
    def problem(self) -> str:
        """Why the changed files cannot be used; "" if they can. Meanwhile the last usable ones are."""
        return self._problem

    def is_securing(self) -> bool:
        """Return True while callers and peers without a proof are served, too. Once False, it stays False."""
        self._is_securing = self._is_securing and (self.directory / OPEN_TOO_FILE).exists()
        return self._is_securing

    def certificate_ends(self) -> dict[str, datetime.datetime]:
        """Return when this process's certificate ("own") and the newest authority ("authority") expire."""
        self._refresh()
        return self._ends

    def expiring(self) -> list[str]:
        """Return a sentence for each certificate that soon expires (`coord.security.certificate_facts`)."""
        found = [
            (f"the certificate of {self.principal}" if what == "own" else f"the {what}", end)
            for what, end in self.certificate_ends().items()
        ]
        if not found:
            return []
        from coord.security.certificate_facts import expiring  # loads a library that keys do not need

        return expiring(found, datetime.datetime.now(datetime.UTC))

    def tls_files(self) -> TlsFiles | None:
        """Return the files by which every port of the cluster speaks TLS, None if certificates are for RPC alone."""
        if self.certificate is None or not (self.directory / EVERY_PORT_FILE).exists():
            return None
        return _tls_files(self.certificate, self.directory / AUTHORITY_FILE)

    @property
    def cluster(self) -> str:
        """The credentials' id of the cluster, "" for a certificate without a key."""
        return self._key.cluster if self._key is not None else ""

    def dialer(self, wanted: str = "", host: str = "") -> ProofChannel:
        """Return the channel of a connection that this process opens to `host`.

        `wanted`: see `coord.security.handshake`.
        """
        self._refresh()
        if self._contexts is not None:
            return TlsChannel(self._contexts[1], is_server=False, host=host, wanted=wanted)
        key = self._own_key()
        return DialingChannel(
            self.principal, key.cluster, key.number, bytes.fromhex(key.key), os.urandom(NONCE_BYTES), wanted
        )

    def listener(self) -> ProofChannel:
        """Return the channel of a connection that this process accepts."""
        self._refresh()
        if self._contexts is not None:
            return TlsChannel(self._contexts[0], is_server=True)
        return ListeningChannel(
            self.principal, self.cluster, self._key_of, os.urandom(NONCE_BYTES), admits_open=self.is_securing
        )

    def token(self, purpose: bytes = FOR_ADMIN) -> str:
        """Return the token that this principal sends to admin ports (`coord.security.admin`), "" without a key.

        `purpose`: FOR_STORE returns the digest credential that store nodes take instead.
        """
        self._refresh()
        key = self._key
        if key is None:
            return ""
        return f"{self.principal}:{key.number}:{_token_mac(bytes.fromhex(key.key), key.cluster, purpose)}"

    def principal_of(self, token: str, purpose: bytes = FOR_ADMIN) -> Principal | None:
        """Return the principal whose valid token this is, else None."""
        shown = self.shown_by(token, purpose)
        return None if shown is None else shown.who

    def shown_by(self, token: str, purpose: bytes = FOR_ADMIN) -> ShownCredential | None:
        """Return the key that a valid token comes from, else None."""
        who, _, mac = token.rpartition(":")
        found = self.secret_part_of(who, purpose)
        return found[0] if found is not None and hmac.compare_digest(found[1].encode(), mac.encode()) else None

    def secret_part_of(self, who: str, purpose: bytes = FOR_ADMIN) -> tuple[ShownCredential, str] | None:
        """Return the key and the last part of the token that begins with `who`, for instance `user:alice:1`; None if
        there is no such token."""
        self._refresh()
        kind, _, rest = who.partition(":")
        name, _, number = rest.rpartition(":")
        if not is_valid(kind, name) or not number.isascii() or not number.isdecimal() or len(number) > _NUMBER_DIGITS:
            return None
        shown = ShownCredential(Principal(kind, name), int(number))
        try:
            key = self._key_of(shown.who, shown.number)
        except HandshakeError:
            return None
        return None if key is None else (shown, _token_mac(key, self.cluster, purpose))

    def _key_of(self, principal: Principal, number: int) -> bytes | None:
        """Raise HandshakeError for a revoked key."""
        objection = revocation.known().key_objection(principal, number)
        if objection:
            raise HandshakeError(objection)
        return None if self._secrets is None else self._secrets.key_of(principal, number)

    def _own_key(self) -> IdentityKey:
        assert self._key is not None
        return self._key

    def _refresh(self) -> None:
        """Read the files again if one has changed; keep the last usable ones if that fails."""
        try:
            if self._stats() != self._seen:
                self._read()
        except ConfigError as error:
            self._problem = str(error)

    def _stats(self) -> tuple[object, ...]:
        paths = [self._secrets_path(), self._key_path()]
        if self.certificate is not None:
            paths += [self.certificate, self.certificate.with_suffix(_KEY_SUFFIX), self.directory / AUTHORITY_FILE]
        return tuple(version_of(path) for path in paths)

    def _secrets_path(self) -> Path:
        return self.directory / CLUSTER_FILE

    def _key_path(self) -> Path:
        return key_file(self.directory, self.principal)

    def _read(self) -> None:
        seen = self._stats()
        if self.certificate is not None:
            from coord.security.certificate_facts import facts_of  # loads a library that keys do not need

            authority = self.directory / AUTHORITY_FILE
            self._contexts = _contexts(self.certificate, authority)
            read = {"own": self.certificate, "authority": authority}
            self._ends = {what: facts_of(path.read_bytes())[0].expires for what, path in read.items()}
        # For tokens, and in place of a certificate.
        is_optional = self.certificate is not None
        if is_optional and not (self._secrets_path() if self.principal.is_daemon else self._key_path()).exists():
            self._secrets = self._key = None
        elif self.principal.is_daemon:
            path = self._secrets_path()
            self._secrets = decode_secrets(read_private(path), str(path))
            self._key = issue(self._secrets, self.principal)
        else:
            path = self._key_path()
            key = decode_key(read_private(path), str(path))
            if key.principal != self.principal:
                raise ConfigError(f"{path} holds the key of {key.principal}: rename the file, or issue another key")
            self._key = key
        self._seen, self._problem = seen, ""


def _token_mac(key: bytes, cluster: str, purpose: bytes) -> str:
    return hmac.digest(key, purpose + cluster.encode(), "sha256").hex()


def read_user(directory: Path, name: str = "") -> Credentials:
    """Return the credentials of the user in `directory`; `name` chooses one of several. Raise ConfigError."""
    check_directory(directory)
    files = [*directory.glob(f"{USER}.*.json"), *directory.glob(f"{USER}.*{CERTIFICATE_SUFFIX}")]
    names = sorted({path.stem[len(f"{USER}.") :] for path in files})
    if not name and len(names) != 1:
        found = (
            f"keys of {len(names)} users: name one with RK_CERTS_USER" if names else "no key of a user (user.NAME.json)"
        )
        raise ConfigError(f"{directory} has {found}; `rk certs issue` makes keys")
    return Credentials(directory, Principal(USER, name or names[0]))


def read_daemon(directory: Path, principal: Principal) -> Credentials:
    """Return the credentials of a daemon. Raise ConfigError."""
    check_directory(directory)
    return Credentials(directory, principal)


def certificate_of(directory: Path, principal: Principal) -> Path | None:
    """Return the certificate that this process presents, None if there is none: that of the user, or of the daemon.

    Raise ConfigError if the directory has certificates of several daemons of this kind.
    """
    name = "*" if principal.is_daemon else principal.name
    found = sorted(directory.glob(f"{principal.kind}.{name}{CERTIFICATE_SUFFIX}"))
    if len(found) > 1:
        raise ConfigError(f"{directory} has certificates of {len(found)} daemons: give each daemon its own directory")
    return found[0] if found else None


def _named_by(certificate: Path) -> Principal:
    """Return the principal in the name of a certificate's file. Raise ConfigError."""
    return parse_principal(certificate.stem.replace(".", ":", 1))


def _contexts(certificate: Path, authority: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the TLS contexts of accepted and of opened connections. Raise ConfigError."""
    read_private(certificate.with_suffix(_KEY_SUFFIX))
    files = _tls_files(certificate, authority)
    return server_context(files), client_context(files)


def _tls_files(certificate: Path, authority: Path) -> TlsFiles:
    return TlsFiles(certificate, certificate.with_suffix(_KEY_SUFFIX), authority, client_auth=NEED, verify_host=True)


def check_directory(directory: Path) -> None:
    """Raise ConfigError unless `directory` is a directory that only its owner can write."""
    try:
        mode = directory.stat().st_mode
    except OSError as error:
        raise ConfigError(f"cannot read --certs-dir {directory}: {error.strerror or error}") from error
    if not stat.S_ISDIR(mode):
        raise ConfigError(f"--certs-dir {directory} is no directory")
    if mode & 0o022:
        raise ConfigError(f"--certs-dir {directory} can be written by other users: chmod 700 {directory}")


def check_private(path: Path) -> None:
    """Raise ConfigError for a secret that other users may read. A file that is missing, or is no plain file, such as a
    shell's pipe, is left to its reader."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    if stat.S_ISREG(mode) and mode & _TOO_OPEN:
        raise ConfigError(f"{path} holds a secret and is open to other users: chmod 600 {path}")


def read_private(path: Path) -> bytes:
    """Return the content of a file with a secret. Raise ConfigError."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & _TOO_OPEN:
                raise ConfigError(f"{path} holds a secret and is open to other users: chmod 600 {path}")
            return file.read()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
