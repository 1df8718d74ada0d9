"""Grants: changes and their rules."""

from __future__ import annotations

import msgspec
import pytest

from coord.security.principal import NAME_MAX, Principal
from regions.access.grants import GrantError, NoSuchGrant, add, remove, user_named, without_table
from regions.records.acts.grants import FIRST, GRANTS_MAX, Grant, GrantsRecord, UserRole
from regions.records.znodes import decode_grants, encode

ALICE_READS_T = Grant("alice", UserRole.READ, "t", "user:admin", 5)
ADMIN = FIRST.grants[0]


def test_a_cluster_begins_with_one_admin() -> None:
    assert decode_grants(b"") == FIRST
    assert FIRST.grants == (Grant("admin", UserRole.ADMIN),)


def test_a_grant_is_added_once_and_survives_the_store() -> None:
    record = add(FIRST, ALICE_READS_T)
    assert record.grants == (ADMIN, ALICE_READS_T)
    assert add(record, Grant("alice", UserRole.READ, "t", "user:bob", 9)) is record
    assert decode_grants(encode(record)) == record


def test_a_revoked_grant_is_gone_and_others_stay() -> None:
    record = add(add(FIRST, ALICE_READS_T), Grant("alice", UserRole.WRITE))
    assert remove(record, Grant("alice", UserRole.WRITE)).grants == (ADMIN, ALICE_READS_T)


def test_a_grant_that_is_not_there_is_not_revoked() -> None:
    """A slip in a name must not look like success."""
    record = add(FIRST, ALICE_READS_T)
    with pytest.raises(NoSuchGrant, match="user:alice has no grant write on this table; it has read"):
        remove(record, Grant("alice", UserRole.WRITE, "t"))
    with pytest.raises(NoSuchGrant, match="user:alcie has no grant read of the cluster: `rk acl list"):
        remove(record, Grant("alcie", UserRole.READ))


def test_the_last_admin_stays() -> None:
    """An admin of a table, or a reader, cannot take the place of the cluster's admin."""
    record = add(add(FIRST, Grant("alice", UserRole.ADMIN, "t")), Grant("bob", UserRole.WRITE))
    with pytest.raises(GrantError, match="user:admin is the last admin of the cluster"):
        remove(record, ADMIN)
    assert ADMIN not in remove(record, ADMIN, force=True).grants
    assert ADMIN not in remove(add(record, Grant("bob", UserRole.ADMIN)), ADMIN).grants


def test_no_admin_is_not_the_first_admin_again() -> None:
    """The last grant, revoked by force, leaves no grant. An empty znode would mean the first admin."""
    assert decode_grants(encode(remove(FIRST, ADMIN, force=True))) == GrantsRecord(())


def test_a_deleted_table_takes_its_grants_along() -> None:
    record = add(add(FIRST, ALICE_READS_T), Grant("alice", UserRole.READ, "u"))
    assert without_table(record, "t").grants == (ADMIN, Grant("alice", UserRole.READ, "u"))
    assert without_table(record, "x") is record


def test_the_number_of_grants_is_bounded_and_fits_a_znode() -> None:
    """The store takes 1 MB for one value, and a multi 512 kB."""
    longest = "u" * NAME_MAX
    by = f"user:{longest}"
    grants = tuple(Grant(longest, UserRole.WRITE, f"{number:08x}", by, 10**13) for number in range(GRANTS_MAX - 1))
    record = add(GrantsRecord(grants), Grant("alice", UserRole.ADMIN))
    assert len(record.grants) == GRANTS_MAX
    assert len(encode(record)) < 512 * 1024
    with pytest.raises(GrantError, match=f"has {GRANTS_MAX} grants, which is the limit"):
        add(record, ALICE_READS_T)
    assert add(record, Grant("alice", UserRole.ADMIN)) is record


@pytest.mark.parametrize("text", ["alice", "user:alice"])
def test_a_user_is_named_with_or_without_the_kind(text: str) -> None:
    assert user_named(text) == Principal("user", "alice")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("server:s1", "is a daemon"),
        ("master:m", "is a daemon"),
        ("", "names no user"),
        ("a b", "names no user"),
        ("robot:x", "names no user"),
        ("user:", "names no user"),
    ],
)
def test_nobody_else_gets_grants(text: str, why: str) -> None:
    with pytest.raises(GrantError, match=why):
        user_named(text)


def test_a_record_of_a_newer_version_is_read() -> None:
    """Unknown fields do not make it damaged."""
    data = msgspec.json.encode({"grants": [{"user": "a", "role": "read", "until": 1}]})
    assert decode_grants(data).grants == (Grant("a", UserRole.READ),)
