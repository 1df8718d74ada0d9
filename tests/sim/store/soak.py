"""Fresh seeds for a given time: `python -m tests.sim.store.soak --minutes 60`.

After a violation the soak shrinks its history, prints it as a line for `seeds.txt`, and continues. The exit code is 1
if there was a violation, or if a situation of `tests.sim.raft.rare` never occurred on enough seeds. Every fourth
history is one of the bare Raft groups of `tests.sim.raft`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait

from simulation.engine.history import Violation
from tests.sim.raft.faults import run_one as run_group
from tests.sim.raft.plan import Plan, shrink
from tests.sim.raft.rare import ENOUGH, GROUP_MET, STORE_MET, STORE_RARE, missed
from tests.sim.store.faults import failure_of, run_plan
from tests.support.interpreted import run_interpreted

SIZES = (3, 3, 5)
#: Largest number of runs to shrink a failing history.
SHRINK_RUNS = 80


def run(seed: int) -> tuple[str, Counter[str], Counter[str]]:
    """Run one history. Return the violation, or "", and the counts of a store or of a group."""
    size = SIZES[seed % len(SIZES)]
    if seed % 4 == 0:
        try:
            group = run_group(seed, size)
        except Violation as violation:
            return str(violation), Counter(), Counter()
        group.counts["competing_candidates"] += sum(1 for each in group.check.candidates.values() if len(each) > 1)
        return "", Counter(), group.counts
    # Every tenth history is a long one.
    plan = Plan(seed, size, 60 if seed % 10 == 1 else 8)
    try:
        return "", run_plan(plan).counts, Counter()
    except Violation as violation:
        failure = failure_of(plan)
        small = shrink(plan, failure, failure_of, SHRINK_RUNS) if failure is not None else plan
        return f"{violation}\n  for tests/sim/store/seeds.txt: {small}", Counter(), Counter()


def main() -> int:
    """Run until the time is over."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.store.soak", description="Simulate fresh seeds.")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--from", type=int, dest="first", help="first seed (default: from the clock)")
    args = parser.parse_args()
    first = args.first if args.first is not None else int(time.time()) * 100
    ends = time.monotonic() + 60 * args.minutes
    stores: Counter[str] = Counter()
    groups: Counter[str] = Counter()
    failures: list[str] = []
    seeds = 0
    seed = first
    said = time.monotonic()
    with ProcessPoolExecutor(args.processes) as pool:
        running = {pool.submit(run, seed + offset) for offset in range(2 * args.processes)}
        seed += len(running)
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                violation, store, group = future.result()
                seeds += 1
                stores.update(store)
                groups.update(group)
                if violation:
                    failures.append(violation)
                    sys.stdout.write(f"VIOLATION {violation}\n")
                if time.monotonic() < ends:
                    running.add(pool.submit(run, seed))
                    seed += 1
            if time.monotonic() - said > 60:
                said = time.monotonic()
                sys.stdout.write(f"{seeds} seeds, {len(failures)} with violations\n")
                sys.stdout.flush()
    sys.stdout.write(f"{seeds} seeds from {first}, {len(failures)} with violations\n")
    for title, counts in (("whole stores", stores), ("bare groups", groups)):
        sys.stdout.write(f"{title}:\n")
        for name in sorted(counts):
            sys.stdout.write(f"  {name} {counts[name]}\n")
    for violation in failures:
        sys.stdout.write(f"VIOLATION {violation}\n")
    unmet = missed(stores, STORE_MET + STORE_RARE) + [f"{name} (groups)" for name in missed(groups, GROUP_MET)]
    if unmet:
        sys.stdout.write(f"never met: {', '.join(unmet)}\n")
    return 1 if failures or (unmet and seeds >= ENOUGH) else 0


if __name__ == "__main__":
    run_interpreted("tests.sim.store.soak")
    sys.exit(main())
