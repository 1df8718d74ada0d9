"""Files with secrets: their contents, and one clear line for invalid ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coord.errors import ConfigError
from coord.server.config.secrets import read_jaas, read_peer_secret, read_super_digest, read_users, warn_if_open
from coord.server.config.settings import StoreSettings
from coord.server.config.zoo_cfg import read_zoo_cfg

SERVER = """
// users of the store
Client { some.Module required user_x="no"; };
Server {
    org.apache.zookeeper.server.auth.DigestLoginModule required   /* { not a section } */
    user_super="super_secret"
    user_bob="with \\"quotes\\"; and } marks"
    debug=true
    user_carol=plain;
};
"""


def written(folder: Path, text: str) -> Path:
    """Write a file with that content."""
    path = folder / "file"
    path.write_text(text)
    return path


def test_users_of_a_jaas_file(tmp_path: Path) -> None:
    """Only the section Server counts, in ZooKeeper's syntax."""
    assert read_jaas(written(tmp_path, SERVER)) == {
        "super": "super_secret",
        "bob": 'with "quotes"; and } marks',
        "carol": "plain",
    }


@pytest.mark.parametrize("text", ["", "Client { a.B required; };", "# nothing\n"])
def test_jaas_file_without_a_server_section_has_no_users(tmp_path: Path, text: str) -> None:
    """ZooKeeper's clients and servers may share one file."""
    assert read_jaas(written(tmp_path, text)) == {}


@pytest.mark.parametrize(
    ("read", "text", "wanted"),
    [
        (read_jaas, "Server { com.sun.security.auth.module.Krb5LoginModule required; };", "only ZooKeeper's Digest"),
        (read_jaas, "Server { };", "only ZooKeeper's Digest"),
        (read_jaas, "Server { x.DigestLoginModule required user_a=; };", "user_a has no value"),
        (read_jaas, "Server { x.DigestLoginModule", "has no closing brace"),
        (read_jaas, 'Server {\n a.DigestLoginModule required user_x="y\n};', ":2: a string has no closing quote"),
        (read_jaas, "{ }", "does not begin a section"),
        (read_users, "alice", ":1: not user:secret"),
        (read_users, "alice:a\n:b", ":2: not user:secret"),
        (read_users, "alice:", ":1: not user:secret"),
        (read_users, "a:b\na:c", ":2: user a occurs twice"),
        (read_peer_secret, "short\n", "at least 16 bytes"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, read: Callable[[Path], Any], text: str, wanted: str) -> None:
    """The error begins with the file's name and does not show the secrets."""
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=wanted) as caught:
        read(path)
    assert str(caught.value).startswith(str(path))


def test_plain_users_and_the_peers_secret(tmp_path: Path) -> None:
    """A secret may contain colons and spaces; comments and empty lines are ignored."""
    assert read_users(written(tmp_path, "# users\n\nalice:a:b c\nbob:x\n")) == {"alice": "a:b c", "bob": "x"}
    assert read_peer_secret(written(tmp_path, "0123456789abcdef\n")) == b"0123456789abcdef"
    with pytest.raises(ConfigError, match="No such file"):
        read_users(tmp_path / "missing")


def test_files_that_others_can_read_are_named(tmp_path: Path) -> None:
    """Only a warning, because some systems give files to a service in no other way."""
    path = written(tmp_path, "")
    path.chmod(0o600)
    assert warn_if_open(path) == ()
    path.chmod(0o640)
    assert "users other than its owner can read it" in warn_if_open(path)[0]


def test_zoo_cfg_names_users_and_super_digest(tmp_path: Path) -> None:
    """The keys of ZooKeeper's system properties; the settings' text contains no secret."""
    (tmp_path / "jaas.conf").write_text(SERVER)
    config = tmp_path / "zoo.cfg"
    digest = "super:D/InIHSb7yEEbrWz8b9l71RjZJU="
    config.write_text(
        f"dataDir=d\nclientPort=1\njaasConfig=jaas.conf\nDigestAuthenticationProvider.superDigest={digest}\n"
    )
    settings = read_zoo_cfg(config)
    assert settings.sasl_users["super"] == "super_secret"
    assert settings.super_digest == digest
    assert "super_secret" not in repr(settings)
    assert digest not in repr(settings)


def test_the_super_digest_may_be_in_a_file(tmp_path: Path) -> None:
    """In the first line, so that a comment may follow; a file that says nothing is a fault."""
    assert read_super_digest(written(tmp_path, "super:D/InIHSb7yEEbrWz8b9l71RjZJU= \n# made yesterday\n")) == (
        "super:D/InIHSb7yEEbrWz8b9l71RjZJU="
    )
    with pytest.raises(ConfigError, match="the first line is empty"):
        read_super_digest(written(tmp_path, "\n"))


@pytest.mark.parametrize("digest", ["super", "super:", "super:abc", ":D/InIHSb7yEEbrWz8b9l71RjZJU=", "super:!!!!"])
def test_bad_super_digests_are_refused(digest: str) -> None:
    """In particular a password in place of the hash."""
    with pytest.raises(ConfigError, match="super digest"):
        StoreSettings(1, Path("d"), ("h", 1), super_digest=digest)
