"""`rk certs`, and the credentials that commands use."""

from __future__ import annotations

import datetime
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.common.access import check_exposed, credentials_of
from cli.common.errors import ExitStatus, UsageFaultError
from cli.common.local import CERTS_DIR, FIRST_USER, Shape, design, read_cluster, write_cluster
from cli.common.options import Globals
from cli.main import run
from cli.security import daemons
from cli.security.separation import separate
from coord.errors import ConfigError
from coord.security import process
from coord.security.channel import Unproven
from coord.security.credentials import CLUSTER_FILE, read_daemon, read_user
from coord.security.making import secrets_in
from coord.security.principal import SERVER, Principal
from tests.unit.coord.security.test_credentials import shake

ONE = Principal(SERVER, "one")


@pytest.fixture(autouse=True)
def _no_credentials(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("RK_CERTS_DIR", raising=False)
    yield
    process.forget()


def test_init_and_issue_make_what_daemons_and_users_need(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All files are for their owner only; alice's directory has her key and nothing else."""
    home, alice = tmp_path / "certs", tmp_path / "alice"
    assert run(["certs", "init", "--certs-dir", str(home)]) == ExitStatus.OK
    assert run(["certs", "issue", "--user", "alice", "--to", str(alice), "--certs-dir", str(home)]) == ExitStatus.OK
    assert [one.name for one in alice.iterdir()] == ["user.alice.json"]
    for path in (*home.iterdir(), *alice.iterdir()):
        assert path.stat().st_mode & 0o777 == 0o600
    assert {one.stat().st_mode & 0o777 for one in (home, alice)} == {0o700}
    assert shake(read_user(alice), read_daemon(home, ONE)) == (ONE, Principal("user", "alice"))
    capsys.readouterr()
    assert run(["certs", "list", "--certs-dir", str(home), "--json"]) == ExitStatus.OK
    listed = {one["file"]: (one["what"], one["problem"]) for one in json.loads(capsys.readouterr().out)}
    assert listed == {
        "cluster-secret.json": ("secret of the cluster", ""),
        "peer-secret": ("secret of peers", ""),
        "user.admin.json": ("key", ""),
    }


def test_keys_get_an_authority_besides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The way from keys to certificates: the secret stays, and with it the cluster's id and the list of revocations.

    Tried: `making.init` in any case. A second run is refused, as ever.
    """
    home = tmp_path / "certs"
    assert run(["certs", "init", "--certs-dir", str(home)]) == ExitStatus.OK
    before = (home / CLUSTER_FILE).read_bytes()
    assert run(["certs", "init", "--tls", "--certs-dir", str(home)]) == ExitStatus.OK
    assert "an authority of cluster" in capsys.readouterr().out
    assert (home / CLUSTER_FILE).read_bytes() == before
    assert read_user(home).certificate is not None
    assert run(["certs", "init", "--tls", "--certs-dir", str(home)]) == ExitStatus.REFUSED


def test_a_second_init_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It would lock every daemon and user out."""
    assert run(["certs", "init", "--certs-dir", str(tmp_path / "certs")]) == ExitStatus.OK
    before = {one.name: one.read_bytes() for one in (tmp_path / "certs").iterdir()}
    assert run(["certs", "init", "--certs-dir", str(tmp_path / "certs")]) == ExitStatus.REFUSED
    assert "rk certs rotate" in capsys.readouterr().err
    assert {one.name: one.read_bytes() for one in (tmp_path / "certs").iterdir()} == before


def test_rotation_in_three_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Old keys hold until `--finish`; new keys hold from the first step on, and daemons prove them from the second on.

    A machine that has the files of the step before is understood, and understands. A step that is left out or repeated
    too early is refused. Tried: `rotate` that uses the new secret at once.
    """
    home, alice = tmp_path / "certs", tmp_path / "alice"
    where = ["--certs-dir", str(home)]
    assert run(["certs", "init", *where]) == ExitStatus.OK
    assert run(["certs", "issue", "--user", "alice", "--to", str(alice), *where]) == ExitStatus.OK
    daemon, old = read_daemon(home, ONE), read_user(alice)
    far = tmp_path / "far"
    shutil.copytree(home, far)
    other = read_daemon(far, Principal(SERVER, "two"))
    assert run(["certs", "rotate", *where]) == ExitStatus.OK
    assert (shake(old, daemon)[0], shake(daemon, other)[1]) == (ONE, ONE)
    for early in (["rotate"], ["rotate", "--finish"]):
        assert run(["certs", *early, *where]) == ExitStatus.REFUSED
        assert "continue with `rk certs renew`" in capsys.readouterr().err
    shutil.copy(home / CLUSTER_FILE, far)
    new = tmp_path / "new"
    assert run(["certs", "issue", "--user", "alice", "--to", str(new), *where]) == ExitStatus.OK
    assert shake(read_user(new), daemon)[0] == ONE
    assert run(["certs", "renew", *where]) == ExitStatus.OK
    assert "renewed the credentials of user:admin" in capsys.readouterr().out
    assert (shake(daemon, other)[1], shake(other, daemon)[0]) == (ONE, ONE)
    shutil.copy(home / CLUSTER_FILE, far)
    assert run(["certs", "rotate", "--finish", *where]) == ExitStatus.OK
    assert (shake(daemon, other)[1], shake(other, daemon)[0]) == (ONE, ONE)
    assert shake(read_user(new), daemon)[0] == ONE
    with pytest.raises(Unproven, match="of secret 1, which the cluster does not have"):
        shake(old, daemon)


@pytest.mark.parametrize(
    ("words", "status", "error"),
    [
        (["issue", "--user", "a/b", "--to", "x"], ExitStatus.REFUSED, "is no identity"),
        (["issue", "--user", "bob", "--to", "x"], ExitStatus.REFUSED, "cannot read --certs-dir"),
        (["list"], ExitStatus.USAGE, "there is no directory"),
        (["rotate"], ExitStatus.REFUSED, "cannot read --certs-dir"),
    ],
)
def test_mistakes(
    tmp_path: Path, words: list[str], status: int, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence each."""
    assert run(["certs", *words, "--certs-dir", str(tmp_path / "none")]) == status
    assert error in capsys.readouterr().err


def test_a_rotation_reaches_the_directory_of_separate_servers(tmp_path: Path) -> None:
    """Tried: `rotate` hands out nothing without an authority: the servers would have the old secret alone."""
    where = tmp_path / "home"
    assert run(["certs", "init", "--certs-dir", str(where)]) == ExitStatus.OK
    assert separate(where) == [where / "servers"]
    assert sorted(one.name for one in (where / "servers").iterdir()) == [
        "cluster-secret.json",
        "peer-secret",
        "store-masters",
    ]
    for words in (["rotate"], ["renew"], ["rotate", "--finish"]):
        assert run(["certs", *words, "--certs-dir", str(where)]) == ExitStatus.OK
        assert secrets_in(where / "servers") == secrets_in(where)


def test_a_users_directory_issues_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error was that of the missing file alone."""
    assert run(["certs", "init", "--certs-dir", str(tmp_path / "home")]) == ExitStatus.OK
    alice = tmp_path / "alice"
    words = ["certs", "issue", "--certs-dir", str(tmp_path / "home"), "--user", "alice", "--to", str(alice)]
    assert run(words) == ExitStatus.OK
    for one in (["rotate"], ["rotate", "--finish"], ["issue", "--user", "bob", "--to", str(tmp_path / "bob")]):
        assert run(["certs", *one, "--certs-dir", str(alice)]) == ExitStatus.REFUSED
        assert "give the directory in which the cluster's credentials were made" in capsys.readouterr().err


def test_a_users_directory_below_gets_no_secret(tmp_path: Path) -> None:
    """Each step reaches the directories of daemons and of users; the cluster's secret is for daemons alone.

    Tried: `hand_out` without the question whether a certificate is a daemon's.
    """
    home = tmp_path / "home"
    where = ["--certs-dir", str(home)]
    assert run(["certs", "init", "--tls", *where]) == ExitStatus.OK
    alice, server = home / "alice", home / "server-1"
    assert run(["certs", "issue", "--user", "alice", "--to", str(alice), *where]) == ExitStatus.OK
    issue = ["certs", "issue", "--daemon", "server:server-1", "--host", "127.0.0.1", "--to", str(server)]
    assert run([*issue, *where]) == ExitStatus.OK
    before = [one.read_bytes() for one in (alice / "user.alice.crt", alice / "user.alice.json")]
    for words in (["rotate"], ["renew"], ["rotate", "--finish"]):
        assert run(["certs", *words, *where]) == ExitStatus.OK
        assert not (alice / CLUSTER_FILE).exists()
        assert secrets_in(server) == secrets_in(home)
        assert (alice / "ca.crt").read_bytes() == (home / "ca.crt").read_bytes()
    assert not set(before) & {one.read_bytes() for one in alice.iterdir()}


def test_a_damaged_certificate_stops_a_rotation_before_it_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the file; nothing is changed. A daemon's directory renews nothing.

    Tried: `rotate` without `check_readable`: it makes an authority, and then fails without a path.
    """
    home = tmp_path / "home"
    where = ["--certs-dir", str(home)]
    assert run(["certs", "init", "--tls", *where]) == ExitStatus.OK
    server = home / "server-1"
    issue = ["certs", "issue", "--daemon", "server:server-1", "--host", "127.0.0.1", "--to", str(server)]
    assert run([*issue, *where]) == ExitStatus.OK
    assert run(["certs", "renew", "--certs-dir", str(server)]) == ExitStatus.USAGE
    assert "no authority to issue it again" in capsys.readouterr().err
    (server / "server.server-1.crt").write_text("garbage")
    before = (home / "ca.crt").read_bytes(), secrets_in(home)
    for words in (["rotate"], ["renew"]):
        assert run(["certs", *words, *where]) == ExitStatus.REFUSED
        assert "server-1/server.server-1.crt: no certificate in PEM; remove the file" in capsys.readouterr().err
    assert ((home / "ca.crt").read_bytes(), secrets_in(home)) == before


def test_a_rotation_ends_only_after_all_certificates_are_renewed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end removes the former authority, and with it every daemon whose certificate was not renewed.

    Tried: `_renew` uses the newest secret before it issues certificates: after its failure `--finish` is accepted.
    """
    home = tmp_path / "home"
    where = ["--certs-dir", str(home)]
    assert run(["certs", "init", "--tls", *where]) == ExitStatus.OK
    assert run(["certs", "rotate", *where]) == ExitStatus.OK

    def issue(*_: object) -> None:
        raise ConfigError("cannot write: No space left on device")

    with monkeypatch.context() as full:
        full.setattr(daemons.certificates, "issue", issue)
        assert run(["certs", "renew", *where]) == ExitStatus.REFUSED
    authorities = (home / "ca.crt").read_bytes()
    assert run(["certs", "rotate", "--finish", *where]) == ExitStatus.REFUSED
    assert "continue with `rk certs renew`" in capsys.readouterr().err
    assert (home / "ca.crt").read_bytes() == authorities
    for words in (["renew"], ["rotate", "--finish"]):
        assert run(["certs", *words, *where]) == ExitStatus.OK


def test_a_directory_must_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a local cluster there is no default."""
    assert run(["certs", "list", "--data-dir", str(tmp_path)]) == ExitStatus.USAGE
    assert "Give --certs-dir" in capsys.readouterr().err


def local(data_dir: Path, *, secured: bool) -> Globals:
    """Write the files of a local cluster and return the options of a command for it."""
    shape = Shape(1, 1, 1, 1, 21800, None, "/regionkeeper", "greedy", secured=secured)
    data_dir.mkdir(exist_ok=True)
    cluster = design(shape, data_dir)
    write_cluster(cluster, data_dir)
    if secured:
        daemons.make(cluster, data_dir, datetime.datetime.now(datetime.UTC))
    given = Globals()
    given.data_dir = str(data_dir)
    return given


def test_a_cluster_has_credentials_before_all_its_daemons_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`rk secure` was interrupted. Tried: `_directory` asks for `secured`: the error calls the cluster open."""
    given = local(tmp_path, secured=True)
    cluster = read_cluster(given.data_path)
    assert cluster is not None
    cluster.secured, cluster.securing = False, True
    write_cluster(cluster, tmp_path)
    assert run(["certs", "list", "--data-dir", str(tmp_path)]) == ExitStatus.OK
    cluster.securing = False
    write_cluster(cluster, tmp_path)
    assert run(["certs", "list", "--data-dir", str(tmp_path)]) == ExitStatus.USAGE
    assert "is open and has no credentials" in capsys.readouterr().err


def test_commands_find_the_credentials_of_the_local_cluster(tmp_path: Path) -> None:
    """Commands find the credentials like the addresses; an open cluster needs none."""
    found = credentials_of(local(tmp_path / "closed", secured=True))
    assert found is not None
    assert str(found.principal) == f"user:{FIRST_USER}"
    assert credentials_of(local(tmp_path / "open", secured=False)) is None


def test_another_cluster_gets_no_proof_of_the_local_one(tmp_path: Path) -> None:
    """The store or the masters of a command may be elsewhere."""
    given = local(tmp_path, secured=True)
    given.store = "10.0.0.1:2181"
    assert credentials_of(given) is None
    given.store, given.masters = None, "10.0.0.1:2183"
    assert credentials_of(given) is None
    given.masters = "127.0.0.1:21831"
    assert credentials_of(given) is not None


def test_a_named_directory_wins(tmp_path: Path) -> None:
    """--certs-dir for another user; a directory that holds nothing is an error, never an open connection."""
    given = local(tmp_path / "data", secured=True)
    certs = tmp_path / "data" / CERTS_DIR
    assert (
        run(["certs", "issue", "--user", "bob", "--to", str(tmp_path / "bob"), "--certs-dir", str(certs)])
        == ExitStatus.OK
    )
    given.store_settings["certs-dir"] = str(tmp_path / "bob")
    found = credentials_of(given)
    assert found is not None
    assert found.principal.name == "bob"
    (tmp_path / "bob" / "user.bob.json").unlink()
    with pytest.raises(UsageFaultError, match="no key of a user"):
        credentials_of(given)


def test_the_secret_of_a_local_cluster_is_made_once(tmp_path: Path) -> None:
    """A restart keeps it."""
    local(tmp_path, secured=True)
    before = (tmp_path / CERTS_DIR / CLUSTER_FILE).read_bytes()
    local(tmp_path, secured=True)
    assert (tmp_path / CERTS_DIR / CLUSTER_FILE).read_bytes() == before


@pytest.mark.parametrize("host", ["10.1.2.3", "rk-master"])
@pytest.mark.parametrize("kind", ["master", "server"])
def test_an_exposed_daemon_without_credentials_does_not_start(
    tmp_path: Path, kind: str, host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An operator who wants this gives --insecure."""
    assert (
        run([kind, "run", "--store", "x:1", "--data-dir", str(tmp_path), "--address", f"{host}:7051"])
        == ExitStatus.USAGE
    )
    assert "without credentials this daemon serves everybody" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "certs_dir", "insecure"),
    [("127.0.0.1", None, False), ("::1", None, False), ("localhost", None, False), ("10.0.0.1", Path("c"), False),
     ("10.0.0.1", None, True)],
)  # fmt: skip
def test_who_may_start(host: str, certs_dir: Path | None, insecure: bool) -> None:
    """On loopback, with credentials, or on request."""
    check_exposed(host, certs_dir, insecure=insecure)


