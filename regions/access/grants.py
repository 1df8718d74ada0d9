"""Changes of the grants, and their rules. Pure: the active master writes the result by compare-and-set."""

from __future__ import annotations

from coord.security.principal import USER, Principal, is_valid
from regions.records.acts.grants import GRANTS_MAX, Grant, GrantsRecord, UserRole


class GrantError(Exception):
    """Raised if the grants do not allow a change. The message is one line for the user."""


class NoSuchGrant(GrantError):  # noqa: N818 - named after what it reports
    """Raised if the grant that is to be revoked does not exist."""


def user_named(text: str) -> Principal:
    """Return the user that `alice` or `user:alice` names. Raise GrantError for a daemon, or for no name."""
    kind, colon, name = text.partition(":")
    if not colon:
        kind, name = USER, text
    if kind != USER and is_valid(kind, name):
        raise GrantError(f"{text} is a daemon: daemons do what their kind needs, and have no grants")
    if not is_valid(kind, name):
        raise GrantError(f"{text!r} names no user: write a name such as alice, of letters, digits and . _ @ -")
    return Principal(kind, name)


def add(record: GrantsRecord, grant: Grant) -> GrantsRecord:
    """Return the grants with one more; the same ones if the user has it already. Raise GrantError beyond GRANTS_MAX."""
    if any(one.is_same(grant) for one in record.grants):
        return record
    if len(record.grants) >= GRANTS_MAX:
        raise GrantError(f"the cluster has {GRANTS_MAX} grants, which is the limit: revoke grants that nobody needs")
    return GrantsRecord((*record.grants, grant))


def remove(record: GrantsRecord, grant: Grant, *, force: bool = False) -> GrantsRecord:
    """Return the grants without `grant`.

    Raises:
        NoSuchGrant: the user does not have this grant.
        GrantError: the cluster would have no admin, and `force` is not set.
    """
    left = tuple(one for one in record.grants if not one.is_same(grant))
    if len(left) == len(record.grants):
        raise NoSuchGrant(_no_such_grant(record, grant))
    if not force and is_of_cluster_admin(grant) and not any(map(is_of_cluster_admin, left)):
        raise GrantError(
            f"{USER}:{grant.user} is the last admin of the cluster: grant admin to another user first, or say --force"
        )
    return GrantsRecord(left)


def without_table(record: GrantsRecord, table_id: str) -> GrantsRecord:
    """Return the grants without those on a table. Return the same object if there are none."""
    left = tuple(one for one in record.grants if one.table_id != table_id)
    return record if len(left) == len(record.grants) else GrantsRecord(left)


def is_of_cluster_admin(grant: Grant) -> bool:
    """Return True if the grant makes its user an admin of the cluster."""
    return grant.role is UserRole.ADMIN and not grant.table_id


def _no_such_grant(record: GrantsRecord, grant: Grant) -> str:
    where = "on this table" if grant.table_id else "of the cluster"
    others = [one.role.value for one in record.grants if (one.user, one.table_id) == (grant.user, grant.table_id)]
    has = f"; it has {' and '.join(others)}" if others else ""
    return f"{USER}:{grant.user} has no grant {grant.role.value} {where}{has}: `rk acl list --user {grant.user}`"
