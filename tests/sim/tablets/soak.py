"""Fresh seeds for as long as wanted: `python -m tests.sim.tablets.soak --minutes 60`.

Goes on after a violation and prints how to see it again. The exit code is 1 if there was a violation, or if one of the
situations of `rare` was never met on enough seeds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait

from simulation.tablets.rare import ENOUGH, MERGES_MET, SPLITS_MET, TABLETS_MET
from simulation.tablets.run import run_tablets
from tests.sim.raft.rare import missed

#: Simulated seconds of faults of every tenth history.
LONG_S = 30.0


def run(seed: int) -> tuple[str, Counter[str]]:
    """Simulate one seed: what was violated, or "", and what was counted. Every tenth history is a long one, and tablets
    are split in every third, and also merged in every ninth."""
    trouble_s = LONG_S if seed % 10 == 1 else 0.0
    verdict = run_tablets(seed, trouble_s=trouble_s, splits=seed % 3 == 0, merges=seed % 9 == 0)
    return verdict.violation, Counter(verdict.counts)


def main() -> int:
    """Run until the time is over."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.tablets.soak", description="Simulate fresh seeds.")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--from", type=int, dest="first", help="first seed (default: from the clock)")
    args = parser.parse_args()
    first = args.first if args.first is not None else int(time.time()) * 100
    ends = time.monotonic() + 60 * args.minutes
    counts: Counter[str] = Counter()
    failures = 0
    seeds = 0
    seed = first
    said = time.monotonic()
    with ProcessPoolExecutor(args.processes) as pool:
        running = {pool.submit(run, seed + offset) for offset in range(2 * args.processes)}
        seed += len(running)
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                violation, counted = future.result()
                seeds += 1
                counts.update(counted)
                if violation:
                    failures += 1
                    sys.stdout.write(f"VIOLATION {violation}\n")
                if time.monotonic() < ends:
                    running.add(pool.submit(run, seed))
                    seed += 1
            if time.monotonic() - said > 60:
                said = time.monotonic()
                sys.stdout.write(f"{seeds} seeds, {failures} with violations\n")
                sys.stdout.flush()
    sys.stdout.write(f"{seeds} seeds from {first}, {failures} with violations\n")
    for name in sorted(counts):
        sys.stdout.write(f"  {name} {counts[name]}\n")
    unmet = missed(counts, (*TABLETS_MET, *SPLITS_MET, *MERGES_MET))
    if unmet:
        sys.stdout.write(f"never met: {', '.join(unmet)}\n")
    return 1 if failures or (unmet and seeds >= ENOUGH) else 0


if __name__ == "__main__":
    sys.exit(main())
