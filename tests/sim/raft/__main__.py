"""Run simulations from the command line; see the package docstring."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from simulation.engine.history import Violation
from simulation.engine.timeline import SECOND
from tests.sim.raft.faults import Story
from tests.sim.raft.group import Simulation


def main() -> int:
    """Run simulations. Return exit code 0 if every invariant held, 1 otherwise."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim.raft", description="Deterministic simulation of Raft groups."
    )
    parser.add_argument("--seed", type=int, help="run this seed only")
    parser.add_argument("--from", type=int, default=1, dest="first", help="first seed (default 1)")
    parser.add_argument("--count", type=int, default=100, help="how many seeds (default 100)")
    parser.add_argument("--nodes", type=int, default=3, choices=[1, 2, 3, 4, 5], help="first members (default 3)")
    parser.add_argument("--trouble-s", type=int, default=20, help="simulated seconds of faults (default 20)")
    parser.add_argument("--trace", action="store_true", help="print every event")
    args = parser.parse_args()
    seeds = [args.seed] if args.seed is not None else range(args.first, args.first + args.count)
    counts: Counter[str] = Counter()
    simulated_us = 0
    began = time.process_time()
    for seed in seeds:
        simulation = Simulation(seed, args.nodes, trace=args.trace)
        violation: Violation | None = None
        try:
            Story(simulation, args.trouble_s).run()
        except Violation as found:
            violation = found
        if simulation.lines is not None:
            sys.stdout.write("\n".join(simulation.lines) + "\n")
        if violation is not None:
            sys.stdout.write(f"VIOLATION {violation}\n")
            return 1
        counts.update(simulation.counts)
        counts["committed"] += simulation.check.commit
        counts["reads_answered"] += simulation.check.reads_answered
        simulated_us += simulation.now
    spent = time.process_time() - began
    sys.stdout.write(
        f"{len(seeds)} seeds, every invariant held; {simulated_us // SECOND} simulated seconds in {spent:.1f} s"
    )
    sys.stdout.write(f" of CPU, {simulated_us / SECOND / spent * 60:.0f} in a minute of it\n")
    for name in sorted(counts):
        sys.stdout.write(f"  {name} {counts[name]}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
