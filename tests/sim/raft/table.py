"""The list of famous bugs, with the planted bugs and the number of seeds that find each: `python -m
tests.sim.raft.table`.

docs/simulation.md contains the output; a test compares the two.
"""

from __future__ import annotations

import sys
from typing import Final

from tests.sim.raft import test_planted_bugs as groups
from tests.sim.store import test_planted_bugs as stores

#: The list, as named in the table.
FAMOUS: Final = {
    1: "old-term entries committed by counting; figure 8",
    2: "term or vote not durable before the reply",
    3: "acknowledged before the sync, or synced the wrong thing; applied twice",
    4: "hard state and entries stored apart",
    5: "a late, shorter append truncates",
    6: "commit index taken as the leader says it",
    7: "acknowledgements of another term counted",
    8: "next index below the snapshot",
    9: "single-server changes of the members",
    10: "configurations in force too long, not at all, or for the wrong ones",
    11: "pre-vote and quorum check shut somebody out",
    12: "reads of a deposed leader",
    13: "snapshots that are partial, old, incomplete or unknown to the log",
    14: "retries performed twice",
    15: "election timers reset wrongly",
    16: "data of an old connection or term behind newer data",
    17: "failed disks and lost disks that go on voting",
    18: "uncommitted entries applied",
    19: "ephemerals that outlive their session",
    20: "sessions ended too early, moved, or declared dead by who cannot know",
    21: "multi with a failing part",
    22: "deletes performed on newer state than was looked at",
    23: "counters beyond 2^31",
    24: "watches lost, doubled, early, late, or heard by the wrong ones",
    25: "replicas that decide differently",
}
#: Famous bugs that cannot be planted, and why.
ELSEWHERE: Final = {
    23: "no counter here has 32 bits: `tests/unit/coord/tree/test_machine.py` tests numbers at the limit",
}


def rows() -> list[tuple[int, str, str, str, int]]:
    """Return (number, planted bug, known from, simulation, seeds within which it is found)."""
    found = []
    for where, within in (("group", groups.WITHIN), ("store", stores.WITHIN), ("log", stores.LOG_WITHIN)):
        for bug, seeds in within.items():
            what = " ".join((bug.__doc__ or "").split()).rstrip(".")
            found.append((bug.number, what, bug.known, where, seeds))
    return sorted(found)


def table() -> str:
    """Return the table as it is in docs/simulation.md."""
    lines = ["| | planted bug | known from | in | within |", "| --- | --- | --- | --- | --- |"]
    for number, title in FAMOUS.items():
        lines.append(f"| **{number}** | **{title}** | | | |")
        lines += [
            f"| | {what} | {known} | {where} | {seeds} |"
            for each, what, known, where, seeds in rows()
            if each == number
        ]
        if number in ELSEWHERE:
            lines.append(f"| | {ELSEWHERE[number]} | | | |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table())
