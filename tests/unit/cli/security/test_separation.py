"""The files by which region servers prove an identity of their own, and when they must not be made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.common.errors import CliError, ExitStatus
from cli.common.local import SUPER_FILE, make_super
from cli.main import run
from cli.security import separation
from cli.security.separation import SERVERS_DIR, is_separated, separate
from coord.errors import ConfigError
from coord.security import making, process
from coord.security.credentials import STORE_MASTERS_FILE
from coord.security.making import PEERS_FILE
from coord.security.principal import Principal


@pytest.fixture(autouse=True)
def nobody() -> Iterator[None]:
    """Forget the identity that a command with --certs-dir has given to this process: later tests run in it, too."""
    yield
    process.use(None)


def older(folder: Path) -> Path:
    """Return the directory of credentials of a cluster that an earlier build has secured."""
    making.init(folder, Principal("user", "admin"))
    make_super(folder)
    return folder


def begin(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Run `rk secure --begin`; return its first step."""
    assert run(["secure", "--begin", "--certs-dir", str(folder), "--json"]) == ExitStatus.OK
    return str(json.loads(capsys.readouterr().out)["steps"][0])


def test_an_interrupted_separation_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried: with the file of the directory itself first, `rk secure` took the servers for separated, and made no more
    files."""
    folder = older(tmp_path / "certs")

    def full(path: Path, content: bytes) -> None:
        if path.name == PEERS_FILE:
            raise ConfigError("no space left on device")
        making.write_private(path, content)

    with monkeypatch.context() as broken:
        broken.setattr(separation, "write_private", full)
        with pytest.raises(CliError, match="no space left"):
            separate(folder)
    assert not is_separated(folder)
    assert separate(folder) == [folder / SERVERS_DIR]
    assert is_separated(folder)
    assert {one.name for one in (folder / SERVERS_DIR).iterdir()} >= {PEERS_FILE, STORE_MASTERS_FILE}


def test_begin_separates_no_servers_of_an_older_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its access lists do not name the servers, which would be locked out at their next start. Tried: `--begin` made
    the file in every directory."""
    folder = older(tmp_path / "older")
    assert SUPER_FILE not in begin(folder, capsys)
    assert not is_separated(folder)
    for _ in range(2):  # it may be repeated
        assert f"{SUPER_FILE} where only region servers run" in begin(tmp_path / "new", capsys)
        assert is_separated(tmp_path / "new")
