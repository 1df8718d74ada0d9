"""python -m tests.soak_splits --minutes 10: ends with 1 if a row is lost or a key was in no region."""

from __future__ import annotations

import argparse
import bisect
import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from cli.drill.report import percentile
from regions import messages as ms
from regions.records.znodes import Layout
from regionserver.client import connect
from tests.e2e.masters import Cluster, cluster_on, own_store
from tests.soak_splits.clients import CALL_S, KEYS, TABLE, Client, SlowCall, key_of, lost
from tests.soak_splits.key_space import KeySpace, replayed
from tests.soak_splits.work import AT_ONCE, REGIONS, TABLETS, WAIT_MS, Done, Kill, Killer, Resharder
from tests.support.helpers import PATIENCE_S, eventually, finished, rk
from tests.support.soaks import Worker, begin

CLIENTS: Final = 16
STORE_NODES: Final = 3
MASTERS: Final = 2
SERVERS: Final = 4
#: Replicas of each tablet.
REPLICAS: Final = 3
#: The nodes keep their whole logs, for the replay.
WHOLE_LOG: Final = ("--keep-entries", "100000000", "--keep-bytes", "100000000000")
#: Pause between two lines of progress.
PROGRESS_S: Final = 15.0
#: A split counts as undisturbed if no process was dead or recovering within this time before it.
QUIET_S: Final = 2.0


