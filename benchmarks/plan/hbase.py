"""HBase's own planner problem: a million regions on a thousand servers, in memory.

HBase's tests have a program for this problem (the load-balancer performance evaluation, a million regions and a
thousand servers by default). It times three calls; the times are not published. Our engines solve the same three
problems, from rows in memory to a finished, hashed plan:

    round robin   no region had a server
    retain        every region had a server, evenly, and all servers are back
    balance       the same, and a tenth of the servers are new and empty

There are no blocks. Regions are of one size, in ten tables. The seconds do not include the judgment of the plan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from benchmarks.plan.judging import worth
from benchmarks.plan.report import Row
from benchmarks.plan.running import machine
from regions.plan import Params, Snapshot
from regions.plan.engines.run import plan_encoded
from regions.plan.problem.model import Blocks, Last, RegionColumns, ServerColumns, texts

REGIONS: Final = 1_000_000
SERVERS: Final = 1_000
TABLES: Final = 10
NEW: Final = SERVERS // 10


def inputs(regions: int, servers: int, new: int) -> dict[str, Snapshot]:
    """Return the three snapshots by name. In the last one, `new` servers have no regions yet."""
    return {
        "round robin": _snapshot(regions, servers, 0),
        "retain": _snapshot(regions, servers, servers),
        "balance": _snapshot(regions, servers, servers - new),
    }


def _snapshot(regions: int, servers: int, had: int) -> Snapshot:
    """Return a snapshot of regions that were on the first `had` servers, dealt in turn; with `had` 0 none had a
    place."""
    number = np.arange(regions)
    region_id = texts(f"{i * 2654435761 % 2**32:08x}{i:08x}" for i in range(regions))
    server_id = texts(f"server{i:04d}" for i in range(servers))
    table = texts(f"table{i}" for i in range(TABLES))
    empty, none = texts([]), np.zeros(0, dtype=np.int64)
    return Snapshot(
        RegionColumns(
            region_id,
            table[number * TABLES // regions],
            texts("" for _ in range(regions)),
            np.full(regions, 2**30),
            np.zeros(regions),
            np.ones(regions, dtype=np.int64),
            texts("" for _ in range(regions)),
        ),
        ServerColumns(
            server_id,
            server_id,
            texts("rack" for _ in range(servers)),
            np.ones(servers),
            texts("" for _ in range(servers)),
            np.zeros(servers, dtype=np.bool_),
        ),
        Blocks(empty, empty, none),
        Last(region_id, np.zeros(regions, dtype=np.int64), server_id[number % had])
        if had
        else Last(empty, none, empty),
    )


def measure(note: Callable[[Row], None], say: Callable[[str], None], engines: Sequence[str]) -> None:
    """Run all three problems with each engine."""
    say(f"hbase: making {REGIONS:,} regions on {SERVERS:,} servers")
    for question, snapshot in inputs(REGIONS, SERVERS, NEW).items():
        for engine in engines:
            before = machine()
            start = time.perf_counter()
            made, problem = plan_encoded(snapshot, Params(), engine=engine)
            seconds = time.perf_counter() - start
            found = worth(problem, made.rows)
            note(
                Row(
                    size="1m",
                    scenario="hbase",
                    engine=f"{question}, {engine}",
                    date=time.strftime("%Y-%m-%d %H:%M"),
                    load=before["load"],
                    cores=before["cores"],
                    seconds=round(seconds, 3),
                    figures={
                        "broken rules": found.violations,
                        "max-min": found.spread,
                        "moves": found.moves,
                        "least moves": found.moves_min,
                    },
                )
            )
