"""The store's nodes in drills: which one leads, and which ones serve."""

from __future__ import annotations

from typing import Final

from cli.common.errors import CliError
from cli.common.local import Daemon
from cli.drill.run import Drill
from cli.up.bringup import store_role

LEADER_ROLES: Final = ("leader", "standalone")
SERVING_ROLES: Final = ("follower", *LEADER_ROLES)


def leader(drill: Drill) -> str:
    """Return the name of the leader. Raise CliError if no node leads."""
    found = leader_but(drill, "")
    if found is None:
        raise CliError("no store node reports that it leads", "`rk status` shows the store's nodes.")
    return found


def leader_but(drill: Drill, excluded: str) -> str | None:
    """Return the name of the leader other than `excluded`, or None."""
    roles = ((node.name, store_role(node.address)) for node in drill.local.coord if node.name != excluded)
    return next((name for name, role in roles if role in LEADER_ROLES), None)


def is_serving(node: Daemon) -> bool:
    """Return True if the node leads or has a leader."""
    return store_role(node.address) in SERVING_ROLES