class Soak:
    """One run."""

    def __init__(self, folder: Path, seed: int, *, is_json: bool, kills: bool, tablets: bool = False) -> None:
        self._folder = folder
        self._seed = seed
        self._is_json = is_json
        self._has_kills = kills
        self._has_tablets = tablets
        self._began_s = time.monotonic()
        self.clients: list[Client] = []
        self.resharders: list[Resharder] = []
        self.kills: list[Kill] = []
        self.faults: list[str] = []

    def say(self, text: str, **fields: Any) -> None:
        """Print a line for people, or its fields for programs."""
        line = json.dumps(fields) if self._is_json else f"{(time.monotonic() - self._began_s) / 60:5.1f} min  {text}"
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    def run(self, minutes: float, count: int) -> None:
        """Work for `minutes`, or until `count` splits and merges are done (0: no limit), and then check."""
        with contextlib.ExitStack() as running:
            hosts = running.enter_context(own_store(self._folder / "store", STORE_NODES, *WHOLE_LOG))
            cluster = running.enter_context(
                cluster_on(
                    hosts, self._folder / "cluster", masters=MASTERS, servers=SERVERS, has_shared=not self._has_tablets
                )
            )
            cluster.wait_active()
            cluster.wait_servers(SERVERS)
            bounds = TABLETS if self._has_tablets else REGIONS
            splits = [key_of(number * KEYS // bounds[0]) for number in range(1, bounds[0])]
            replicas = REPLICAS if self._has_tablets else 1
            cluster.ask_active(ms.CreateTable(TABLE, splits, replication=replicas, wait_ms=WAIT_MS), ms.Tables)
            for number in range(CLIENTS):
                client = running.enter_context(connect(hosts, connect_timeout_s=PATIENCE_S, timeout_s=CALL_S))
                self.clients.append(Client(number, CLIENTS, client, self._seed))
            self.resharders = [Resharder(cluster, f"{self._seed}-{number}", bounds) for number in range(AT_ONCE)]
            self._work(cluster, minutes, count)
            self._check_running(cluster, hosts)
        found = replayed(self._folder / "store" / "store1", Layout())
        self.faults += found.faults
        self.say(
            f"the key space was looked at after {found.commands} commands, {found.changes} of which changed regions",
            event="replay", commands=found.commands, changes=found.changes,
        )  # fmt: skip
        self._report(found)

    def _work(self, cluster: Cluster, minutes: float, count: int) -> None:
        killer = Killer(cluster, str(self._seed))
        for one in self._workers():
            one.start()
        until_s = time.monotonic() + 60 * minutes
        said_s = time.monotonic()
        try:
            while time.monotonic() < until_s and (not count or len(self.done()) < count):
                if self._has_kills:
                    killer.step(until_s)
                else:
                    time.sleep(1.0)
                if time.monotonic() - said_s > PROGRESS_S:
                    said_s = time.monotonic()
                    self._progress(killer)
        except KeyboardInterrupt:
            self.say("broken off; checking", event="interrupted")
        finally:
            for resharder in self.resharders:
                resharder.ask_to_stop()
            for resharder in self.resharders:
                resharder.stop(5 * WAIT_MS / 1000)
            for client in self.clients:
                client.stop(2 * CALL_S)
        self.kills = killer.kills
        self._progress(killer)

    def _workers(self) -> list[Worker]:
        return [*self.clients, *self.resharders]

    def done(self) -> list[Done]:
        """Return all splits and merges that are done."""
        return [one for resharder in self.resharders for one in resharder.done]

    def _progress(self, killer: Killer) -> None:
        counts: Counter[str] = Counter()
        for one in self._workers():
            counts += one.counts
        counts["kills"] = len(killer.kills)
        counts["faults"] = sum(len(one.faults) for one in self._workers())
        text = ", ".join(f"{number} {what}" for what, number in sorted(counts.items()))
        self.say(text, event="progress", **counts)

    def _check_running(self, cluster: Cluster, hosts: str) -> None:
        for one in self._workers():
            self.faults += one.faults
        eventually(lambda: not cluster.zk.get_children(cluster.layout.reshardings), CALL_S, "no split under way")
        cluster.wait_settled()
        wanted = {one.region_id for one in cluster.regions() if not one.is_replaced}
        if not self._has_tablets and (held := set(cluster.owners())) != wanted:
            self.faults.append(f"open regions: {held - wanted} too many, {wanted - held} too few")
        with connect(hosts, connect_timeout_s=PATIENCE_S, timeout_s=CALL_S) as client:
            rows = dict(client.scan(TABLE))
        self.faults += lost(self.clients, rows)
        fsck = finished(rk("fsck", "--store", hosts), CALL_S)
        if fsck.returncode:
            self.faults.append(f"rk fsck: {fsck.stdout}{fsck.stderr}")
        present = {path.name for path in (self._folder / "cluster" / "shared" / "regions").glob("*/*")}
        if present != wanted and not self._has_tablets:
            self.faults.append(f"directories of regions: {present - wanted} too many, {wanted - present} too few")
        self.say(f"{len(rows)} rows in {len(wanted)} regions", event="rows", rows=len(rows), regions=len(wanted))

    def _report(self, found: KeySpace) -> None:
        """Print how long keys had no region, and how long clients waited, without and with disturbance."""
        gaps = {one.daughter: (one.ended_ms - one.began_ms) / 1000 for one in found.gaps()}
        slow = sorted(call for one in self.clients for call in one.slow)
        for is_disturbed in (False, True):
            works = [one for one in self.done() if self._is_disturbed(one) is is_disturbed]
            closed = [max(gaps[name] for name in one.daughters) for one in works if set(one.daughters) <= gaps.keys()]
            word = "with a process dead or recovering" if is_disturbed else "undisturbed"
            fields = {"keys_closed_s": closed, "asked_s": [one.ended_s - one.began_s for one in works]}
            fields["longest_call_s"] = [_longest(slow, one, inside=True) for one in works]
            fields["longest_other_call_s"] = [_longest(slow, one, inside=False) for one in works]
            self.say(
                f"{len(works)} splits and merges {word}: " + "; ".join(
                    f"{name[:-2].replace('_', ' ')} {_spread(values)}" for name, values in fields.items()
                ),
                event="figures", disturbed=is_disturbed, count=len(works),
                **{name: _figures(values) for name, values in fields.items()},
            )  # fmt: skip

    def _is_disturbed(self, work: Done) -> bool:
        return any(kill.began_s < work.ended_s and work.began_s - QUIET_S < kill.ended_s for kill in self.kills)


def _longest(slow: Sequence[SlowCall], work: Done, *, inside: bool) -> float:
    """Return the longest call during a split or merge, for its keys or for the others; 0 if all were quick.

    `slow` is in the order of the calls' beginnings.
    """
    first = bisect.bisect_left(slow, work.began_s - CALL_S, key=lambda one: one.began_s)
    last = bisect.bisect_left(slow, work.ended_s, key=lambda one: one.began_s)
    during = [one for one in slow[first:last] if work.began_s < one.ended_s]
    return max((one.ended_s - one.began_s for one in during if work.has(one.key) is inside), default=0.0)


def _figures(values: list[float]) -> list[float]:
    """Return median, 99th percentile and maximum in milliseconds; [] for no values."""
    return [round(1000 * percentile(values, share)) for share in (0.5, 0.99, 1.0)] if values else []


def _spread(values: list[float]) -> str:
    return "none" if not values else "p50 {:.0f} ms, p99 {:.0f} ms, longest {:.0f} ms".format(*_figures(values))


def main() -> int:
    """Run a soak. Return 0 if nothing is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak_splits", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="work for so long (10)")
    parser.add_argument("--count", type=int, default=0, help="end after so many splits and merges (default: no limit)")
    parser.add_argument("--seed", type=int, help="the order of operations and kills (default: random)")
    parser.add_argument("--no-kills", action="store_true", help="only measure: no process is killed")
    parser.add_argument("--tablets", action="store_true", help="a table of tablets")
    parser.add_argument("--json", action="store_true", help="lines of JSON")
    given = parser.parse_args()
    seed = begin(given.seed)
    folder = Path(tempfile.mkdtemp(prefix="rk-soak-splits-"))
    soak = Soak(folder, seed, is_json=given.json, kills=not given.no_kills, tablets=given.tablets)
    soak.say(f"seed {seed}, in {folder}", event="begin", seed=seed, folder=str(folder))
    try:
        soak.run(given.minutes, given.count)
    except AssertionError as error:
        soak.faults.append(f"it did not settle: {error}")
    for fault in soak.faults:
        soak.say(f"FAULT {fault}", event="fault", fault=fault)
    if not soak.faults:
        shutil.rmtree(folder, ignore_errors=True)
    kept = f"; logs and data are kept in {folder}" if soak.faults else ""
    soak.say(
        f"{len(soak.done())} splits and merges, {len(soak.kills)} kills, {len(soak.faults)} faults{kept}",
        event="verdict", done=len(soak.done()), kills=len(soak.kills), faults=len(soak.faults),
    )  # fmt: skip
    return 1 if soak.faults else 0


if __name__ == "__main__":
    sys.exit(main())
