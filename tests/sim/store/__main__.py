"""Run simulations of whole stores from the command line; see the package docstring."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.sim.checks import Violation
from tests.sim.store.faults import Story
from tests.sim.store.machinery import SECOND
from tests.sim.store.world import World


def main() -> int:
    """Exit code 0 if every invariant held, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.store", description="Simulation of whole store nodes.")
    parser.add_argument("--seed", type=int, help="run this seed only")
    parser.add_argument("--from", type=int, default=1, dest="first", help="first seed (default 1)")
    parser.add_argument("--count", type=int, default=100, help="how many seeds (default 100)")
    parser.add_argument("--nodes", type=int, default=3, choices=[1, 2, 3, 4, 5], help="machines (default 3)")
    parser.add_argument("--trouble-s", type=float, default=6, help="simulated seconds of faults (default 6)")
    parser.add_argument("--trace", action="store_true", help="print every event")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first violation")
    args = parser.parse_args()
    seeds = [args.seed] if args.seed is not None else range(args.first, args.first + args.count)
    counts: Counter[str] = Counter()
    simulated_us = failed = 0
    began = time.process_time()
    for seed in seeds:
        world = World(seed, args.nodes, trace=args.trace)
        violation: Violation | None = None
        try:
            Story(world, args.trouble_s).run()
        except Violation as found:
            violation = found
        if world.trace is not None:
            sys.stdout.write("\n".join(world.trace) + "\n")
        if violation is not None:
            sys.stdout.write(f"VIOLATION {violation}\n")
            failed += 1
            if not args.keep_going:
                return 1
        counts.update(world.counts)
        simulated_us += world.now
    spent = time.process_time() - began
    sys.stdout.write(f"{len(seeds)} seeds, {failed} with violations, ")
    sys.stdout.write(f"{simulated_us // SECOND} simulated seconds in {spent:.0f} s of CPU\n")
    for name in sorted(counts):
        sys.stdout.write(f"  {name} {counts[name]}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
