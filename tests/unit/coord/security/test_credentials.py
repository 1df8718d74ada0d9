"""The directory of --certs-dir: what is read, rejected and read again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coord.errors import ConfigError
from coord.security import process
from coord.security.credentials import CLUSTER_FILE, Credentials, key_file, read_daemon, read_user
from coord.security.keys import ClusterSecrets, decode_key, decode_secrets, encode_file, issue
from coord.security.principal import Principal, parse_principal

ALICE, BOB, SERVER = Principal("user", "alice"), Principal("user", "bob"), Principal("server", "one")
OLD, NEW = ClusterSecrets("c", {1: "11" * 32}), ClusterSecrets("c", {1: "11" * 32, 2: "22" * 32})


def write(path: Path, content: bytes) -> None:
    """Write a file as `rk certs` does: in one step, for its owner only."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.chmod(0o600)
    new.replace(path)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    write(tmp_path / CLUSTER_FILE, encode_file(OLD))
    write(key_file(tmp_path, ALICE), encode_file(issue(OLD, ALICE)))
    return tmp_path


def shake(one: Credentials, other: Credentials, wanted: str = "") -> tuple[Principal, Principal]:
    """Connect; return whom each end has at the other."""
    dialer, listener = one.dialer(wanted), other.listener()
    dialer.start("127.0.0.1:5", "127.0.0.1:6")
    listener.start("127.0.0.1:6", "127.0.0.1:5")
    assert dialer.send(b"request") == b""
    assert listener.send(b"preamble") == b""
    listener.receive(dialer.take())
    dialer.receive(listener.take())
    assert listener.receive(dialer.take()) == b"request"
    assert dialer.receive(listener.take()) == b"preamble"
    assert dialer.is_plain
    assert listener.is_plain
    return dialer.peer, listener.peer


def test_a_user_and_a_daemon_know_each_other(directory: Path) -> None:
    """The user's key is derived from the secret that the daemon has."""
    user, daemon = read_user(directory), read_daemon(directory, SERVER)
    assert shake(user, daemon) == (SERVER, ALICE)
    assert shake(daemon, daemon) == (SERVER, SERVER)


def test_a_new_secret_is_used_without_a_restart(directory: Path) -> None:
    """A daemon reads `cluster-secret.json` again; keys of the old secret hold as long as the old secret is there."""
    user, daemon = read_user(directory), read_daemon(directory, SERVER)
    write(directory / CLUSTER_FILE, encode_file(NEW))
    assert shake(user, daemon) == (SERVER, ALICE)
    write(key_file(directory, ALICE), encode_file(issue(NEW, ALICE)))
    write(directory / CLUSTER_FILE, encode_file(ClusterSecrets("c", {2: "22" * 32})))
    assert shake(user, daemon) == (SERVER, ALICE)


def test_unusable_files_leave_the_last_ones_in_force(directory: Path) -> None:
    """A half-written file does not lock everybody out; `problem` says what is wrong."""
    user, daemon = read_user(directory), read_daemon(directory, SERVER)
    write(directory / CLUSTER_FILE, b"{")
    assert shake(user, daemon) == (SERVER, ALICE)
    assert "not what `rk certs` writes" in daemon.problem
    write(directory / CLUSTER_FILE, encode_file(OLD))
    assert shake(user, daemon) == (SERVER, ALICE)
    assert daemon.problem == ""


@pytest.mark.parametrize("mode", [0o644, 0o620, 0o604])
def test_a_secret_that_others_can_read_is_rejected(directory: Path, mode: int) -> None:
    """So is one that the group can write."""
    (directory / CLUSTER_FILE).chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_daemon(directory, SERVER)


def test_a_directory_that_others_can_write_is_rejected(directory: Path) -> None:
    """Others could put files there."""
    directory.chmod(0o777)
    with pytest.raises(ConfigError, match="chmod 700"):
        read_user(directory)


def test_which_user(directory: Path) -> None:
    """The only one, or the one that was named."""
    assert read_user(directory).principal == ALICE
    write(key_file(directory, BOB), encode_file(issue(OLD, BOB)))
    with pytest.raises(ConfigError, match="keys of 2 users: name one with RK_CERTS_USER"):
        read_user(directory)
    assert read_user(directory, "bob").principal == BOB
    with pytest.raises(ConfigError, match=r"cannot read .*user\.carol\.json"):
        read_user(directory, "carol")


def test_a_renamed_key_is_rejected(directory: Path) -> None:
    """The file name and its content name the same identity."""
    write(key_file(directory, BOB), encode_file(issue(OLD, ALICE)))
    with pytest.raises(ConfigError, match="holds the key of user:alice"):
        read_user(directory, "bob")


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"cluster": "c"}', b'{"cluster": "c", "secrets": {"1": "00"}}', b"\xff"]
)
def test_files_that_hold_nothing_usable(content: bytes) -> None:
    """One sentence that names the file."""
    for decode in (decode_secrets, decode_key):
        with pytest.raises(ConfigError, match=r"^here: "):
            decode(content, "here")


def test_a_newer_format_is_rejected() -> None:
    """An older build does not guess."""
    newer = encode_file(OLD).replace(b'"format": 1', b'"format": 2')
    with pytest.raises(ConfigError, match="newer version"):
        decode_secrets(newer, "here")


@pytest.mark.parametrize("text", ["", "alice", "root:x", "user:", "user:a b", "user:../x", "user:" + "a" * 65])
def test_what_is_no_identity(text: str) -> None:
    """Names appear in file names, logs and certificates."""
    with pytest.raises(ConfigError, match="is no identity"):
        parse_principal(text)


def test_identities_are_read_as_they_are_written() -> None:
    """`user:alice`, also with the longest name."""
    for who in (ALICE, SERVER, Principal("user", "a" * 64)):
        assert parse_principal(str(who)) == who


def test_the_environment_names_the_credentials_of_a_program(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without RK_CERTS_DIR connections are open."""
    process.forget()
    monkeypatch.delenv("RK_CERTS_DIR", raising=False)
    assert process.own() is None
    process.forget()
    monkeypatch.setenv("RK_CERTS_DIR", os.fspath(directory))
    own = process.own()
    process.forget()
    assert own is not None
    assert own.principal == ALICE
