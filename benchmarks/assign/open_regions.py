"""The cost of opening and closing many regions for the region servers.

    python -m benchmarks.assign.open_regions --store 127.0.0.1:2181 --regions 10339 --servers 4

The program starts region servers on an existing store (ours or Apache ZooKeeper) and acts as their master. It measures
from the OPEN orders (all OFFLINE znodes are written) to the last OPENED: the first time (directories are created), a
second time (directories exist), and closing. CPU is the user and system time of the server processes. All znodes are
below /bench-assign.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from coord.rpc.blocking import call_blocking
from regions.messages import CloseOrder, CloseRegions, OpenOrder, OpenRegions, OrderOutcome, OrderResults
from regions.records import znodes
from regions.records.model import RegionRecord, RegionState, ServerRecord, TransitionRecord
from tests.support.helpers import daemon, eventually, rk

ROOT = "/bench-assign"
PATHS = znodes.Layout(ROOT)
PER_TRANSACTION = 250


def commit(client: KazooClient, steps: list[tuple[str, tuple[Any, ...]]]) -> None:
    """Carry out creates and deletes, many per transaction, with all transactions under way at once."""
    waiting = []
    for at in range(0, len(steps), PER_TRANSACTION):
        transaction = client.transaction()
        for method, arguments in steps[at : at + PER_TRANSACTION]:
            getattr(transaction, method)(*arguments)
        waiting.append(transaction.commit_async())
    for one in waiting:
        bad = [result for result in one.get() if isinstance(result, Exception)]
        assert not bad, bad[:1]


def cpu_s(pid: int) -> float:
    """Return the user and system time of a process so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ask_all(servers: list[ServerRecord], kind: Any, orders: dict[str, list[Any]]) -> None:
    """Send each server its orders and wait until all are done."""

    def ask(server: ServerRecord) -> None:
        while True:
            command = kind(0, server.uuid, server.start_code, orders[server.uuid], 60_000)
            reply = call_blocking((server.host, server.port), command, 90.0, expect=OrderResults)
            outcomes = {result.outcome for result in reply.results}
            if outcomes == {OrderOutcome.DONE}:
                return
            bad = [
                result for result in reply.results if result.outcome not in (OrderOutcome.DONE, OrderOutcome.STARTED)
            ]
            assert not bad, bad[:1]

    threads = [threading.Thread(target=ask, args=(server,)) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measure(what: str, regions: int, pids: list[int], act: Any) -> None:
    """Time one phase and print its line."""
    cpu_before = sum(cpu_s(pid) for pid in pids)
    began = time.monotonic()
    act()
    seconds = time.monotonic() - began
    cpu = sum(cpu_s(pid) for pid in pids) - cpu_before
    sys.stdout.write(
        f"{what:12} {seconds:7.2f} s  {seconds / regions * 1e6:7.0f} us/region"
        f"  server cpu {cpu:6.2f} s {cpu / regions * 1e6:6.0f} us/region\n"
    )


def main() -> None:
    """Run all phases once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", required=True)
    parser.add_argument("--regions", type=int, default=10_339)
    parser.add_argument("--servers", type=int, default=4)
    options = parser.parse_args()
    client = KazooClient(options.store, timeout=30)
    client.start()
    if client.exists(ROOT):
        client.delete(ROOT, recursive=True)
    for path in PATHS.parents():
        client.ensure_path(path)
    client.create(PATHS.epoch, b"{}")
    client.ensure_path(PATHS.table_regions("t"))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=".")))
        pids = []
        for number in range(options.servers):
            command = rk(
                "server", "run", "--store", options.store, "--data-dir", str(folder / f"data{number}"),
                "--shared-dir", str(folder / "shared"), "--address", "127.0.0.1:0", "--root", ROOT,
                "--session-timeout-ms", "10000",
            )  # fmt: skip
            pids.append(stack.enter_context(daemon(command, log=folder / f"log{number}")).pid)
        eventually(lambda: len(client.get_children(PATHS.servers)) == options.servers, 30, "all servers registered")
        uuids = sorted(client.get_children(PATHS.servers))
        servers = [znodes.decode_server(client.get(PATHS.server(uuid))[0]) for uuid in uuids]
        run(client, servers, pids, options.regions)
    client.stop()
    client.close()


def run(client: KazooClient, servers: list[ServerRecord], pids: list[int], count: int) -> None:
    """Open all regions for the first time, close them, and open them again."""
    regions = [RegionRecord("t", f"r{number:06}", start_key=f"{number:06}") for number in range(count)]
    home = {region.region_id: servers[number % len(servers)] for number, region in enumerate(regions)}
    commit(client, [("create", (PATHS.region("t", one.region_id), znodes.encode(one))) for one in regions])
    for what in ("first open", "open again"):
        orders: dict[str, list[Any]] = {server.uuid: [] for server in servers}
        steps = []
        for region in regions:
            server = home[region.region_id]
            record = TransitionRecord(region.region_id, "t", 0, RegionState.OFFLINE, destination=server.incarnation)
            steps.append(("create", (PATHS.transition(region.region_id, 0), znodes.encode(record))))
            version = 0 if what == "first open" else 1
            orders[server.uuid].append(OpenOrder(record, 0, region, version))
        began = time.monotonic()
        commit(client, steps)
        sys.stdout.write(f"{'OFFLINE':12} {time.monotonic() - began:7.2f} s  (this script, with kazoo)\n")
        measure(what, count, pids, lambda orders=orders: ask_all(servers, OpenRegions, orders))
        commit(client, [("delete", (PATHS.transition(one.region_id, 0),)) for one in regions])
        closes: dict[str, list[Any]] = {server.uuid: [] for server in servers}
        for region in regions:
            closes[home[region.region_id].uuid].append(CloseOrder(region.region_id, "t", 0))
        measure("close", count, pids, lambda closes=closes: ask_all(servers, CloseRegions, closes))
        commit(client, [("delete", (PATHS.transition(one.region_id, 0),)) for one in regions])


if __name__ == "__main__":
    main()
