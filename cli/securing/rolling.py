"""The restart of the daemons of an `rk up`, one after the other, so that each gets the credentials made for it.

Store nodes are restarted first, then masters with the active one last, then region servers. Before the next daemon is
restarted, the former one must be ready and the regions at rest.
"""

from __future__ import annotations

import contextlib
import http.client
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cli.common.access import admin_connection
from cli.common.errors import CliError
from cli.common.local import MASTER, SERVER, STORE, LocalCluster
from cli.up.control import ControlRequest, DaemonState, ask
from coord.rpc.blocking import call_blocking
from coord.rpc.wire import RpcError
from master.client import split_address
from regions import messages

#: Time limits for the end of a daemon; for its readiness after the start, and then for the rest of the regions.
STOP_S: Final = 30.0
READY_S: Final = 120.0
_PAUSE_S: Final = 0.1
_ASK_S: Final = 2.0


def outdated(states: list[DaemonState]) -> list[DaemonState]:
    """Return the daemons that run without the credentials, or do not run at all."""
    return [one for one in states if not one.is_current]


def restart_all(data_dir: Path, local: LocalCluster, say: Callable[[str], None]) -> list[str]:
    """Restart each daemon that is outdated; `say` shows progress. Return their names. Raise CliError."""
    _await_former(ask(data_dir, ControlRequest("list")), local)
    active = _active(local)
    left = sorted(outdated(ask(data_dir, ControlRequest("list"))), key=lambda one: _place(one, active))
    for number, one in enumerate(left, 1):
        say(f"{one.name}: restarting with credentials ({number} of {len(left)})")
        _restart(data_dir, one)
        _await(lambda daemon=one: is_ready(daemon), READY_S, f"{one.name} is not ready")  # type: ignore[misc]
        _await(lambda: is_at_rest(local), READY_S, f"the regions did not come to rest after {one.name}")
    return [one.name for one in left]


def _await_former(states: list[DaemonState], local: LocalCluster) -> None:
    """Wait for the daemons that an interrupted run has restarted, and for the regions. Raise CliError."""
    for one in states:
        if one.is_current:
            _await(lambda daemon=one: is_ready(daemon), READY_S, f"{one.name} is not ready")  # type: ignore[misc]
    if all(one.pid for one in states):
        _await(lambda: is_at_rest(local), READY_S, "the regions did not come to rest before the first restart")


def _place(one: DaemonState, active: messages.MasterStatus | None) -> tuple[int, bool]:
    """Return the place of a daemon in the order: the active master is the last one, so that one failover is enough."""
    return (STORE, MASTER, SERVER).index(one.role), active is not None and active.active == one.address


def _restart(data_dir: Path, one: DaemonState) -> None:
    """Restart a daemon. `rk up` does it alone, so that an interruption of this command leaves no daemon down."""
    ask(data_dir, ControlRequest("restart", one.name))
    _await(lambda: one.name not in _names_outdated(data_dir), STOP_S, f"{one.name} did not end and start again")


def _names_outdated(data_dir: Path) -> set[str]:
    return {one.name for one in outdated(ask(data_dir, ControlRequest("list")))}


def _await(holds: Callable[[], bool], limit_s: float, trouble: str) -> None:
    end_s = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > end_s:
            raise CliError(
                f"{trouble} within {limit_s:.0f} s; the daemons after it still run without credentials",
                "`rk health` says what is wrong. `rk secure` goes on where it stopped.",
            )
        time.sleep(_PAUSE_S)


def is_ready(one: DaemonState) -> bool:
    """Return True if a daemon's /ready page says that the daemon can serve."""
    caller = admin_connection(*split_address(one.admin), _ASK_S)
    with contextlib.closing(caller), contextlib.suppress(OSError, http.client.HTTPException):
        caller.request("GET", "/ready")
        return caller.getresponse().status == http.HTTPStatus.OK
    return False


def is_at_rest(local: LocalCluster) -> bool:
    """Return True if a master is active with all servers, and every region is open that should be."""
    found = _active(local)
    if found is None:
        return False
    is_open = found.open >= found.replicas - found.resting - found.parked
    return is_open and not found.rit and not found.unusable and found.servers >= len(local.servers)


def _active(local: LocalCluster) -> messages.MasterStatus | None:
    """Return the figures of the active master, None if none answers."""
    for one in local.masters:
        address = split_address(one.address)
        with contextlib.suppress(RpcError):
            found = call_blocking(address, messages.GetMasterStatus(), _ASK_S, expect=messages.MasterStatus)
            if found.role == "active":
                return found
    return None
