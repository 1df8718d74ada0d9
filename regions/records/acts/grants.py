"""Grants: the roles of users. Value of `/grants`.

One znode holds all grants: a reader sees all of them as of one moment, and one compare-and-set protects rules that
concern several users, such as that a cluster keeps an admin. If the znode is empty or missing, the grants were never
changed and are those of `FIRST`.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

#: Limit of the grants of a cluster. At most about 500 kB: the store takes 1 MB for one value.
GRANTS_MAX: Final = 2_000
#: The user that is an admin of a new cluster.
FIRST_ADMIN: Final = "admin"


class UserRole(enum.Enum):
    """Rights of a user; each role includes the ones before it."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


class Grant(msgspec.Struct, frozen=True, omit_defaults=True):
    """One role of one user."""

    #: Name of the user, without its kind.
    user: str
    role: UserRole
    #: Table that the role is for; "": all tables, and the cluster.
    table_id: str = ""
    #: The admin who made the grant, and the time by the master's clock.
    by: str = ""
    at_ms: int = 0

    def is_same(self, other: Grant) -> bool:
        """Return True if both give the same role to the same user."""
        return (self.user, self.role, self.table_id) == (other.user, other.role, other.table_id)


class GrantsRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Value of `/grants`: all grants, in the order in which they were made."""

    grants: tuple[Grant, ...] = ()


#: The grants of a cluster that has never changed them.
FIRST: Final = GrantsRecord((Grant(FIRST_ADMIN, UserRole.ADMIN),))
