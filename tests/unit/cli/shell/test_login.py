"""`rk login` and `rk logout`: copies of one user's credentials, readable by the user alone."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from cli.common.access import credentials_of
from cli.common.errors import ExitStatus
from cli.common.options import Globals
from cli.main import run
from coord.security import process

STORE = ("--store", "127.0.0.1:1")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty configuration directory; `tmp_path/alice` has the credentials of a user."""
    monkeypatch.delenv("RK_CONFIG_FILE")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    ca = ("--certs-dir", str(tmp_path / "ca"))
    assert run(["certs", "init", "--tls", *ca]) == ExitStatus.OK
    assert run(["certs", "issue", "--user", "alice", "--to", str(tmp_path / "alice"), *ca]) == ExitStatus.OK
    process.forget()
    return tmp_path / "config" / "rk"


def login(home: Path, *words: str) -> int:
    """Log in as alice, without a cluster."""
    certs = home.parent.parent / "alice"
    return run(["login", *words, "--no-check", *STORE, "--certs-dir", str(certs)])


def test_later_commands_need_no_options(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The context is in use, and its credentials are alice's, also after her own directory is gone."""
    assert login(home, "prod") == ExitStatus.OK
    assert "logged in as user:alice" in capsys.readouterr().out
    given = Globals()
    assert given.explicit_store() == "127.0.0.1:1"
    found = credentials_of(given)
    assert found is not None
    assert (str(found.principal), found.directory) == ("user:alice", home / "credentials" / "prod")


def test_copies_belong_to_the_user_alone(home: Path) -> None:
    """Files 0600, directories 0700, and nothing of others. Fails without `write_private` or the modes of `_keep`."""
    assert login(home) == ExitStatus.OK
    folder = home / "credentials" / "default"
    assert sorted(one.name for one in folder.iterdir()) == [
        "ca.crt", "tls-on-every-port", "user.alice.crt", "user.alice.json", "user.alice.key",
    ]  # fmt: skip
    assert {stat.S_IMODE(one.stat().st_mode) for one in folder.iterdir()} == {0o600}
    assert {stat.S_IMODE(one.stat().st_mode) for one in (folder, folder.parent)} == {0o700}
    assert stat.S_IMODE((home / "config.toml").stat().st_mode) == 0o600


def test_logout_deletes_them(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And the context; a second login replaces the first."""
    assert login(home, "prod") == login(home, "prod") == ExitStatus.OK
    capsys.readouterr()
    assert run(["logout", "--json"]) == ExitStatus.OK
    assert json.loads(capsys.readouterr().out)["context"] == "prod"
    assert not (home / "credentials" / "prod").exists()
    assert "prod" not in (home / "config.toml").read_text()
    assert run(["logout"]) == ExitStatus.NOT_FOUND
    assert "nobody is logged in" in capsys.readouterr().err


def test_contexts_of_others_making_are_left_alone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither replaced by a login nor removed by a logout."""
    assert run(["context", "add", "mine", *STORE]) == ExitStatus.OK
    assert login(home, "mine") == ExitStatus.REFUSED
    assert "no login has made it" in capsys.readouterr().err
    assert run(["logout", "mine"]) == ExitStatus.REFUSED
    assert "rk context remove mine" in capsys.readouterr().err
    assert login(home, "../x") == ExitStatus.USAGE
    process.forget()
    assert run(["login", "--no-check", *STORE]) == ExitStatus.USAGE
    assert "no credentials to log in with" in capsys.readouterr().err
