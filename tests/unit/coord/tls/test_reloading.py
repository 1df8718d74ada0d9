"""Certificates that are renewed while the process runs, and files that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from coord.errors import ConfigError
from coord.tls.context import Engine, TlsError, TlsFiles
from coord.tls.reloading import CallerContext, TlsContexts
from tests.support.certificates import Authority
from tests.unit.coord.tls.test_tls import exchange


class Renewed:
    """A daemon's files, which are replaced by those of another authority."""

    def __init__(self, folder: Path) -> None:
        self.authorities = [Authority(folder / name) for name in ("first", "second")]
        self.cert, self.key, self.ca = (folder / name for name in ("own.pem", "own.key", "ca.pem"))
        self.files = [(*one.issue("daemon"), one.cert) for one in self.authorities]
        self.use(0)
        self.contexts = TlsContexts(TlsFiles(self.cert, self.key, self.ca, "need"))

    def use(self, number: int, *names: str) -> None:
        """Replace all files, or those of these names, by those of an authority, in one step each."""
        for path, source in zip((self.cert, self.key, self.ca), self.files[number], strict=True):
            if not names or path.name in names:
                new = path.with_suffix(".new")
                new.write_bytes(source.read_bytes())
                new.replace(path)

    def accepts(self, number: int) -> bool:
        """Return whether a client that has and trusts the files of an authority gets an answer."""
        cert, key, ca = self.files[number]
        context = CallerContext(ca, cert, key, verify_host=False).now()
        try:
            made = exchange(Engine(self.contexts.server(), is_server=True), Engine(context, is_server=False))
        except TlsError:
            return False
        return made == (b"question", b"answer")


def test_replaced_files_are_in_force_for_the_next_connection(tmp_path: Path) -> None:
    """Fails if `TlsContexts` makes its contexts once, as the store's ports did."""
    daemon = Renewed(tmp_path)
    assert daemon.accepts(0)
    assert not daemon.accepts(1)
    daemon.use(1)
    assert daemon.accepts(1)
    assert not daemon.accepts(0)
    assert daemon.contexts.problem == ""


def test_half_replaced_files_leave_the_former_in_force(tmp_path: Path) -> None:
    """A certificate beside another key is a problem that has a sentence; the daemon goes on."""
    daemon = Renewed(tmp_path)
    daemon.use(1, "own.pem")
    assert daemon.accepts(0)
    assert "own.key" in daemon.contexts.problem
    daemon.use(1, "own.key", "ca.pem")
    assert daemon.accepts(1)
    assert daemon.contexts.problem == ""


def test_a_client_reads_its_files_again_too(tmp_path: Path) -> None:
    """Fails if `CallerContext.now` returns the context of its first files."""
    daemon = Renewed(tmp_path)
    caller = CallerContext(daemon.ca, None, None, verify_host=False)
    server = TlsContexts(TlsFiles(*daemon.files[1]))

    def is_trusted() -> bool:
        try:
            return exchange(Engine(server.server(), is_server=True), Engine(caller.now(), is_server=False))[1] != b""
        except TlsError:
            return False

    assert not is_trusted()
    daemon.use(1, "ca.pem")
    assert is_trusted()


def test_unusable_files_at_the_start_are_an_error(tmp_path: Path) -> None:
    """The first reading raises."""
    with pytest.raises(ConfigError):
        TlsContexts(TlsFiles(tmp_path / "missing"))


def test_what_expires(tmp_path: Path) -> None:
    """The certificate and the authority, in PEM."""
    daemon = Renewed(tmp_path)
    assert daemon.contexts.certificates() == {
        "own": daemon.cert.read_bytes(), "authority": daemon.ca.read_bytes(),
    }  # fmt: skip
