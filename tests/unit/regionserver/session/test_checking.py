"""A region server checks requests without the store, for a time, and after a restart."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from twisted.internet.task import Clock

from coord.rpc.wire import RpcError
from coord.security.principal import USER, Principal
from regions.messages import ShowReplicas
from regions.messages.codes import BUSY
from regions.records.acts.grants import FIRST, Grant, GrantsRecord, UserRole
from regions.records.znodes import Layout, encode
from regionserver.session.checking import AGE_MAX_S, FILE, ServerChecks

ALICE = Principal(USER, "alice")
GRANTS = encode(GrantsRecord((*FIRST.grants, Grant("alice", UserRole.ADMIN))))


def started(folder: Path, clock: Clock) -> ServerChecks:
    checks = ServerChecks(clock, Layout(), folder, clock.seconds, lambda _place: None, None)
    checks.is_open = False
    return checks


def code_of(checks: ServerChecks) -> str:
    """Return the code with which a request of alice is rejected, "" if it is not."""
    try:
        checks.check(ALICE, ShowReplicas())
    except RpcError as error:
        return error.code
    return ""


def test_a_server_that_never_read_the_grants_rejects_users(tmp_path: Path) -> None:
    assert code_of(started(tmp_path, Clock())) == BUSY


def test_grants_are_used_without_the_store_and_after_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    checks = started(tmp_path, clock)
    checks._seen(GRANTS, 0, clock.seconds())
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    clock.advance(AGE_MAX_S)
    assert code_of(checks) == ""
    clock.advance(1)
    assert code_of(checks) == BUSY
    again = started(tmp_path, clock)
    assert code_of(again) == ""
    clock.advance(AGE_MAX_S + 1)
    assert code_of(again) == BUSY


def test_revoked_grants_replace_those_on_disk(tmp_path: Path) -> None:
    clock = Clock()
    started(tmp_path, clock)._seen(GRANTS, 0, clock.seconds())
    later = started(tmp_path, clock)
    later._seen(encode(FIRST), 1, clock.seconds())
    assert code_of(later) != ""
    assert code_of(started(tmp_path, clock)) != ""


@pytest.mark.parametrize("damage", [b"{", b'{"grants":[{"user":1}]}', b"\xff", GRANTS[:-1]])
def test_a_damaged_znode_does_not_replace_good_grants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes
) -> None:
    """In memory they are used within the bound of age, and on disk they are left for a restart."""
    said: list[str] = []
    monkeypatch.setattr(ServerChecks, "_damaged", staticmethod(said.append))
    clock = Clock()
    checks = started(tmp_path, clock)
    checks._seen(GRANTS, 0, clock.seconds())
    assert checks.problem() == ""
    clock.advance(10)
    for version in (1, 2):
        checks._seen(damage, version, clock.seconds())
    assert code_of(checks) == ""
    assert (tmp_path / FILE).read_bytes() == GRANTS
    assert len(said) == 1, "the log has one line for one damage"
    assert "the last good ones are used for 3590 s: /grants: " in checks.problem()
    assert code_of(started(tmp_path, clock)) == ""

    clock.advance(AGE_MAX_S)
    assert code_of(checks) == BUSY
    assert "requests of users are rejected" in checks.problem()
    checks._seen(GRANTS, 3, clock.seconds())
    assert (code_of(checks), checks.problem()) == ("", "")


def test_a_damaged_file_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"{")
    checks = started(tmp_path, Clock())
    assert code_of(checks) == BUSY
    assert checks.problem() == "", "the grants in the store are not known to be damaged"
    checks._seen(GRANTS, 0, 0.0)
    assert (tmp_path / FILE).read_bytes() == GRANTS
