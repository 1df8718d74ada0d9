"""Which region server reaches which master (HB-12): each master lists the heartbeats that it receives, with their age.

The store's sessions show which processes are live; this shows which processes can communicate. A standby without a
server's heartbeats would not know the server's replicas after a failover, so a broken link should be noticed before.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec
from rich.console import Console

from cli.common import output
from cli.common.names import Names
from coord.rpc.blocking import call_blocking
from coord.rpc.wire import RpcError
from regions import messages
from regions.liveness.roster import SILENT_MS
from regions.records.model import Incarnation, MasterRecord, ServerRecord

TIMEOUT_S: Final = 1.0
#: Masters that are asked, all at once. A cluster has a few; forged registrations must not hold a command up.
MASTERS_ASKED_MAX: Final = 16


class Reach(msgspec.Struct):
    """One server and one master. `heard_ms`: age of the last heartbeat; -1: none, or the master did not answer."""

    server: str
    master: str
    heard_ms: int = -1
    #: Why the master did not answer.
    unknown: str = ""

    @property
    def is_well(self) -> bool:
        """Return True if heartbeats arrive in time, or the master did not answer."""
        return bool(self.unknown) or 0 <= self.heard_ms <= SILENT_MS


def reaches(
    masters: Sequence[MasterRecord], servers: Sequence[ServerRecord], names: Names, timeout_s: float = TIMEOUT_S
) -> list[Reach]:
    """Ask all live masters at once for the ages of heartbeats. Return a Reach for each pair of server and master.

    `timeout_s` limits each question.
    """
    found = []
    with ThreadPoolExecutor(MASTERS_ASKED_MAX) as pool:
        answers = list(pool.map(lambda one: _heard(one, timeout_s), masters[:MASTERS_ASKED_MAX]))
    answers += [({}, f"not asked: more than {MASTERS_ASKED_MAX} masters are registered")] * (
        len(masters) - len(answers)
    )
    for master, (heard, why) in zip(masters, answers, strict=True):
        for server in servers:
            age = heard.get(server.incarnation, -1)
            found.append(Reach(names.of_uuid(server.uuid), names.of_master(master), age, why))
    return sorted(found, key=lambda one: (one.server, one.master))


def _heard(master: MasterRecord, timeout_s: float) -> tuple[dict[Incarnation, int], str]:
    """Return the age of each server's last heartbeat to this master, or why the master does not say it."""
    address = (master.host, master.port)
    try:
        answer = call_blocking(address, messages.ListContacts(), timeout_s, expect=messages.Contacts)
    except RpcError as error:
        return {}, error.message or error.code
    return {one.server: one.heard_ms for one in answer.contacts}, ""


def show(found: Sequence[Reach], console: Console) -> None:
    """Print one line if all heartbeats arrive, else the missing ones."""
    mute = sorted({(one.master, one.unknown) for one in found if one.unknown})
    for master, why in mute:
        console.print(f"{master} does not list its heartbeats: {why}", style="yellow")
    known = [one for one in found if not one.unknown]
    if not known:
        return
    if all(one.is_well for one in known):
        oldest = max(one.heard_ms for one in known) / 1000
        whom = "every other master" if mute else "every master"
        console.print(f"[green]every server reaches {whom}[/green], the oldest heartbeat is {oldest:.1f} s old")
        return
    rows = [(one.server, one.master, last_heartbeat(one)) for one in known if not one.is_well]
    console.print("[red]heartbeats do not arrive:[/red]")
    console.print(output.table("", ["server", "does not reach", "last heartbeat"], rows))


def last_heartbeat(one: Reach) -> str:
    """Return the age of the last heartbeat in words."""
    return "never" if one.heard_ms < 0 else f"{one.heard_ms / 1000:.1f} s ago"


def summary(found: Sequence[Reach], server: str) -> str:
    """Return how many masters receive a server's heartbeats, of how many that answered, and the age of the oldest
    one."""
    known = [one for one in found if one.server == server and not one.unknown]
    heard = [one.heard_ms for one in known if one.is_well]
    age = f", {max(heard) / 1000:.1f} s" if heard else ""
    return f"{len(heard)}/{len(known)}{age}"
