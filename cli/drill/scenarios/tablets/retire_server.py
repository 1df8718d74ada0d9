"""Drill: a server is retired by `rk server retire` under load, until no tablet has a member there; then the request is
withdrawn."""

from __future__ import annotations

import contextlib
import subprocess
from typing import Final

from cli.common.errors import CliError
from cli.drill.replacing.losses import check_replaced
from cli.drill.report import DrillReport
from cli.drill.run import Drill
from cli.drill.scenarios.tablets.healing import (
    CopyWatch,
    await_clean,
    is_whole,
    members_may_change,
    prepare,
    run_command,
    start_command,
)
from cli.drill.scenarios.tablets.leader_kill import OPERATIONS, LeaderVictim
from cli.drill.tablets import running_tablets

NAME: Final = "retire-server"

#: Time limit of the command: every member of the server is copied.
RETIRE_S: Final = 300.0


def run(drill: Drill, server_name: str | None, gap_max_s: float) -> DrillReport:
    """Retire a server that leads (a random one unless named), wait until it is empty, withdraw the request, check."""
    victim, _ = prepare(drill, server_name, away=1)
    drill.action = "was retired"
    copies = CopyWatch(drill)
    drill.strike("retiring")
    began_ms = drill.now_ms()
    drill.at_end(lambda: _take_back(drill, victim))
    _retire(drill, victim, copies)
    drill.figure("until it was empty", (drill.now_ms() - began_ms) / 1000, "the time that rk server retire took")
    gone = [victim.record.uuid]
    drill.wait(lambda: is_whole(drill, gone), "tablets are not HEALTHY elsewhere")
    drill.checks.append(check_replaced(drill.tablets, running_tablets(drill.cluster), gone))
    drill.figures += copies.figures()
    drill.await_answers(OPERATIONS, "clients of tablets did not go on")
    drill.checks.append(await_clean(drill))
    drill.phase("taken back")
    _take_back(drill, victim)
    drill.say(f"took the retirement of {victim.name} back; the balancer gives it regions again")
    drill.await_answers(OPERATIONS, "clients of tablets did not go on")
    members_may_change(drill)
    return drill.finish(NAME, gap_max_s=gap_max_s)


def _retire(drill: Drill, victim: LeaderVictim, copies: CopyWatch) -> None:
    """Run the command to its end. If it fails, raise CliError with its output."""
    words = ["server", "retire", victim.record.uuid, *_where(drill), "--wait", f"{RETIRE_S:g}", "--json"]
    process = start_command(drill, words)
    drill.say(f"running rk server retire {victim.name}")

    def has_ended() -> bool:
        copies.look()
        return process.poll() is not None

    try:
        drill.wait(has_ended, f"rk server retire {victim.name} did not end", RETIRE_S + 30)
        _, errors = process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
    if process.returncode:
        raise CliError(f"rk server retire {victim.name} failed: {errors.strip()}", "The drill takes the request back.")


def _take_back(drill: Drill, victim: LeaderVictim) -> None:
    """Run `rk server retire --cancel`. Raise CliError if it fails. A second call changes nothing."""
    status, _, errors = run_command(drill, ["server", "retire", victim.record.uuid, "--cancel", *_where(drill)])
    if status:
        raise CliError(f"rk server retire --cancel failed: {errors.strip()}", "Run it again.")


def _where(drill: Drill) -> list[str]:
    return ["--data-dir", str(drill.given.data_path)]
