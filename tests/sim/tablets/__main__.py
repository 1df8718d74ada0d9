"""Run simulated tablets from the command line; see the package docstring."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from simulation.engine.timeline import SECOND
from tests.sim.history import Violation
from tests.sim.tablets.faults import TROUBLE_S, Story
from tests.sim.tablets.world import World


def main() -> int:
    """Exit code 0 if every invariant held, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.tablets", description="Deterministic simulation.")
    parser.add_argument("--seed", type=int, help="run this seed only")
    parser.add_argument("--from", type=int, default=1, dest="first", help="first seed (default 1)")
    parser.add_argument("--count", type=int, default=50, help="how many seeds (default 50)")
    parser.add_argument("--servers", type=int, default=3, choices=[3, 4, 5], help="servers (default 3)")
    parser.add_argument("--trouble-s", type=float, default=TROUBLE_S, help="simulated seconds of faults")
    parser.add_argument("--trace", action="store_true", help="print every event")
    args = parser.parse_args()
    seeds = [args.seed] if args.seed is not None else range(args.first, args.first + args.count)
    counts: Counter[str] = Counter()
    simulated_us = 0
    began = time.process_time()
    for seed in seeds:
        world = World(seed, args.servers, trace=args.trace)
        violation: Violation | None = None
        try:
            Story(world, args.trouble_s).run()
        except Violation as found:
            violation = found
        if world.trace is not None:
            sys.stdout.write("\n".join(world.trace) + "\n")
        if violation is not None:
            sys.stdout.write(f"VIOLATION {violation}\n")
            return 1
        counts.update(world.counts)
        simulated_us += world.now
    spent = time.process_time() - began
    sys.stdout.write(f"{len(seeds)} seeds, every invariant held; {simulated_us // SECOND} simulated seconds")
    sys.stdout.write(f" in {spent:.1f} s of CPU\n")
    for name in sorted(counts):
        sys.stdout.write(f"  {name} {counts[name]}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
