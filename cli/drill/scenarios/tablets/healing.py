"""Waiting until tablets are whole again on other servers, and the copies made for this."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from cli.common import output
from cli.common.access import as_variables
from cli.common.asking.servers import ask_server, ask_servers
from cli.common.errors import CliError
from cli.common.local import environment_of
from cli.drill.replacing.losses import check_replaced, require_copies, stray_rows, unwhole
from cli.drill.report import Figure, InvariantCheck, check
from cli.drill.run import DEADLINE_S, Drill
from cli.drill.scenarios.tablets.leader_kill import OPERATIONS, LeaderVictim, choose_leader
from cli.drill.tablets import require_tablets, running_tablets
from coord.rpc.wire import RpcError
from regions.messages.tablets import TabletHealth
from regions.records.model import RegionRecord, ServerRecord
from regionserver.config import ServerSettings
from regionserver.tablets.copying.messages import CopyJob, CopyJobList, CopyState, ListCopyJobs
from regionserver.tablets.disk.layout import ROWS, parse_rows_name

#: Time limit of one server's answer, and pause between two questions to all servers.
_ASK_S: Final = 1.0
_LOOK_S: Final = 0.5
#: Time limit for rows of former members to leave the disks.
_CLEAN_S: Final = 60.0
#: Time limit of a step of the master or the policy, on a busy machine, beside the silence that must pass first.
_HEAL_S: Final = 2 * DEADLINE_S
#: A tablet whose table is disabled counts as CLOSED.
_AT_REST: Final = frozenset({TabletHealth.HEALTHY.value, TabletHealth.CLOSED.value})


def dead_s(drill: Drill) -> float:
    """Return the silence after which this cluster replaces members."""
    return drill.local.replica_dead_s or ServerSettings.replica_dead_s


# --- before the fault -------------------------------------------------------------------------------------------------


def require_replicated(drill: Drill, *, away: int) -> dict[str, RegionRecord]:
    """Return the tablets. Raise CliError if one of them could not keep its rows or its number of voters without `away`
    servers."""
    drill.require_rest(servers=3)
    tablets = require_tablets(drill.cluster)
    require_copies(running_tablets(drill.cluster), len(drill.local.servers), away)
    return tablets


def prepare(drill: Drill, server_name: str | None, *, away: int) -> tuple[LeaderVictim, list[ServerRecord]]:
    """Check the cluster, choose a server that leads, start the load; return the victim and the other servers."""
    tablets = require_replicated(drill, away=away)
    servers = drill.servers()
    victim = choose_leader(drill, servers, tablets, server_name)
    drill.victim = victim.name
    drill.say(
        f"at rest: {len(tablets)} tablets on {len(servers)} servers;"
        f" {victim.name} leads {len(victim.led)} of them and is a member of {victim.members}"
    )
    drill.begin()
    drill.await_answers(OPERATIONS, "clients of tablets did not start")
    return victim, [one for one in servers if one.uuid != victim.record.uuid]


# --- until all is whole -----------------------------------------------------------------------------------------------


class CopyWatch:
    """The copies that servers make from now on. A server lists only its last ended copies, so `look` comes often."""

    def __init__(self, drill: Drill) -> None:
        self._drill = drill
        self._jobs: dict[tuple[str, int, int], CopyJob] = {}
        self._next_s = 0.0
        self._ask()
        self._former = set(self._jobs)
        self._said = 0

    def look(self) -> None:
        """Ask the servers for their copies, unless they were just asked; print the progress."""
        if time.monotonic() < self._next_s:
            return
        self._ask()
        count = len(self.done())
        if count > self._said:
            self._said = count
            self._drill.say(f"copies made: {count}, {output.size(self.size())}")

    def done(self) -> list[CopyJob]:
        """Return the copies that have ended well."""
        return [job for key, job in self._jobs.items() if key not in self._former and job.state is CopyState.DONE]

    def size(self) -> int:
        """Return the bytes of these copies."""
        return sum(job.received for job in self.done())

    def figures(self) -> list[Figure]:
        """Return number and bytes of the copies."""
        self._ask()
        return [
            Figure("copies made", len(self.done()), "", "whole copies of tablets"),
            Figure("bytes copied", self.size(), "B", "rows and log"),
        ]

    def _ask(self) -> None:
        def ask(server: ServerRecord) -> CopyJobList:
            return ask_server(server, ListCopyJobs(server.uuid), CopyJobList, _ASK_S)

        answers = {}
        with contextlib.suppress(CliError, RpcError):
            answers = ask_servers([one for one in self._drill.servers() if one.tablets], ask)
        for uuid, found in answers.items():
            for job in found.jobs if found is not None else ():
                self._jobs[uuid, job.job, job.began_ms] = job
        self._next_s = time.monotonic() + _LOOK_S


def is_whole(drill: Drill, gone: Collection[str] = ()) -> bool:
    """Return True if every tablet is HEALTHY with its number of voters, none of them on servers that are `gone`."""
    status = drill.at_rest()
    if status is None or not _AT_REST.issuperset(status.tablets or {}):
        return False
    return not unwhole(drill.tablets, running_tablets(drill.cluster), gone)


def await_replaced(drill: Drill, gone: Collection[str], since_ms: int, copies: CopyWatch) -> None:
    """Wait until the members on servers that are `gone` were replaced and all tablets are HEALTHY; add the figures."""
    drill.say(
        f"a member that is silent for {dead_s(drill):g} s is replaced (rk up --replica-dead-s); waiting until all"
        " tablets are HEALTHY on other servers"
    )
    is_begun = _has_successors(drill)

    def look() -> bool:
        nonlocal is_begun
        copies.look()
        if not is_begun and _has_successors(drill):
            is_begun = True
            drill.figure("first successor", (drill.now_ms() - since_ms) / 1000, "until a lost member got a successor")
        return is_begun and is_whole(drill, gone)

    drill.wait(look, "the lost members of tablets were not replaced", dead_s(drill) + _HEAL_S)
    drill.figure("re-replicated", (drill.now_ms() - since_ms) / 1000, "until all tablets were HEALTHY elsewhere")
    drill.figures += copies.figures()


def _has_successors(drill: Drill) -> bool:
    """Return True if a tablet has given out a number since the drill began."""
    now = running_tablets(drill.cluster)
    return any(now[name].next_number > one.next_number for name, one in drill.tablets.items() if name in now)


def await_clean(drill: Drill) -> InvariantCheck:
    """Wait until all tablets are HEALTHY and no server has rows of a tablet without being a member; check this."""
    drill.wait(lambda: is_whole(drill), "tablets are not HEALTHY", _HEAL_S)
    deadline_s = time.monotonic() + _CLEAN_S
    while True:
        rows = dict(_rows_on_disk(drill))
        found = stray_rows(rows, running_tablets(drill.cluster))
        if not found or time.monotonic() >= deadline_s:
            return check("no rows of former members on the disks", found, f"{len(rows)} servers")
        drill.wait_until(drill.now_ms() + round(1000 * _LOOK_S))


def _rows_on_disk(drill: Drill) -> list[tuple[str, set[str]]]:
    """Return each live server's uuid with the tablets that have rows in its directory."""
    found = []
    for server in drill.servers():
        folder = directory_of(drill, drill.daemon_of(server.host, server.port)) / ROWS
        names = {parsed.tablet for path in folder.glob("*.mdb") if (parsed := parse_rows_name(path.name)) is not None}
        found.append((server.uuid, names))
    return found


def directory_of(drill: Drill, name: str) -> Path:
    """Return the data directory of a daemon."""
    return Path(drill.local.daemon(name).data_dir)


def members_may_change(drill: Drill, gone: Collection[str] = ()) -> None:
    """Let the drill check that members were replaced correctly, instead of checking that no tablet has moved."""
    drill.check_members = lambda before, after: check_replaced(before, after, gone)


# --- the real commands ------------------------------------------------------------------------------------------------


def start_command(drill: Drill, words: Sequence[str]) -> subprocess.Popen[str]:
    """Start `rk WORDS` with the drill's access to the store."""
    access = as_variables(drill.given.store_settings)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "cli", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment_of(drill.given.data_path), **access},
    )


def run_command(drill: Drill, words: Sequence[str]) -> tuple[int, str, str]:
    """Run `rk WORDS` to its end; return exit status, output and errors. Raise CliError after the time limit."""
    process = start_command(drill, words)
    try:
        said, errors = process.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired as error:
        raise CliError(f"rk {' '.join(words)} did not end within {DEADLINE_S:g} s") from error
    finally:
        process.kill()
        process.wait()
    return process.returncode, said, errors
