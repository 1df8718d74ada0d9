"""Cutting a daemon of `rk up` off from its peers, and healing the cut, through its admin port."""

from __future__ import annotations

import http.client
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from cli.common.access import admin_connection
from cli.common.errors import CliError, UnreachableError
from cli.common.local import Daemon
from coord.admin_token import ADMIN_FILE, read_admin_json, token_in
from master.client import split_address

_TIMEOUT_S: Final = 5.0
_ACTIONS: Final = {
    "both": "was cut off from {}",
    "out": "could not send to {}",
    "in": "received nothing from {}",
}


def action(direction: str, others: str) -> str:
    """Return the predicate of a drill's report for a cut in this direction; `others` names the peers."""
    return _ACTIONS[direction].format(others)


def cut(daemon: Daemon, direction: str, seconds: float) -> None:
    """Cut the daemon off from its peers for at most `seconds`. Raise CliError."""
    _post(daemon, "/cut?" + urlencode({"direction": direction, "for_s": f"{seconds:g}"}))


def heal(daemon: Daemon) -> None:
    """End a cut, if it has not ended yet. Raise CliError."""
    _post(daemon, "/heal")


def _post(daemon: Daemon, path: str) -> None:
    try:
        token = token_in(read_admin_json(Path(daemon.data_dir) / ADMIN_FILE))
        connection = admin_connection(*split_address(daemon.admin), _TIMEOUT_S)
        try:
            connection.request("POST", path, headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace").strip()
        finally:
            connection.close()
    except (OSError, ValueError) as error:
        raise UnreachableError(f"{daemon.name} does not answer at its admin port {daemon.admin}: {error}") from error
    if answer.status in (http.HTTPStatus.NOT_FOUND, http.HTTPStatus.METHOD_NOT_ALLOWED):
        raise CliError(
            f"{daemon.name} does not support cuts: it was started without --drill-links",
            "Restart `rk up`: it is older than the drill.",
        )
    if answer.status != http.HTTPStatus.OK:
        raise CliError(f"{daemon.name} rejected {path.partition('?')[0]}: {text}")
