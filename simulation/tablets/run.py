"""Runs of the simulation of tablets, from seeds to verdicts, for `rk simulate --tablets` and for long runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from simulation.engine.history import Violation
from simulation.engine.timeline import SECOND
from simulation.tablets.changes import Changes, make_world
from simulation.tablets.clients import SimClient
from simulation.tablets.faults import TROUBLE_S, Story
from simulation.tablets.flaws import Flaws
from simulation.tablets.splits.story import SplitStory, split_clients
from simulation.tablets.world import World

#: Usual seconds of faults of a history with merges: a tablet must be split before its daughters can be merged.
MERGES_TROUBLE_S: Final = 10
#: Numbers of servers, in turn, of seeds for which no number is given.
SIZES: Final = (3, 5, 3, 4)


class TabletsVerdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of one seed. `violation` is "" if every invariant held. Otherwise it ends with the command that
    repeats the run."""

    seed: int
    servers: int
    violation: str
    simulated_s: float
    counts: dict[str, int]


def size_of(seed: int) -> int:
    """Return the number of servers of a seed."""
    return SIZES[seed % len(SIZES)]


def run_tablets(
    seed: int,
    servers: int = 0,
    trouble_s: float = 0.0,
    trace: Callable[[str], None] | None = None,
    *,
    splits: bool = False,
    merges: bool = False,
) -> TabletsVerdict:
    """Simulate one seed to its end. `servers` 0: as the seed says. `trouble_s` 0: as usual. `trace` gets every event as
    a line."""
    story = new_story(seed, servers or size_of(seed), trouble_s, trace=trace is not None, splits=splits, merges=merges)
    world = story.world
    violation = ""
    try:
        story.run()
    except Violation as found:
        violation = str(found)
    if trace is not None:
        for line in world.lines or ():
            trace(line)
    counts: Counter[str] = world.counts
    return TabletsVerdict(seed, world.size, violation, world.now / SECOND, dict(sorted(counts.items())))


def run_one(
    seed: int,
    size: int,
    trouble_s: float = 0.0,
    bug: type[Flaws] = Flaws,
    *,
    trace: bool = False,
    splits: bool = False,
    merges: bool = False,
) -> World:
    """Simulate one seed to its end.

    Raise Violation.
    """
    story = new_story(seed, size, trouble_s, bug, trace=trace, splits=splits, merges=merges)
    story.run()
    return story.world


def new_story(
    seed: int,
    size: int,
    trouble_s: float = 0.0,
    bug: type[Flaws] = Flaws,
    *,
    trace: bool = False,
    splits: bool = False,
    merges: bool = False,
) -> Story:
    """Return the history of a seed before its first event. `trouble_s`: seconds of faults, 0 for the usual ones.
    `splits`: tablets are split in it; `merges`: and merged."""
    flaws = bug()
    is_merging = merges or flaws.is_merging
    is_splitting = splits or is_merging or flaws.is_splitting
    with flaws.planted():
        clients_of = partial(split_clients, merges=is_merging) if is_splitting else _plain_clients
        world, changes, clients = make_world(seed, size, flaws, clients_of, trace=trace)
    usual_s = MERGES_TROUBLE_S if is_merging else TROUBLE_S
    faults_s = trouble_s or usual_s
    world.trouble_s = 0.0 if faults_s == usual_s else faults_s
    return (SplitStory if is_splitting else Story)(world, changes, clients, faults_s)


def _plain_clients(_changes: Changes) -> type[SimClient]:
    return SimClient
