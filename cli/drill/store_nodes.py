"""The store's nodes in drills: finding the leader, and cutting a node off from its peers."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from cli.common.connect import split_address
from cli.common.errors import CliError, UnreachableError
from cli.common.local import Daemon
from cli.drill.run import Drill
from cli.up.bringup import store_role
from coord.server.admin.backup import ADMIN_FILE

LEADER_ROLES: Final = ("leader", "standalone")
SERVING_ROLES: Final = ("follower", *LEADER_ROLES)
_TIMEOUT_S: Final = 5.0


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


def cut(node: Daemon, direction: str, seconds: float) -> None:
    """Cut the node off from its peers for at most `seconds`. Raise CliError."""
    _post(node, "/cut?" + urlencode({"direction": direction, "for_s": f"{seconds:g}"}))


def heal(node: Daemon) -> None:
    """End a cut, if it has not ended yet. Raise CliError."""
    _post(node, "/heal")


def _post(node: Daemon, path: str) -> None:
    try:
        token = json.loads((Path(node.data_dir) / ADMIN_FILE).read_text())["token"]
        connection = http.client.HTTPConnection(*split_address(node.admin), timeout=_TIMEOUT_S)
        try:
            connection.request("POST", path, headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace").strip()
        finally:
            connection.close()
    except (OSError, ValueError, KeyError) as error:
        raise UnreachableError(f"{node.name} does not answer at its admin port {node.admin}: {error}") from error
    if answer.status in (http.HTTPStatus.NOT_FOUND, http.HTTPStatus.METHOD_NOT_ALLOWED):
        raise CliError(
            f"{node.name} does not support cuts: it was started without --drill-links",
            "Restart `rk up`: it is older than the drill.",
        )
    if answer.status != http.HTTPStatus.OK:
        raise CliError(f"{node.name} rejected {path.partition('?')[0]}: {text}")
