"""Fresh seeds of whole clusters for a given time: `python -m tests.sim.cluster.soak --minutes 60`.

The soak writes a file for each violation and continues; the exit code is 1 if there was one. Three of four runs use the
drill `random`, the fourth one of the other drills, unless `--drill` names one for all. Every tenth run has a minute of
faults.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from pathlib import Path

from twisted.logger import globalLogBeginner

from simulation.drills import DRILLS
from simulation.run import Options, RunVerdict, record, run

FOLDER = Path("rk-simulations")


def simulate(seed: int, drill: str, trouble_s: float) -> RunVerdict:
    """Simulate one run."""
    drills = list(DRILLS)
    drill = drill or ("random" if seed % 4 else drills[seed // 4 % len(drills)])
    return run(Options(seed, drill, duration_s=trouble_s or (60.0 if seed % 10 == 1 else 15.0)))


def _quiet() -> None:
    globalLogBeginner.beginLoggingTo([], redirectStandardIO=False, discardBuffer=True)


def main() -> int:
    """Run until the time is over."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.cluster.soak", description="Simulate fresh seeds.")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--from", type=int, dest="first", help="first seed (default: from the clock)")
    parser.add_argument("--drill", choices=DRILLS, default="", help="all runs of this one")
    parser.add_argument("--trouble", type=float, default=0.0, help="seconds of it in each run (default: 15 or 60)")
    args = parser.parse_args()
    seed = args.first if args.first is not None else int(time.time()) * 100
    ends = time.monotonic() + 60 * args.minutes
    said = time.monotonic()
    seeds = failed = 0
    simulated_s = 0.0
    counts: Counter[str] = Counter()
    with ProcessPoolExecutor(args.processes, initializer=_quiet) as pool:
        running = {
            pool.submit(simulate, seed + offset, args.drill, args.trouble) for offset in range(2 * args.processes)
        }
        seed += len(running)
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                verdict = future.result()
                seeds += 1
                simulated_s += verdict.simulated_s
                counts.update(verdict.counts)
                if not verdict.ok:
                    failed += 1
                    sys.stdout.write(f"VIOLATION {verdict.violation}\n  {record(verdict, FOLDER)}\n")
                if time.monotonic() < ends:
                    running.add(pool.submit(simulate, seed, args.drill, args.trouble))
                    seed += 1
            if time.monotonic() - said > 60:
                said = time.monotonic()
                sys.stdout.write(f"{seeds} seeds, {simulated_s:.0f} s simulated, {failed} with violations\n")
                sys.stdout.flush()
    asked = sum(count for what, count in counts.items() if what.startswith("ddl "))
    resharded = f", {counts['splits']} splits and {counts['merges']} merges" if counts["splits"] else ""
    ddl = f", {asked} operations on tables" if asked else ""
    sys.stdout.write(
        f"{seeds} seeds, {simulated_s:.0f} s simulated, {counts['tenures']} elections{ddl}{resharded},"
        f" {failed} with violations\n"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
