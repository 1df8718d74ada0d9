"""Measures bulk plans: value against the best possible (J*), broken rules, seconds.

    python benchmarks/bench_plan.py [--regions 10000] [--servers 100] [--seeds 101 102] [--scenario NAME ...]

J* is the value of the exact flow over the same bounds (regions/plan/flow.py, needs OR-tools); L is the part of the
regions' bytes that is local, against the part that is local in the exact flow's plan. One line per scenario and seed.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from regions.plan import Params, plan, verify
from regions.plan.engines import solve_whole
from regions.plan.flow import flow_value, solve_exact
from regions.plan.problem import encode
from regions.plan.scenarios import SCENARIOS, scenario


def main() -> None:
    """One table on standard output."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--regions", type=int, default=10_000)
    parser.add_argument("--servers", type=int, default=100)
    parser.add_argument("--seeds", type=int, nargs="+", default=[101, 102])
    parser.add_argument("--scenario", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--shards", type=int, default=4, help="for the engine sharded")
    options = parser.parse_args()
    print("scenario     seed engine   J/J*    L/L*   violations  chains  seconds")
    for name in options.scenario:
        for seed in options.seeds:
            _measure(name, seed, options)


def _measure(name: str, seed: int, options: argparse.Namespace) -> None:
    """All engines on one input."""
    snapshot = scenario(name, regions=options.regions, servers=options.servers, seed=seed)
    params = Params()
    problem = encode(snapshot, params, {})
    start = time.perf_counter()
    best = solve_whole(problem, solve_exact)
    solve_s = time.perf_counter() - start
    most = flow_value(problem, best)
    most_local = float(problem.cand_local[best].astype(np.float64).sum())
    print(f"{name:12} {seed:4} (bound)  {1:.4f}  {1:.4f}                      {solve_s:6.2f} (flow alone)")
    for engine in ("greedy", "sharded", "flow"):
        start = time.perf_counter()
        made = plan(snapshot, params, engine=engine, shards=options.shards if engine == "sharded" else None)
        seconds = time.perf_counter() - start
        broken = verify(snapshot, params, made.rows).violations
        print(
            f"{name:12} {seed:4} {engine:8} {made.stats.value / most:.4f}  {made.stats.local_bytes / most_local:.4f}"
            f"  {broken:10}  {made.stats.placed_by_chain:6}  {seconds:6.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