def test_certificates_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Certificates are shown as a table and in JSON. A file that is not a certificate, and a directory without any, are
    named."""
    here = ("--certs-dir", str(tmp_path / "ca"))
    assert run(["certs", "init", *here]) == ExitStatus.OK
    assert run(["certs", "show", *here]) == ExitStatus.USAGE
    assert "rk certs init --tls" in capsys.readouterr().err
    here = ("--certs-dir", str(tmp_path / "tls"))
    assert run(["certs", "init", "--tls", *here]) == ExitStatus.OK
    issued = ["certs", "issue", "--daemon", "node:1", "--host", "10.0.0.1", "--to", str(tmp_path / "n1"), *here]
    assert run(issued) == ExitStatus.OK
    capsys.readouterr()
    assert run(["certs", "show", "--certs-dir", str(tmp_path / "n1"), "--json"]) == ExitStatus.OK
    authority, node = json.loads(capsys.readouterr().out)
    assert (authority["is_authority"], node["principal"], node["names"]) == (True, "node:1", ["10.0.0.1"])
    assert (node["issuer"], node["days_left"]) == (authority["subject"], 364)
    assert run(["certs", "show", str(tmp_path / "n1" / "node.1.crt")]) == ExitStatus.OK
    assert node["serial"][:8] in capsys.readouterr().out
    assert run(["certs", "show", str(tmp_path / "n1" / "node.1.key")]) != ExitStatus.OK
    assert "no certificate in PEM" in capsys.readouterr().err
