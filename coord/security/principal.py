"""A principal, or identity: who is at the other end of a connection, as kind and name."""

from __future__ import annotations

import enum
import re
from typing import Final, NamedTuple

from coord.errors import ConfigError

NODE: Final = "node"
MASTER: Final = "master"
SERVER: Final = "server"
USER: Final = "user"
#: Kinds of daemons. Only daemons listen, so a caller accepts no other kind at the other end.
DAEMONS: Final = frozenset({NODE, MASTER, SERVER})
KINDS: Final = DAEMONS | {USER}

#: Longest name of an identity.
NAME_MAX: Final = 64
_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._@-]{{0,{NAME_MAX - 1}}}")


class Principal(NamedTuple):
    """Kind and name of a daemon or user. `NOBODY` stands for a caller of an open cluster."""

    kind: str
    name: str

    def __str__(self) -> str:
        """Return the form that people read and write, such as `user:alice`."""
        return f"{self.kind}:{self.name}" if self.kind else "nobody"

    @property
    def is_daemon(self) -> bool:
        """True for nodes of the store, masters and region servers."""
        return self.kind in DAEMONS


#: The caller of a process that demands no proof.
NOBODY: Final = Principal("", "")


class OpenDoor(enum.StrEnum):
    """Whether a port serves other machines, or callers of a cluster with credentials, without a proof; and why."""

    CLOSED = ""
    #: The cluster is being secured (`rk secure`).
    SECURING = "securing"
    #: The daemon has no credentials and an address that other machines reach (--insecure).
    EXPOSED = "exposed"


#: The line of `srvr` in which a store node names its open door. ZooKeeper's srvr has no such line.
OPEN_DOOR: Final = "Open door"


def is_valid(kind: str, name: str) -> bool:
    """Return True if kind and name may be an identity."""
    return kind in KINDS and _NAME.fullmatch(name) is not None


def parse_principal(text: str) -> Principal:
    """Return the identity that `kind:name` names. Raise ConfigError."""
    kind, _, name = text.partition(":")
    if not is_valid(kind, name):
        known = ", ".join(sorted(KINDS))
        raise ConfigError(
            f"{text!r} is no identity: write KIND:NAME, with a kind of {known} and a name of at most {NAME_MAX} of"
            " the characters A-Z a-z 0-9 . _ @ -"
        )
    return Principal(kind, name)
