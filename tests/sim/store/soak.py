"""Fresh seeds for as long as wanted: `python -m tests.sim.store.soak --minutes 60`.

Goes on after a violation and names every failing seed at the end; the exit code is 1 if there was one. The bare Raft
groups of `tests.sim` take every fourth turn.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait

from tests.sim.checks import Violation
from tests.sim.faults import run_one as run_group
from tests.sim.store.faults import run_one

SIZES = (3, 3, 5)


def run(seed: int) -> tuple[str, Counter[str]]:
    """One history: what was violated, or "", and what was counted."""
    size = SIZES[seed % len(SIZES)]
    try:
        if seed % 4 == 0:
            return "", run_group(seed, size).counts
        # Every tenth history is a long one.
        return "", run_one(seed, size, 60 if seed % 10 == 1 else 8).counts
    except Violation as violation:
        return str(violation), Counter()


def main() -> int:
    """Run until the time is over."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.store.soak", description="Simulate fresh seeds.")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--from", type=int, dest="first", help="first seed (default: from the clock)")
    args = parser.parse_args()
    first = args.first if args.first is not None else int(time.time()) * 100
    ends = time.monotonic() + 60 * args.minutes
    counts: Counter[str] = Counter()
    failures: list[str] = []
    seed = first
    said = time.monotonic()
    with ProcessPoolExecutor(args.processes) as pool:
        running = {pool.submit(run, seed + offset) for offset in range(2 * args.processes)}
        seed += len(running)
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                violation, counted = future.result()
                counts["seeds"] += 1
                counts.update(counted)
                if violation:
                    failures.append(violation)
                    sys.stdout.write(f"VIOLATION {violation}\n")
                if time.monotonic() < ends:
                    running.add(pool.submit(run, seed))
                    seed += 1
            if time.monotonic() - said > 60:
                said = time.monotonic()
                sys.stdout.write(f"{counts['seeds']} seeds, {len(failures)} with violations\n")
                sys.stdout.flush()
    sys.stdout.write(f"{counts['seeds']} seeds from {first}, {len(failures)} with violations\n")
    for name in sorted(counts):
        sys.stdout.write(f"  {name} {counts[name]}\n")
    for violation in failures:
        sys.stdout.write(f"VIOLATION {violation}\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
