"""A client's session with the store proves the present token at every connection."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
from kazoo.exceptions import ConnectionLoss, KazooException, NoAuthError, SessionClosedRequireSaslError

from coord.security import making, process
from coord.security.credentials import read_user
from coord.security.principal import USER, Principal
from regionserver.client import Unavailable, store
from regionserver.client.errors import store_errors
from regionserver.client.store import StoreReader, StoreSilentError, _renew
from tests.support.helpers import free_ports

ADMIN = Principal(USER, "admin")


def test_a_session_survives_a_rotation_of_the_secret(tmp_path: Path) -> None:
    """A long-lived program connects again after the rotation. Fails if `_renew` keeps kazoo's `auth_data`."""
    tmp_path.chmod(0o700)
    making.init(tmp_path, ADMIN)
    process.use(read_user(tmp_path))
    try:
        client = SimpleNamespace(auth_data=set())
        _renew(client, "cluster:secret")
        ((_, first),) = [one for one in client.auth_data if one != ("digest", "cluster:secret")]
        assert first.startswith("user:admin:1:")
        making.rotate(tmp_path)
        making.issue_key(tmp_path, ADMIN, tmp_path)
        _renew(client, "cluster:secret")
        assert ("digest", process.store_token()) in client.auth_data
        assert ("digest", first) not in client.auth_data
        assert process.store_token().startswith("user:admin:2:")
    finally:
        process.forget()


def test_a_developer_hears_early_that_no_store_answers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line in the log long before the error. Tried: without the warning the log is empty."""
    monkeypatch.setattr(store, "FIRST_WORD_S", 0.05)
    hosts = f"127.0.0.1:{free_ports(1)[0]}"
    with caplog.at_level(logging.WARNING, store.__name__), pytest.raises(StoreSilentError):
        StoreReader.open(hosts, 0.5)
    [said] = [one.getMessage() for one in caplog.records if one.name == store.__name__]
    assert said == f"the store at {hosts} has opened no session yet; trying for 0.5 s"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (SessionClosedRequireSaslError(), "serves only clients that authenticate: RK_CERTS_DIR"),
        (NoAuthError(), "deny this: connect with store_auth="),
        (ConnectionLoss(), r"does not answer \(ConnectionLoss\)"),
    ],
)
def test_a_store_that_denies_is_not_called_silent(error: KazooException, words: str) -> None:
    """Who has no credential must not look for a dead store. Tried: with one sentence for all the first two fail."""
    with pytest.raises(Unavailable, match=words), store_errors("orders", "k"):
        raise error
