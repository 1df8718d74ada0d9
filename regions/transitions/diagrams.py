"""Pages of the documentation that are generated from the tables of this package, so that they cannot differ.

python -m regions.transitions.diagrams > docs/transitions.md      a test fails when the file is not exactly this
"""

from __future__ import annotations

import sys
from typing import Final

from regions.records.model import RegionState
from regions.transitions import resharding, table_states
from regions.transitions.next_action import Action, Party, next_action
from regions.transitions.states import as_markdown

#: Descriptions of the master's actions.
_WORDS: Final = {
    Action.WAIT: "wait: a server is at work",
    Action.ORDER_OPEN: "order the destination to open",
    Action.REASSIGN: "OFFLINE towards a new destination",
    Action.KEEP_PLAN: "OFFLINE towards the named destination",
    Action.ACKNOWLEDGE: "delete: it is open",
    Action.PUT_DOWN: "OFFLINE without destination, deleted next",
    Action.DELETE: "delete, with a check of the intent",
}

#: Contradictions in the sources, and how this implementation resolves them.
DECISIONS: Final = (
    ("X1", "A CLOSING region whose destination dies", "stays CLOSING while its source lives; only a dead source is "
     "forced OFFLINE. Otherwise a second server would open what the first still serves"),
    ("X2", "CLOSED to OPENING is no legal step", "the master writes CLOSED to OFFLINE, destination inside, then OPEN"),
    ("X3", "Disabling deletes CLOSED, which no rule allows", "a row of its own: legal iff the persisted intent says do "
     "not reopen, which the same multi checks"),
    ("X4", "The enable section says disable", "a slip; it means enable"),
    ("X5", "OPENING and OPENED share one heading", "both rules hold for both: a dead destination means OFFLINE, even "
     "after a successful open"),
    ("X6", "A new master reopens every CLOSED region", "intents and accepted moves are persisted: disabled, unassigned "
     "and deleted regions stay closed over any failover"),
    ("X7", "Startup or failover by counting servers", "a startup iff no server start that the store names is alive or "
     "fenced and perhaps still serving; the wipe is fenced and by version"),
    ("X8", "The master must not fail before OFFLINE is written", "a plan has an id and a record; whatever it left "
     "undone, the next master plans under the same id"),
    ("X9", "The balancer waits until nothing is in transition", "stuck regions and their servers are left out instead, "
     "and named"),
    ("X10", "A close that takes long", "asked again with growing pauses, a problem after a while, then its server is "
     "fenced; its regions go elsewhere only when its lease must have run out"),
    ("X11", "No bound on failed opens", "a bounded number of attempts with growing pauses, then parked with the "
     "reason; an operator has it tried again"),
    ("X12", "Names of states used both ways", "tables PREPARING, RUNNING, ALTERING, REMOVED; tablets UNKNOWN, "
     "PREPARING, CREATING, RUNNING, REPLACED, DELETED"),
    ("X13", "StartTabletCopy checks the term after it has deleted", "all checks come first"),
    ("X14", "Followers ignore heartbeats, or do not", "standby masters process liveness and registration only"),
)  # fmt: skip

_PARTIES: Final = {Party.NONE: "none", Party.DEAD: "dead", Party.ALIVE: "alive"}


def matrices() -> str:
    """Return the page's part with the next step of a transition, for each state and each fate of its source and
    destination."""
    lines = [
        "## What a transition needs",
        "",
        "One table for server death, master failover and the steady state",
        "(`regions/transitions/next_action.py`): the master looks up the state of the transition, and whether its",
        "source and its destination live, whatever happened before. A restarted server is dead, because it is another",
        "start; a fenced server lives until its lease must have run out. Each cell is a test in",
        "`tests/unit/regions/transitions/test_failure_matrix.py`.",
    ]
    for reopen, title in ((True, "The region is wanted open"), (False, "It is to stay closed (X3, X6)")):
        lines += ["", f"### {title}", "", "| state | source | destination | the master | rows |", "| --- " * 5 + "|"]
        for state in RegionState:
            for source, destination, action, rows in _merged(state, reopen):
                lines.append(f"| {state.value} | {source} | {destination} | {action} | {rows} |")
    return "\n".join(lines) + "\n"


def _merged(state: RegionState, reopen: bool) -> list[tuple[str, str, str, str]]:
    """Return the cells of one state, with the sources that make no difference merged."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for destination in Party:
        for source in Party:
            verdict = next_action(state, source, destination, reopen=reopen)
            key = (_PARTIES[destination], _WORDS[verdict.action], verdict.rows)
            found.setdefault(key, []).append(_PARTIES[source])
    cells = []
    for (destination_name, action, rows), sources in found.items():
        cells.append(("any" if len(sources) == len(Party) else ", ".join(sources), destination_name, action, rows))
    return cells


def decisions() -> str:
    """Return the page's part about the decisions X1 to X14."""
    lines = [
        "## Where the sources contradict themselves",
        "",
        "| | what the sources say, or leave open | what is done |",
        "| --- | --- | --- |",
    ]
    lines += [f"| {number} | {what} | {done} |" for number, what, done in DECISIONS]
    return "\n".join(lines) + "\n"


def transitions_page() -> str:
    """Return docs/transitions.md."""
    return "\n".join([as_markdown(), matrices(), table_states.as_markdown(), resharding.as_markdown(), decisions()])


if __name__ == "__main__":
    sys.stdout.write(transitions_page())
