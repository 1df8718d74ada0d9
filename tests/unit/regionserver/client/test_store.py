"""A client's session with the store proves the present token at every connection."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from coord.security import making, process
from coord.security.credentials import read_user
from coord.security.principal import USER, Principal
from regionserver.client.store import _renew

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
