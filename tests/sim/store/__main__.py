"""Run simulations of whole stores from the command line; see the package docstring."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from simulation.engine.history import Violation
from simulation.engine.timeline import SECOND
from tests.sim.raft.plan import Plan, parse_plan, shrink
from tests.sim.store.faults import failure_of, run_world
from tests.sim.store.world import World
from tests.support.interpreted import run_interpreted


def main() -> int:
    """Run simulations. Return exit code 0 if every check held, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.store", description="Simulation of whole store nodes.")
    parser.add_argument("--seed", type=int, help="run this seed only")
    parser.add_argument("--plan", type=parse_plan, help="run this history only, as a failure prints it")
    parser.add_argument("--from", type=int, default=1, dest="first", help="first seed (default 1)")
    parser.add_argument("--count", type=int, default=100, help="how many seeds (default 100)")
    parser.add_argument("--nodes", type=int, default=3, choices=[1, 2, 3, 4, 5], help="machines (default 3)")
    parser.add_argument("--trouble-s", type=float, default=0, help="simulated seconds of faults (default 6)")
    parser.add_argument("--trace", action="store_true", help="print every event")
    parser.add_argument("--shrink", action="store_true", help="of a history that fails, find a smaller one")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first violation")
    args = parser.parse_args()
    if args.plan is not None:
        plans = [args.plan]
    else:
        seeds = [args.seed] if args.seed is not None else range(args.first, args.first + args.count)
        plans = [Plan(seed, args.nodes, args.trouble_s) for seed in seeds]
    counts: Counter[str] = Counter()
    simulated_us = failed = 0
    began = time.process_time()
    for plan in plans:
        world = World(plan.seed, plan.nodes, trace=args.trace)
        try:
            run_world(world, plan)
        except Violation as violation:
            failed += 1
            _write_trace(world)
            sys.stdout.write(f"VIOLATION {violation}\n")
            if args.shrink:
                sys.stdout.write(f"  smallest found: {_smallest(plan)}\n")
            if not args.keep_going:
                return 1
            continue
        _write_trace(world)
        counts.update(world.counts)
        simulated_us += world.now
    spent = time.process_time() - began
    sys.stdout.write(f"{len(plans)} seeds, {failed} with violations, ")
    sys.stdout.write(f"{simulated_us // SECOND} simulated seconds in {spent:.1f} s of CPU,")
    sys.stdout.write(f" {simulated_us / SECOND / spent * 60:.0f} in a minute of it\n")
    for name in sorted(counts):
        sys.stdout.write(f"  {name} {counts[name]}\n")
    return 1 if failed else 0


def _write_trace(world: World) -> None:
    if world.lines is not None:
        sys.stdout.write("\n".join(world.lines) + "\n")


def _smallest(plan: Plan) -> Plan:
    failure = failure_of(plan)
    return plan if failure is None else shrink(plan, failure, failure_of)


if __name__ == "__main__":
    run_interpreted("tests.sim.store")
    sys.exit(main())
