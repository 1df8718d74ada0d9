"""What one simulated history is made of, as one line that can be kept, run again and made smaller.

    seed=17 nodes=3 trouble=2.5 without=_flip,_kill skip=3,7 absent=2 in=store

A seed decides everything; the rest takes things away from what it decides: whole kinds of faults, single faults by
their number in the history, clients. A plan means the same history on the same commit only; on another one it is a
seed like any other, which is why those that once failed are kept and always run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

STORE: Final = "store"
GROUP: Final = "group"
TROUBLE_S: Final = {STORE: 6.0, GROUP: 20.0}


@dataclass(frozen=True)
class Plan:
    """One history: whole stores (STORE) or bare Raft groups (GROUP)."""

    seed: int
    nodes: int = 3
    #: Simulated seconds of faults.
    trouble_s: float = 0.0
    #: Kinds of faults that stay away, by the names of their methods.
    without: tuple[str, ...] = ()
    #: Faults that stay away, by number.
    skip: tuple[int, ...] = ()
    #: Clients that stay away, by number.
    absent: tuple[int, ...] = ()
    what: str = STORE

    def length_s(self) -> float:
        """Simulated seconds of faults, the usual ones unless told."""
        return self.trouble_s or TROUBLE_S[self.what]

    def __str__(self) -> str:
        """As `parse_plan` reads it."""
        parts = [f"seed={self.seed}", f"nodes={self.nodes}"]
        if self.trouble_s:
            parts.append(f"trouble={self.trouble_s:g}")
        for name, values in (("without", self.without), ("skip", self.skip), ("absent", self.absent)):
            if values:
                parts.append(f"{name}={','.join(map(str, values))}")
        if self.what != STORE:
            parts.append(f"in={self.what}")
        return " ".join(parts)

    def replay(self) -> str:
        """The command that shows this history."""
        return f"python -m tests.sim.store --plan '{self}' --trace"


def parse_plan(text: str) -> Plan:
    """The inverse of `str`. Raise ValueError, KeyError."""
    fields = dict(part.split("=", 1) for part in text.split())
    unknown = set(fields) - {"seed", "nodes", "trouble", "without", "skip", "absent", "in"}
    if unknown:
        raise ValueError(f"a plan has no {sorted(unknown)}")
    return Plan(
        int(fields["seed"]),
        int(fields.get("nodes", 3)),
        float(fields.get("trouble", 0)),
        tuple(filter(None, fields.get("without", "").split(","))),
        tuple(int(each) for each in fields.get("skip", "").split(",") if each),
        tuple(int(each) for each in fields.get("absent", "").split(",") if each),
        fields.get("in", STORE),
    )


class Failure:
    """How a history failed: in words, and what it was made of until then."""

    def __init__(self, text: str, at_s: float, faults: list[tuple[int, str]], clients: list[int]) -> None:
        self.text = text
        self.at_s = at_s
        #: (number, kind) of those that happened.
        self.faults = faults
        self.clients = clients

    def kind(self) -> str:
        """The beginning of what was violated, without numbers: a smaller history should fail alike."""
        line = self.text.partition("\n")[0]
        return "".join(char for char in line if not char.isdigit())[:40]


def shrink(plan: Plan, failure: Failure, run: Callable[[Plan], Failure | None], runs_max: int = 120) -> Plan:
    """The smallest history found in `runs_max` runs that still fails in the same way."""
    left = runs_max
    smaller = True
    while smaller and left > 0:
        smaller = False
        for candidate in _smaller(plan, failure):
            left -= 1
            found = run(candidate)
            if found is not None and found.kind() == failure.kind():
                plan, failure, smaller = candidate, found, True
                break
            if left <= 0:
                break
    return plan


def _smaller(plan: Plan, failure: Failure) -> Iterator[Plan]:
    """What might be left out, the largest parts first."""
    length = plan.length_s()
    if failure.at_s + 0.1 < length:
        yield replace(plan, trouble_s=round(failure.at_s + 0.1, 1))
    for share in (0.3, 0.6, 0.85):
        if length * share >= 0.5:
            yield replace(plan, trouble_s=round(length * share, 1))
    for kind in sorted({kind for _, kind in failure.faults}):
        yield replace(plan, without=(*plan.without, kind))
    for client in failure.clients:
        yield replace(plan, absent=(*plan.absent, client))
    numbers = [number for number, kind in failure.faults if number not in plan.skip and kind not in plan.without]
    half = len(numbers) // 2
    if half > 1:
        yield replace(plan, skip=(*plan.skip, *numbers[:half]))
        yield replace(plan, skip=(*plan.skip, *numbers[half:]))
    for number in numbers:
        yield replace(plan, skip=(*plan.skip, number))
