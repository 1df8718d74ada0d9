"""A service of your own on RegionKeeper: counters, sharded by key, each shard served by one server at a time.

    python examples/counters.py serve --store 127.0.0.1:21801 --data-dir D1 --shared-dir S --address 127.0.0.1:7001
    python examples/counters.py add   --store 127.0.0.1:21801 TABLE KEY [N]

Start one or more servers, and a master as always (`rk master run`); make the table with `rk table create TABLE --kind
counters/1`. The masters place its regions on these servers, move them, and open them on another server when one dies.
This file has the rest:

- `open` reads a region's counts from its directory and writes them into a file of this opening, named by its token. A
  former owner that wakes up late writes into its own file, which is not read any more.
- `answer` admits a request if the region is open here under a valid lease. A worker appends to the file and syncs it.
  The change is acknowledged only if no later opening has begun meanwhile.
- `close` waits for running changes and closes the file.

The client needs nothing but `RegionClient.call`. Adding twice is not the same as adding once, so the call is not
repeatable: if its outcome is unknown, the program prints that.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
from twisted.internet.defer import Deferred

from coord.errors import ConfigError
from coord.rpc.wire import RpcError
from regions.records.model import RegionRecord
from regionserver import service
from regionserver.client import DataError, connect
from regionserver.config import ServerSettings, parse_address
from regionserver.opener import Opening
from regionserver.request_gate import FENCED, NOT_SERVING, Place, Serving
from regionserver.storage.directory import DirectoryOpener
from regionserver.storage.ownership import DirectoryLock

_FILE = re.compile(r"counts-([0-9]+)\.jsonl")


class Add(msgspec.Struct, tag="counters.Add"):
    """Add `amount` to the counter `key`. Answer: Total."""

    place: Place
    key: str
    amount: int


class Total(msgspec.Struct, tag="counters.Total"):
    """The counter's value now, durable."""

    total: int


class Region:
    """One open region: its counts, and the file with one JSON line per change."""

    def __init__(self, directory: DirectoryLock, progress: Any) -> None:
        self.directory = directory
        self.counts: dict[str, int] = {}
        self.lock = threading.Lock()
        files = {int(found[1]): found[0] for found in map(_FILE.fullmatch, os.listdir(directory.folder)) if found}
        if files:
            self._replay(Path(directory.folder, files[max(files)]), progress)
        path = Path(directory.folder, f"counts-{directory.token}.jsonl")
        temporary = path.with_suffix(".tmp")
        self.file = temporary.open("w", encoding="utf-8")
        self._append(self.counts)
        temporary.rename(path)
        folder = os.open(directory.folder, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        for name in files.values():
            Path(directory.folder, name).unlink(missing_ok=True)

    def _replay(self, path: Path, progress: Any) -> None:
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n")[:-1]):  # a torn last line was
            self.counts |= json.loads(line)  # never acknowledged
            if number % 10_000 == 0:
                progress()  # without progress the master gives the region to another server

    def _append(self, counts: dict[str, int]) -> None:
        self.file.write(json.dumps(counts) + "\n")
        self.file.flush()
        os.fsync(self.file.fileno())

    def add(self, key: str, amount: int) -> Total:
        """Add and sync, on a worker thread: durable on return."""
        with self.lock:
            if self.file.closed or not self.directory.is_newest():
                raise RpcError(NOT_SERVING, "the region is open on another server")
            total = self.counts.get(key, 0) + amount
            self._append({key: total})
            self.counts[key] = total
            if not self.directory.is_newest():
                raise RpcError(FENCED, "the region was opened on another server meanwhile")
            return Total(total)

    def close(self) -> None:
        """Wait for the running change, then close the file."""
        with self.lock:
            self.file.close()


class Counters(DirectoryOpener):
    """Opens regions of counters, and answers for them. `DirectoryOpener` brings each region's directory and fence."""

    #: Only regions of tables of this kind are opened by these servers. The version rises with the format of the files.
    kind = "counters/1"
    requests = (Add,)

    def __init__(self, shared_dir: Path) -> None:
        super().__init__(shared_dir)
        self.open_regions: dict[str, Region] = {}

    def attach(self, serving: Serving) -> None:
        """Keep the gate; make threads for the disk."""
        self.serving = serving
        self.workers = serving.workers(serving.reactor, 4, lambda: None, lambda failure: failure.raiseException())

    def open(self, opening: Opening) -> None:
        """Open a region, on a worker thread. The text of an exception is the reason that the operator reads."""
        directory = self.acquire(opening)
        try:
            self.open_regions[opening.region.region_id] = Region(directory, opening.progress)
        except BaseException:
            super().close(opening.region, opening.replica)
            raise

    def close(self, region: RegionRecord, replica: int) -> None:
        """Close a region, on a worker thread. On return another server may open it."""
        found = self.open_regions.pop(region.region_id, None)
        if found is not None:
            found.close()
        super().close(region, replica)

    def answer(self, request: msgspec.Struct) -> Deferred[msgspec.Struct]:
        """Admit a request, on the reactor's thread, and let a worker carry it out."""
        assert isinstance(request, Add)
        record = self.serving.admit(request.place)
        if not record.contains(request.key):
            raise RpcError(NOT_SERVING, f"{request.key!r} is not in region {record.region_id}")
        region = self.open_regions[record.region_id]
        answer: Deferred[msgspec.Struct] = Deferred()

        def done(result: Total | Exception) -> None:
            if isinstance(result, Exception):
                answer.errback(result)
            elif not self.serving.holds():
                answer.errback(RpcError(FENCED, "the lease ended meanwhile"))
            else:
                answer.callback(result)

        self.workers.submit(lambda: region.add(request.key, request.amount), done)
        return answer

    def stop(self) -> None:
        """Stop the worker threads: the process ends."""
        self.workers.stop(1.0)


def main() -> int:
    """Run the command line above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="be a server")
    add = commands.add_parser("add", help="add to a counter")
    for command in (serve, add):
        command.add_argument("--store", required=True)
    for option in ("--data-dir", "--shared-dir"):
        serve.add_argument(option, type=Path, required=True)
    serve.add_argument("--address", required=True)
    serve.add_argument("--session-timeout-ms", type=int, default=3000)
    add.add_argument("table")
    add.add_argument("key")
    add.add_argument("amount", type=int, nargs="?", default=1)
    given = parser.parse_args()
    try:
        if given.command == "serve":
            host, port = parse_address(given.address, "--address")
            settings = ServerSettings(
                given.store, given.data_dir, given.shared_dir, host, port, session_timeout_ms=given.session_timeout_ms
            )
            return service.run(settings, Counters(given.shared_dir))
        with connect(given.store) as client:
            total = client.call(
                given.table,
                given.key,
                lambda place, _region, _attempt: Add(place, given.key, given.amount),
                Total,
                is_repeatable=False,
            )
        print(total.total)
    except (ConfigError, DataError) as error:
        print(f"counters: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
