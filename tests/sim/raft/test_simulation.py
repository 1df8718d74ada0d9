"""Many seeds, every invariant after every step, and proof that the rare situations were reached."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from coord.compiled import PURE_VARIABLE, is_switched_on
from simulation.engine.timeline import SECOND
from tests.sim.raft.faults import run_one
from tests.sim.raft.group import Simulation
from tests.sim.raft.rare import GROUP_MET, missed

ROOT = Path(__file__).resolve().parents[3]

#: (first members, seeds). A violation names its seed and the command that repeats it.
RUNS = [(3, range(1, 141)), (5, range(1, 61))]
#: With RK_PURE (the interpreted core) run fewer seeds: the compiled core has run all of them. Each kind of group again.
if is_switched_on(PURE_VARIABLE):
    RUNS = [(3, range(1, 41)), (5, range(1, 21))]


def run_all() -> Counter[str]:
    """Run all seeds and return the counts."""
    counts: Counter[str] = Counter()
    for size, seeds in RUNS:
        for seed in seeds:
            simulation = run_one(seed, size)
            counts.update(simulation.counts)
            counts["seeds"] += 1
            counts["simulated_s"] += simulation.now // SECOND
            counts["committed"] += simulation.check.commit
            counts["acknowledged"] += len(simulation.check.acked)
            counts["reads_answered"] += simulation.check.reads_answered
            counts["terms"] += len(simulation.check.leaders)
            counts["competing_candidates"] += sum(1 for c in simulation.check.candidates.values() if len(c) > 1)
    return counts


def _check_that_the_simulated_clients_get_work_done(history: Counter[str]) -> None:
    """Otherwise the invariants would hold only because nothing happens."""
    assert history["committed"] > 20 * history["seeds"]
    assert history["acknowledged"] > 10 * history["seeds"]
    assert history["reads_answered"] > 10 * history["seeds"]
    assert history["terms"] > 3 * history["seeds"]


def _check_that_rare_states_are_reached(history: Counter[str]) -> None:
    """Each of the rare situations occurred."""
    assert missed(history, GROUP_MET) == []


def test_every_invariant_holds_on_every_seed() -> None:
    """Safety after each step and recovery at the end; `run_one` raises otherwise."""
    history = run_all()
    assert history["seeds"] == sum(len(seeds) for _, seeds in RUNS)
    assert history["simulated_s"] >= 20 * history["seeds"]
    _check_that_the_simulated_clients_get_work_done(history)
    if not is_switched_on(PURE_VARIABLE):  # the compiled run has had enough seeds
        _check_that_rare_states_are_reached(history)


def test_a_run_that_is_done_leaves_the_next_event() -> None:
    """A node whose tick was dropped would never tick again: a leader would send no more heartbeats."""
    simulation = Simulation(1, 3)
    happened: list[str] = []
    simulation.at(simulation.now, happened.append, "next")
    assert simulation.play_until(SECOND, lambda: True)
    assert happened == []
    simulation.play_until(SECOND)
    assert happened == ["next"]


def test_one_seed_gives_one_history_whatever_the_hash_seed() -> None:
    """Nothing depends on the order of a set or on object identity: the traces of two processes are equal, byte by
    byte."""
    traces = [
        subprocess.run(
            [sys.executable, "-m", "tests.sim.raft", "--seed", "7", "--nodes", "5", "--trouble-s", "8", "--trace"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "4242")
    ]
    # All lines but the one with the duration.
    histories = [[line for line in trace.splitlines() if b" of CPU" not in line] for trace in traces]
    assert len(histories[0]) > 1000
    assert histories[0] == histories[1]
