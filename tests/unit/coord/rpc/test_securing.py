"""RPC while a cluster is being secured: open callers are served beside the others, and open daemons are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from coord.rpc.wire import Code
from coord.security import process, revocation
from coord.security.credentials import OPEN_TOO_FILE, Credentials, read_daemon, read_user
from coord.security.principal import NOBODY
from tests.unit.coord.rpc.test_proof import ALICE, SERVER, Answer, Secured, made, with_certificates


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a directory of credentials with the file that lets open callers in."""
    made(tmp_path / "own", "11")
    (tmp_path / "own" / OPEN_TOO_FILE).touch()
    return tmp_path / "own"


def test_callers_with_and_without_a_proof_are_served(folder: Path) -> None:
    """The handler knows who has proved something. An open caller is not authorized: it has no identity.

    Fails if `_admit_open` admits nobody, or if `payload_received` authorizes unproven callers.
    """
    own = read_daemon(folder, SERVER)
    world = Secured(own)
    world.forbidden = {1}
    assert world.call(None, 1) == [Answer(1)]
    world.connection, world.transport = world.connect()
    assert world.call(read_user(folder), 2) == [Answer(2)]
    assert world.seen == [(NOBODY, 1), (ALICE, 2)]


def test_open_callers_end_with_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that stand are closed, new ones refused, and the file's return changes nothing.

    Fails if `Frames.revoked` ignores `is_unproven`.
    """
    own = read_daemon(folder, SERVER)
    monkeypatch.setattr(process, "is_securing", own.is_securing)
    world = Secured(own)
    assert world.call(None, 1) == [Answer(1)]
    revocation.recheck()
    assert not world.transport.disconnecting_write
    (folder / OPEN_TOO_FILE).unlink()
    revocation.recheck()
    assert world.transport.disconnecting_write
    (folder / OPEN_TOO_FILE).touch()
    world.connection, world.transport = world.connect()
    [error] = world.call(None, 2)
    assert error.code == Code.UNAUTHENTICATED


def test_an_open_daemon_is_called_without_a_proof(folder: Path) -> None:
    """The call itself does not fail: nothing of it was sent before the daemon was known to be open.

    Fails if `disconnected` forgets `is_open_daemon`.
    """
    world = Secured(None)
    assert world.call(read_user(folder), 1, 2) == [Answer(1), Answer(2)]
    assert world.seen == [(NOBODY, 1), (NOBODY, 2)]


@pytest.mark.parametrize("kind", ["keys", "certificates"])
def test_without_the_file_nothing_is_open(tmp_path: Path, kind: str) -> None:
    """And certificates ignore the file."""
    alice, server = (made if kind == "keys" else with_certificates)(tmp_path / "own", *(["11"] * (kind == "keys")))
    assert isinstance(server, Credentials)
    if kind == "certificates":
        (server.directory / OPEN_TOO_FILE).touch()
        server = read_daemon(server.directory, SERVER)
    assert Secured(server).call(None, 1)[0].code == Code.UNAUTHENTICATED
    assert Secured(None).call(alice, 1)[0].code == Code.UNAUTHENTICATED
