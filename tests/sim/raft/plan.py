"""The definition of one simulated history, as one line that can be kept, repeated and shrunk.

    seed=17 nodes=3 trouble=2.5 without=_flip,_kill skip=3,7 absent=2 in=store

A seed decides everything. The other fields remove parts of its history: whole kinds of faults, single faults by their
number, clients. A plan means the same history only on the same commit. On another commit it is one more seed, so plans
that once failed are kept and always run.
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
    #: Omitted kinds of faults, by the names of their methods.
    without: tuple[str, ...] = ()
    #: Omitted faults, by number.
    skip: tuple[int, ...] = ()
    #: Omitted clients, by number.
    absent: tuple[int, ...] = ()
    what: str = STORE

    def length_s(self) -> float:
        """Return the simulated seconds of faults, by default the usual ones."""
        return self.trouble_s or TROUBLE_S[self.what]

    def __str__(self) -> str:
        """Return the line that `parse_plan` reads."""
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
        """Return the command that repeats this history."""
        return f"python -m tests.sim.store --plan '{self}' --trace"


def parse_plan(text: str) -> Plan:
    """Return the plan of a line: the inverse of `str`. Raise ValueError, KeyError."""
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
    """How a history failed: the violation, and the plan and faults until then."""

    def __init__(self, text: str, at_s: float, faults: list[tuple[int, str]], clients: list[int]) -> None:
        self.text = text
        self.at_s = at_s
        #: (number, kind) of the faults that happened.
        self.faults = faults
        self.clients = clients

    def kind(self) -> str:
        """Return the beginning of the violation without numbers: a smaller history must fail with the same text."""
        line = self.text.partition("\n")[0]
        return "".join(char for char in line if not char.isdigit())[:40]


def shrink(plan: Plan, failure: Failure, run: Callable[[Plan], Failure | None], runs_max: int = 120) -> Plan:
    """Return the smallest history found in `runs_max` runs that still fails in the same way."""
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
    """Yield smaller plans, those that omit the largest parts first."""
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
