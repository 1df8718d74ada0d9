"""Who may read an admin port."""

from __future__ import annotations

from pathlib import Path

import pytest

from coord.security.admin import headers, objection
from coord.security.credentials import CLUSTER_FILE, read_daemon, read_user
from coord.security.keys import ClusterSecrets, encode_file
from tests.unit.coord.security.test_credentials import SERVER, directory, write

__all__ = ["directory"]


def status(folder: Path | None, path: str, token: str = "") -> int:
    """Return the status of a request, 200 if it is served."""
    found = objection(None if folder is None else read_daemon(folder, SERVER), path, token)
    return 200 if found is None else found[0]


@pytest.mark.parametrize("path", ["/metrics", "/status", "/commands/stat", "/other"])
def test_a_secured_port_wants_a_token(directory: Path, path: str) -> None:
    """Names and figures are for principals; an open daemon serves everybody."""
    good = headers(read_user(directory))["Authorization"].removeprefix("Bearer ")
    assert status(directory, path) == 401
    assert status(directory, path, good) == 200
    assert status(None, path) == 200


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_probes_need_none(directory: Path, path: str) -> None:
    """/health and /ready reveal no names."""
    assert status(directory, path) == 200


def test_a_token_is_of_one_principal_and_one_secret(directory: Path) -> None:
    """A token with another name, number or MAC is rejected, and so is a token of a secret that was rotated."""
    token = read_user(directory).token()
    principal, number, mac = token.rsplit(":", 2)
    assert principal == "user:alice"
    for wrong in (
        f"user:bob:{number}:{mac}",
        f"server:alice:{number}:{mac}",
        f"{principal}:2:{mac}",
        f"{principal}:{number}:{mac[:-1]}",
        f"{principal}:{number}:",
        f"{principal}:{number}:é",
        f"{principal}:{'9' * 5000}:{mac}",
        principal,
        "",
        ":::",
    ):
        assert status(directory, "/metrics", wrong) == 401
    assert status(directory, "/metrics", token) == 200
    write(directory / CLUSTER_FILE, encode_file(ClusterSecrets("c", {2: "22" * 32})))
    assert status(directory, "/metrics", token) == 401
