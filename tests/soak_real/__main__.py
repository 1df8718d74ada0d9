"""python -m tests.soak_real --minutes 120: ends with 1 if a figure still grows after the time of retention."""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Final

from regionserver.client import connect
from tests.e2e.masters import Cluster, cluster_on, own_store
from tests.soak_real.figures import BOUNDED, measure, of_store
from tests.soak_real.judge import SAMPLES_MIN, Name, Sample, judge
from tests.soak_real.work import Rows, Work
from tests.support.helpers import PATIENCE_S
from tests.support.soaks import begin

#: Retention times of the masters in a soak. Masters remove what is older every 10 minutes.
RETENTION: Final = ["--purge-after", "30s", "--forget-after", "60s"]
#: Until what is deleted is gone: both times, and two rounds.
SETTLE_MINUTES: Final = 22.0
#: Pause between two samples.
SAMPLE_S: Final = 15.0
#: Pause between two kills.
KILL_S: Final = 60.0


class Report:
    """Collects the samples, and prints them as a table or as lines of JSON."""

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json
        self._began_s = time.monotonic()
        self.series: defaultdict[Name, list[Sample]] = defaultdict(list)

    def elapsed_s(self) -> float:
        """Return the seconds since the beginning."""
        return time.monotonic() - self._began_s

    def add(self, figures: dict[Name, float], counts: dict[str, int]) -> None:
        """Keep and print one sample."""
        at_s = self.elapsed_s()
        for name, value in figures.items():
            self.series[name].append(Sample(at_s, value))
        sums: defaultdict[str, float] = defaultdict(float)
        for (what, unit), value in figures.items():
            if unit == "znodes" and what != "all others":
                continue
            sums["disk" if what.startswith("files of") else "memory" if unit == "bytes" else unit] += value
        texts = [
            f"{at_s / 60:6.1f} min  memory {sums['memory'] / 1e6:,.0f} MB, {sums['descriptors']:.0f} descriptors,"
            f" {sums['znodes']:,.0f} znodes, disk {sums['disk'] / 1e6:,.1f} MB;"
            f" {', '.join(f'{count} {what}' for what, count in sorted(counts.items()))}"
        ]
        texts += [f"            {name:24} {value:15,.0f} {unit}" for (name, unit), value in sorted(figures.items())]
        fields = [{"name": name, "unit": unit, "value": value} for (name, unit), value in sorted(figures.items())]
        self.say("\n".join(texts), {"event": "sample", "at_s": round(at_s, 1), "figures": fields, "counts": counts})

    def say(self, text: str, fields: dict[str, object]) -> None:
        """Print a line for people, or its fields for programs."""
        sys.stdout.write(f"{json.dumps(fields) if self._is_json else text}\n")
        sys.stdout.flush()


def soak(cluster: Cluster, hosts: str, folder: Path, minutes: float, seed: int, report: Report) -> None:
    """Work and measure for so long."""
    chance = random.Random(seed)
    folders = {"the store": folder / "store", "masters and servers": folder / "cluster"}
    with connect(hosts, connect_timeout_s=PATIENCE_S, timeout_s=PATIENCE_S) as client:
        work, rows = Work(cluster, client, seed), Rows(client, seed)
        work.begin()
        rows.start()
        nodes = of_store(folder)
        try:
            next_sample_s, next_kill_s = report.elapsed_s(), report.elapsed_s() + KILL_S
            while report.elapsed_s() < 60 * minutes:
                work.step()
                if report.elapsed_s() >= next_kill_s:
                    work.kill()
                    next_kill_s = report.elapsed_s() + KILL_S * chance.uniform(0.5, 1.5)
                if report.elapsed_s() >= next_sample_s:
                    report.add(measure(cluster, nodes | pids(cluster, work), folders), dict(work.counts + rows.counts))
                    next_sample_s = report.elapsed_s() + SAMPLE_S
        finally:
            rows.stop()
        work.end()


def pids(cluster: Cluster, work: Work) -> dict[str, int]:
    """Return the processes of masters and servers; the name of one that was started again says how often."""
    named = [(f"master{number}", one) for number, one in enumerate(cluster.masters)]
    named += [(f"server{number}", one) for number, one in enumerate(cluster.servers)]
    return {
        f"{name} (start {work.restarts[name] + 1})": process.popen.pid
        for name, process in named
        if process.popen is not None
    }


def main() -> int:
    """Run a soak. Return 0 if all figures are flat, 1 if one grows or the soak was broken off too early."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak_real", description=__doc__)
    parser.add_argument("--minutes", type=float, default=120, help="work for so long (120)")
    parser.add_argument("--settle", type=float, default=SETTLE_MINUTES, help="judge what is older (22 minutes)")
    parser.add_argument("--seed", type=int, help="the order of operations and kills (default: random)")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each sample and for the verdict")
    given = parser.parse_args()
    least = given.settle + 2 * SAMPLES_MIN * SAMPLE_S / 60
    if given.minutes < least:
        parser.error(f"--minutes {given.minutes:g} is too short to judge a figure: give {least:g} or more, or --settle")
    seed = begin(given.seed)
    again = f"python -m tests.soak_real --minutes {given.minutes:g} --settle {given.settle:g} --seed {seed}"
    report = Report(is_json=given.json)
    report.say(f"seed {seed}; again: {again}", {"event": "begin", "seed": seed, "again": again})
    folder = Path(tempfile.mkdtemp(prefix="rk-soak-"))
    with (
        own_store(folder / "store", 3) as hosts,
        cluster_on(hosts, folder / "cluster", masters=3, servers=4, options=RETENTION) as cluster,
    ):
        cluster.wait_active()
        cluster.wait_servers(4)
        with contextlib.suppress(KeyboardInterrupt):
            soak(cluster, hosts, folder, given.minutes, seed, report)
    shutil.rmtree(folder, ignore_errors=True)
    series = {name: samples for name, samples in report.series.items() if name[0].lstrip("/") not in BOUNDED}
    growing, judged = judge(series, 60 * given.settle)
    for one in growing:
        report.say(f"GROWS {one}", {"event": "grows", **one._asdict()})
    verdict = f"{judged} figures judged, {len(growing)} grow; again: {again}"
    if not judged:
        verdict = f"broken off before a figure could be judged; again: {again}"
    report.say(verdict, {"event": "verdict", "judged": judged, "growing": len(growing), "again": again})
    return 1 if growing or not judged else 0


if __name__ == "__main__":
    sys.exit(main())
