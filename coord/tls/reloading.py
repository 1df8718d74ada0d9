"""TLS contexts of files that change while the process runs: a renewed certificate needs no restart.

Each request for a context checks whether a file has changed. The check costs three system calls per new connection; a
TLS handshake costs a thousand times as much. Files that cannot be used, such as a new certificate beside the old key,
leave the last usable contexts in force.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from coord.errors import ConfigError
from coord.tls.context import TlsFiles, caller_context, client_context, server_context
from coord.tls.keystore import read_store


class _ReadAgain:
    """Something that is made of files, and made again when one of them has changed."""

    def __init__(self, *paths: Path | None) -> None:
        """Read the files. Raise ConfigError."""
        #: Why the changed files cannot be used; "" if they can.
        self.problem = ""
        self._paths = [path for path in paths if path is not None]
        self._seen = self.version()
        self._read()

    def version(self) -> tuple[object, ...]:
        """Return a value that changes with the content of the files."""
        return tuple(version_of(path) for path in self._paths)

    def _read(self) -> None:
        """Make it. Raise ConfigError, and then change nothing."""
        raise NotImplementedError

    def _refresh(self) -> None:
        version = self.version()
        if version == self._seen:
            return
        try:
            self._read()
        except ConfigError as error:
            self.problem = str(error)
        else:
            self._seen, self.problem = version, ""


class TlsContexts(_ReadAgain):
    """The contexts of the connections that a daemon accepts, and opens to its peers."""

    def __init__(self, files: TlsFiles) -> None:
        """Read the files. Raise ConfigError."""
        self.files = files
        self._server: ssl.SSLContext
        #: None without an authority: then this process opens no connections with these files.
        self._client: ssl.SSLContext | None
        super().__init__(files.cert, files.key, files.ca)

    def server(self) -> ssl.SSLContext:
        """Return the context of a connection that is accepted now."""
        self._refresh()
        return self._server

    def client(self) -> ssl.SSLContext:
        """Return the context of a connection that is opened now."""
        self._refresh()
        assert self._client is not None, f"{self.files} trusts nobody"
        return self._client

    def certificates(self) -> dict[str, bytes]:
        """Return the certificates that expire, in PEM: this process's ("own") and the newest authority's ("authority").

        Raise ConfigError.
        """
        files = self.files
        found = {"own": read_store(files.cert, files.key_password).own.encode("latin-1")}
        if files.ca is not None:
            found["authority"] = read_store(files.ca, files.ca_password).trusted.encode("latin-1")
        return found

    def _read(self) -> None:
        server = server_context(self.files)
        self._client = client_context(self.files) if self.files.ca is not None else None
        self._server = server


class CallerContext(_ReadAgain):
    """The context of a client, which may show no certificate (`caller_context`)."""

    def __init__(self, ca: Path, cert: Path | None, key: Path | None, *, verify_host: bool) -> None:
        """Read the files. Raise ConfigError."""
        self._files = (ca, cert, key)
        self._verify_host = verify_host
        self._context: ssl.SSLContext
        super().__init__(ca, cert, key)

    def now(self) -> ssl.SSLContext:
        """Return the context of a connection that is opened now."""
        self._refresh()
        return self._context

    def _read(self) -> None:
        self._context = caller_context(*self._files, verify_host=self._verify_host)


def version_of(path: Path) -> tuple[int, int, int] | None:
    """Return a value that changes with a file's content, None if the file is missing."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
