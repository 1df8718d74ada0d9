"""The live page in a real browser: the first complete picture, the longest frame while regions move, bytes, heap.

    python -m benchmarks.browser [--regions 100000] [--seconds 20] [--rounds 3] [--json]
    python -m benchmarks.browser --heap-minutes 10 [--regions 100000]       whether the page's memory grows

The page is that of a made-up master without a store (`tests/browser/synthetic.py`), of which 500 regions a second move.
Needs Debian's chromium, as `make test-browser` does.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from typing import Any, Final

from benchmarks.arguments import positive
from tests.browser.conftest import CHROMIUM, FLAGS, MISSING, QUIET
from tests.browser.test_page import synthetic, tab

#: Goals of this project for 100,000 regions.
GOAL_PICTURE_S: Final = 2.0
GOAL_FRAME_MS: Final = 50.0
#: Part by which the heap may grow after the first minute.
GROWTH_MAX: Final = 0.1
#: Kinds of figures: heading, decimals.
COLUMNS: Final = {
    "picture_s": ("first picture s", 2),
    "loading_ms": ("longest drawing until then ms", 0),
    "frame_ms": ("longest drawing later ms", 0),
    "server_s": ("master's CPU for it s", 2),
    "megabytes": ("MB", 1),
    "heap_mb": ("heap MB", 0),
}


def measure(browser: Any, regions: int, seconds: int) -> dict[str, float]:
    """Open the map of that many regions, and watch it for a time."""
    with synthetic("--regions", str(regions)) as (address, pid):
        before = _cpu_s(pid)
        with tab(browser, address + "#/regions") as one:
            one.wait("rk.drawnAt > performance.getEntriesByName('rk-complete')[0].startTime")
            server_s = _cpu_s(pid) - before
            picture_ms, loading_ms = one.read("[rk.drawnAt, rk.frameMs]")
            size = one.read("performance.getEntriesByType('resource').reduce((sum, one) => sum + one.transferSize, 0)")
            one.read("(rk.frameMs = 0)")
            one.page.wait_for_timeout(seconds * 1000)
            frame_ms, heap = one.read("[rk.frameMs, performance.memory.usedJSHeapSize]")
            got = one.read("rk.bytes")
    return {
        "picture_s": picture_ms / 1000,
        "loading_ms": loading_ms,
        "frame_ms": frame_ms,
        "server_s": server_s,
        "megabytes": (size + got) / 1e6,
        "heap_mb": heap / 1e6,
    }


def heap_grows(browser: Any, regions: int, minutes: int) -> bool:
    """Print the size of the page's heap every 30 s, after a garbage collection. Return True if the heap grew by more
    than GROWTH_MAX after the first minute."""
    with synthetic("--regions", str(regions)) as (address, _), tab(browser, address + "#/regions") as one:
        inspector = one.context.new_cdp_session(one.page)
        sizes: list[float] = []
        for number in range(2 * minutes + 1):
            if number:
                one.page.wait_for_timeout(30_000)
            inspector.send("HeapProfiler.collectGarbage")
            sizes.append(inspector.send("Runtime.getHeapUsage")["usedSize"] / 1e6)
            sys.stderr.write(f"  {number / 2:4.1f} min: {sizes[-1]:.1f} MB\n")
    settled, last = sizes[2], sizes[-1]
    sys.stdout.write(f"heap after 1 min {settled:.1f} MB, after {minutes} min {last:.1f} MB\n")
    return last > settled * (1 + GROWTH_MAX)


def _cpu_s(pid: int) -> float:
    from benchmarks.assign.heartbeats import run_s

    return run_s(pid)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.browser", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--regions", type=positive, default=100_000)
    parser.add_argument("--seconds", type=positive, default=20, help="how long the map is watched")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--heap-minutes", type=positive, default=0, help="only watch the page's heap that long")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if CHROMIUM is None:
        sys.stderr.write(MISSING + "\n")
        return 1
    from playwright.sync_api import sync_playwright  # an extra

    rounds = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS, *QUIET])
        if options.heap_minutes:
            return int(heap_grows(browser, options.regions, options.heap_minutes))
        for number in range(options.rounds):
            sys.stderr.write(f"  round {number + 1}, load of the machine {os.getloadavg()[0]:.1f}\n")
            rounds.append(measure(browser, options.regions, options.seconds))
        browser.close()
    if options.json:
        sys.stdout.write(json.dumps({"regions": options.regions, "rounds": rounds}) + "\n")
        return 0
    medians = {name: statistics.median(one[name] for one in rounds) for name in COLUMNS}
    heads = " | ".join(head for head, _ in COLUMNS.values())
    cells = " | ".join(f"{medians[name]:.{digits}f}" for name, (_, digits) in COLUMNS.items())
    sys.stdout.write(f"| regions | {heads} |\n| {' | '.join(['--:'] * (1 + len(COLUMNS)))} |\n")
    sys.stdout.write(f"| {options.regions:,} | {cells} |\n")
    sys.stdout.write(f"\ngoals: first picture {GOAL_PICTURE_S:g} s, frames {GOAL_FRAME_MS:g} ms\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
