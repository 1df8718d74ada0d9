"""Drill: a region server loses its disk. It returns as another server, and its former members are replaced.

If only the log is lost, the server refuses to start, because entries that it acknowledged may be missing. The drill
then runs the command that the server names.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Final

from cli.common.errors import CliError
from cli.drill.report import DrillReport, check
from cli.drill.run import Drill
from cli.drill.scenarios.tablets.healing import (
    CopyWatch,
    await_clean,
    await_replaced,
    directory_of,
    members_may_change,
    prepare,
    run_command,
)
from cli.drill.scenarios.tablets.leader_kill import OPERATIONS, LeaderVictim, await_new_leaders
from regions.records.model import ServerRecord
from regionserver.tablets.disk.layout import LOG

NAME: Final = "tablet-disk-loss"

#: Name of the command that such a server proposes.
COMMAND: Final = "rk server new-identity"


def run(drill: Drill, server_name: str | None, gap_max_s: float, *, log_only: bool) -> DrillReport:
    """Kill a server that leads, move its disk or its log away, start it, wait until all members are replaced, check."""
    victim, others = prepare(drill, server_name, away=0)
    drill.arguments = " --log-only" if log_only else ""
    drill.action = f"was killed with SIGKILL and lost its {'log' if log_only else 'data directory'}"
    copies = CopyWatch(drill)
    drill.strike("no leader")
    killed_ms = drill.kill(victim.name)
    kept = [_take_away(drill, victim, log_only=log_only)]
    drill.at_end(lambda: _say_kept(drill, kept))
    await_new_leaders(drill, victim, others, killed_ms)
    drill.phase("new identity")
    if log_only:
        kept.append(_refused(drill, victim))
    newcomer = _start_again(drill, victim)
    drill.figure("back as another server", (drill.now_ms() - killed_ms) / 1000, "from the kill")
    former = victim.record.uuid
    drill.say(f"{victim.name} is {newcomer.uuid[:8]} now, and was {former[:8]}")
    drill.phase("re-replicating")
    await_replaced(drill, [former], killed_ms, copies)
    members_may_change(drill, [former])
    drill.checks.append(await_clean(drill))
    drill.await_answers(OPERATIONS, "clients of tablets did not go on")
    report = drill.finish(NAME, gap_max_s=gap_max_s)
    if report.held:
        for folder in kept:
            shutil.rmtree(folder, ignore_errors=True)
    return report


def _take_away(drill: Drill, victim: LeaderVictim, *, log_only: bool) -> Path:
    """Move the dead server's directory, or its log, away; return the new place. Raise CliError."""
    source = directory_of(drill, victim.name)
    target = source.with_name(f"{victim.name}-lost-{victim.record.uuid[:8]}")
    drill.wait(lambda: not drill.daemons()[victim.name].pid, f"{victim.name} did not end")
    try:
        (source / LOG if log_only else source).rename(target)
    except OSError as error:
        raise CliError(f"cannot move {source} away: {error.strerror}", "Nothing was moved.") from error
    drill.say(f"moved the {'log' if log_only else 'data directory'} of {victim.name} to {target}")
    return target


def _start_again(drill: Drill, victim: LeaderVictim) -> ServerRecord:
    """Start the server and wait until it is registered under another uuid."""
    drill.restart(victim.name)
    former = victim.record.uuid

    def registered() -> ServerRecord | None:
        return next((one for one in drill.servers() if _address(one) == victim.address and one.uuid != former), None)

    return drill.wait(registered, f"{victim.name} did not register under a new identity")


def _address(server: ServerRecord) -> str:
    return f"{server.host}:{server.port}"


def _refused(drill: Drill, victim: LeaderVictim) -> Path:
    """Start the server without its log, wait until it refuses, run the command that it names. Add the check.

    Return the folder to which the command has moved the files of the former identity.
    """
    log, folder = Path(drill.local.daemon(victim.name).log), directory_of(drill, victim.name)
    known = log.stat().st_size
    drill.restart(victim.name)

    def said() -> str:
        with log.open("rb") as file:
            file.seek(known)
            return file.read().decode(errors="replace")

    command = f"{COMMAND} --data-dir {folder}"
    drill.wait(
        lambda: command in said() or _runs(drill, victim),
        f"{victim.name} did not refuse to start without its log",
    )
    if command not in said():
        raise CliError(f"{victim.name} started without its log", "It may have forgotten writes that it acknowledged.")
    wrong = [f"{victim.name} printed a traceback"] if "Traceback" in said() else []
    drill.checks.append(check("a server without its log refuses and names the command", wrong, command))
    drill.say(f"{victim.name} refused to start and named `{command}`")

    def given_up() -> Path | None:
        # `rk up` starts the dead daemon again and again, so the command may meet it in its directory.
        words = ["server", "new-identity", "--data-dir", str(folder), "--yes", "--json"]
        status, answer, errors = run_command(drill, words)
        if status and "Stop the server" not in errors:
            raise CliError(f"{COMMAND} failed: {errors.strip()}", "The server's log was moved away, see above.")
        return None if status else Path(json.loads(answer)["folder"])

    found = drill.wait(given_up, f"{victim.name} never left its directory to {COMMAND}")
    drill.say(f"ran {COMMAND}: the replicas are given up")
    return found


def _runs(drill: Drill, victim: LeaderVictim) -> bool:
    """Return True if the victim's identity runs: its record has another start code than before."""
    record = victim.record
    return any(one.uuid == record.uuid and one.start_code != record.start_code for one in drill.servers())


def _say_kept(drill: Drill, folders: list[Path]) -> None:
    """Say which files of the former identity are still there: they may have rows that are missing."""
    for folder in folders:
        if folder.exists():
            drill.say(f"kept, because the drill did not end well: {folder}")
