"""Plain placement methods for comparison. Like the engines, they work from files to files.

    python -m benchmarks.plan.references --input DIR --output DIR --method sorted|hbase

    sorted   pairs (region, server) by falling value, each taken while the server is below its ceiling; the other
             replicas go to the least loaded server
    hbase    as HBase starts a cluster: a replica goes back to its former host if that host lives, without
             any bound; the rest go to all servers in turn (retainAssignment, roundRobinAssignment)

Both methods respect weights and groups, so their plans are complete. They ignore racks and tables. Their own code is as
plain as possible; they read, check and write with the code of the engines.
"""

from __future__ import annotations

import argparse
import heapq
import sys
import time
from pathlib import Path

import numpy as np

from regions.plan.artifact.digest import plan_digest
from regions.plan.artifact.files import prepare_output, progress_on_stdout, read_params, read_snapshot, write_plan
from regions.plan.engines.run import first_stats, numbered
from regions.plan.problem.model import Plan, Snapshot
from regions.plan.problem.numbered import NumberedProblem, encode

METHODS = ("sorted", "hbase")
Pairs = list[tuple[int, int]]


def sort_by_value(problem: NumberedProblem) -> Pairs:
    """Return (region, server) of all replicas, the pairs of highest value first."""
    room = problem.quotas.ceil.tolist()
    need = problem.want.tolist()
    placed: Pairs = []
    order = np.argsort(-problem.cand_benefit, kind="stable")
    for r, s in zip(problem.cand_region[order].tolist(), problem.cand_server[order].tolist(), strict=True):
        if need[r] and room[s]:
            room[s] -= 1
            need[r] -= 1
            placed.append((r, s))
    return placed + _to_least_loaded(problem, need, placed, room)


def _to_least_loaded(problem: NumberedProblem, need: list[int], placed: Pairs, room: list[int]) -> Pairs:
    """Place the remaining replicas, each on the server with most room that has no replica of the region yet."""
    here: dict[int, set[int]] = {}
    for r, s in placed:
        if problem.want[r] > 1:
            here.setdefault(r, set()).add(s)
    heaps = [[(-room[s], s) for s in problem.fleet.members(g).tolist()] for g in range(len(problem.fleet.groups))]
    for heap in heaps:
        heapq.heapify(heap)
    more: Pairs = []
    group = problem.tables.group[problem.table].tolist()
    for r in np.flatnonzero(np.array(need) > 0).tolist():
        for _ in range(need[r]):
            passed = []
            while (best := heapq.heappop(heaps[group[r]]))[1] in here.get(r, ()):
                passed.append(best)
            heapq.heappush(heaps[group[r]], (best[0] + 1, best[1]))
            for one in passed:
                heapq.heappush(heaps[group[r]], one)
            here.setdefault(r, set()).add(best[1])
            more.append((r, best[1]))
    return more


def retain_then_deal(problem: NumberedProblem, snapshot: Snapshot) -> Pairs:
    """Return (region, server) of all replicas: on the former host if possible, the others in turn."""
    number = {rid: i for i, rid in enumerate(problem.region_ids.tolist())}
    fleet, group = problem.fleet, problem.tables.group[problem.table].tolist()
    need = problem.want.tolist()
    here: dict[int, set[int]] = {}
    placed: Pairs = []
    last = snapshot.last
    for rid, sid in zip(last.region_id.tolist(), last.server_id.tolist(), strict=True):
        r, s = number.get(rid, -1), fleet.number.get(sid, -1)
        if r < 0 or s < 0 or not need[r] or fleet.group[s] != group[r] or s in here.get(r, ()):
            continue
        need[r] -= 1
        here.setdefault(r, set()).add(s)
        placed.append((r, s))
    members = [fleet.members(g).tolist() for g in range(len(fleet.groups))]
    turn = [0] * len(members)
    for r in np.flatnonzero(np.array(need) > 0).tolist():
        g = group[r]
        for _ in range(need[r]):
            while (s := members[g][turn[g] % len(members[g])]) in here.get(r, ()):
                turn[g] += 1
            turn[g] += 1
            here.setdefault(r, set()).add(s)
            placed.append((r, s))
    return placed


def main(arguments: list[str]) -> int:
    """Read, place and write, with progress lines like the planner's."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan.references")
    parser.add_argument("--input", required=True, type=Path)
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--method", choices=METHODS, required=True)
    options = parser.parse_args(arguments)
    progress = progress_on_stdout(3, time.monotonic)
    prepare_output(options.output)
    params, snapshot = read_params(options.input), read_snapshot(options.input)
    progress.stage("read")
    ignored: dict[str, int] = {}
    problem = encode(snapshot, params, ignored)
    pairs = sort_by_value(problem) if options.method == "sorted" else retain_then_deal(problem, snapshot)
    stats = first_stats(problem, ignored, blocks=len(snapshot.blocks))
    stats.engine = options.method
    both = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    rows = numbered(problem, both[:, 0], both[:, 1], stats)
    made = Plan(rows, plan_digest(rows), stats)
    progress.stage("plan")
    manifest = write_plan(options.output, made, plan_id=options.method, params=params, seconds=progress.seconds)
    progress.stage("write")
    progress.finished(manifest)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
