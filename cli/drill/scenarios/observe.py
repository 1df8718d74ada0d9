"""Drill without a fault of its own: load, checks and report beside any fault injector, on any cluster.

The operator breaks and repairs any part by any means. This drill reads and writes, follows the transitions, the
sessions and the elections, and reports at the end what was unavailable and whether anything was lost.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Final

from cli.common.errors import CliError
from cli.diagnose.follow import MembershipChange
from cli.drill.report import DrillReport, Figure, check, spread
from cli.drill.run import Drill
from cli.drill.target.moves import outages
from cli.up.progress import open_words

NAME: Final = "observe"

_LOOK_S: Final = 0.1
_WORDS: Final = {
    "server-down": "{} lost its session",
    "server-up": "{} registered",
    "no-active": "{} is not active any more",
    "active": "{} is active",
}


def run(drill: Drill, for_s: float | None) -> DrillReport:
    """Observe until Ctrl-C or until the time is over, then check."""
    before = drill.require_rest(servers=1)
    drill.victim, drill.action = "the cluster", "was observed beside faults from elsewhere"
    drill.say(f"at rest: {open_words(before)} open on {before.servers} servers")
    began_ms = drill.now_ms()
    drill.begin()
    drill.expect_restarts()
    drill.strike("observed")
    until = "until Ctrl-C" if for_s is None else f"for {for_s:g} s, or until Ctrl-C"
    drill.say(f"observing {until}: break what you want, and repair it before the end")
    with contextlib.suppress(KeyboardInterrupt):
        _watch(drill, began_ms, for_s)
    drill.say("the observation has ended: waiting until the cluster is at rest")
    drill.phase("coming to rest")
    rests = True
    try:
        drill.await_rest()
    except CliError as error:
        rests = False
        drill.checks.append(check("the cluster came to rest", [error.message], ""))
    seen = _since(drill, began_ms)
    lost = sum(one.what in ("server-down", "no-active") for one in seen)
    begun = sum(one.what == "active" for one in seen)
    drill.figures.append(Figure("sessions lost", lost, "", "of the active master and of region servers"))
    drill.figures.append(Figure("elections of masters", begun, "", "tenures that began"))
    moved = outages(drill.changes_since(began_ms))
    if moved:
        drill.figures += spread("region not open", moved, "CLOSING or OFFLINE to OPENED, each move")
    return drill.finish(NAME, rests=rests)


def _watch(drill: Drill, began_ms: int, for_s: float | None) -> None:
    """Print each session that ends or begins, until the time is over. Raise KeyboardInterrupt at Ctrl-C."""
    said = 0
    end_s = None if for_s is None else drill.elapsed_s() + for_s
    while end_s is None or drill.elapsed_s() < end_s:
        threading.Event().wait(_LOOK_S)
        found = _since(drill, began_ms)
        for one in found[said:]:
            drill.say(in_words(one))
        said = len(found)


def _since(drill: Drill, began_ms: int) -> list[MembershipChange]:
    """Return the changes of sessions and of the active master since `began_ms`, oldest first."""
    return [one for one in list(drill.follower.memberships) if one.at_ms >= began_ms]


def in_words(one: MembershipChange) -> str:
    """Return a change of sessions or of the active master as one line for people."""
    epoch = f", epoch {one.epoch}" if one.what == "active" else ""
    return _WORDS[one.what].format(one.address) + epoch
