"""Drill: any one process is frozen for a given time. The drill prints a forecast before, and compares it with the facts
afterwards."""

from __future__ import annotations

from typing import Final

from cli.common.errors import UsageFaultError
from cli.common.local import MASTER, SERVER, STORE
from cli.common.staleness import duration_ms
from cli.drill.freezing.forecast import Forecast, Likelihood, checks, compare, forecast
from cli.drill.freezing.situation import Witness, find_process, meet
from cli.drill.report import DrillReport, Figure
from cli.drill.run import Drill
from cli.drill.store_nodes import is_serving
from cli.up.progress import open_words

NAME: Final = "freeze"

#: Longest freeze. Replicas of a server that is silent for five minutes are replaced, which is not a rehearsal any more.
FREEZE_S_MAX: Final = 240.0
#: Interval of the questions who leads, while the process is frozen.
_LOOK_S: Final = 0.1
#: Time before the end of the freeze in which no question is sent, because an answer may take this long.
_LAST_LOOK_S: Final = 0.6


def run(drill: Drill, process_name: str, freeze_s: float) -> DrillReport:
    """Forecast, freeze, watch, continue, compare, check."""
    process = find_process(drill, process_name)
    before = drill.require_rest(servers=1)
    drill.victim = process.name
    drill.arguments = f" {process.name} --for {freeze_s:g}s"
    drill.action = f"was frozen with SIGSTOP for {freeze_s:g} s"
    drill.say(f"at rest: {open_words(before)} open on {before.servers} servers")
    drill.begin()
    met = meet(drill, process, freeze_s)
    forecasts = forecast(met.situation)
    drill.say(f"forecast for {freeze_s:g} s without {process.name}:")
    for one in forecasts:
        drill.say(f"  {in_words(one)}")
    witness = Witness(drill, process, met)
    drill.strike("frozen")
    frozen_ms = drill.freeze(process.name)
    end_ms = frozen_ms + round(freeze_s * 1000)
    while (left_s := (end_ms - drill.now_ms()) / 1000) > _LAST_LOOK_S:
        witness.look()
        drill.wait_until(drill.now_ms() + round(1000 * min(_LOOK_S, left_s)))
    drill.wait_until(end_ms)
    awake_ms = drill.unfreeze(process.name)
    witness.look()
    drill.phase("awake")
    drill.figures.append(Figure("frozen", round((awake_ms - frozen_ms) / 1000, 3), "s", "from SIGSTOP to SIGCONT"))
    _await_back(drill, process.role, process.name)
    drill.await_rest()
    drill.forecast = compare(forecasts, witness.facts(frozen_ms))
    drill.checks += checks(drill.forecast)
    if process.role == STORE:
        drill.count_lost_sessions()
    return drill.finish(NAME)


def freeze_seconds(text: str) -> float:
    """Return the duration of `--for` in seconds. Raise UsageFaultError."""
    seconds = duration_ms(text, "--for") / 1000
    if not 0 < seconds <= FREEZE_S_MAX:
        raise UsageFaultError(
            f"--for {text} is out of range: a freeze lasts longer than 0 s and at most {FREEZE_S_MAX:g} s",
            "A region server that is silent for longer is replaced in its tablets.",
        )
    return seconds


def in_words(one: Forecast) -> str:
    """Return a forecast as one line for people."""
    if one.likelihood is Likelihood.NEVER:
        return f"no: {one.event.value}: {one.why}"
    until = "" if one.latest_s == float("inf") else f" to {one.latest_s:.2f}"
    when = f", after {one.earliest_s:.2f}{until} s" if one.latest_s > 0 else ""
    number = f" ({one.count})" if one.count > 1 else ""
    return f"{one.likelihood.value}: {one.event.value}{number}{when}: {one.why}"


def _await_back(drill: Drill, role: str, name: str) -> None:
    """Wait until the process takes part again."""
    if role == STORE:
        node = drill.local.daemon(name)
        drill.wait(lambda: is_serving(node), f"{name} did not come back")
    elif role == SERVER:
        wanted = len(drill.local.servers)
        drill.wait(lambda: len(drill.servers()) == wanted, f"{name} did not register again")
    else:
        assert role == MASTER, f"{name} has the unknown role {role}"
        wanted = len(drill.local.masters)
        drill.wait(lambda: len(drill.cluster.masters()) == wanted, f"{name} did not register again")
    drill.say(f"{name} takes part again")
