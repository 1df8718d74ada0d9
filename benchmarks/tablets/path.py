"""The path of a write through three tablet hosts in one process: CPU per request, by layer.

    python -m benchmarks.tablets.path [--tablets N] [--clients N] [--rows N] [--seconds S] [--profile] [--json]

Each client has one request in progress. Requests, and the frames between the hosts, are passed as bytes, as from a
socket. The disks are real, and each host syncs its log. The three hosts share one interpreter, so the rate is lower
than that of three servers. The purpose of this program is the CPU time per request. `--profile` prints where the
reactor's thread spends its time, function by function.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from twisted.internet.defer import ensureDeferred
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from benchmarks.arguments import made_folder
from benchmarks.tablets.layers import Layers
from coord.compiled import form
from coord.peers.reactor import TurnReactor
from coord.rpc.wire import PREAMBLE, Reply, Request, RpcFrameReader, body_decoder, encode_body, encode_frame
from coord.storage.shared.log import SharedLog
from regionserver.tablets.commands import PutRow
from regionserver.tablets.host.envelope import decode_frame
from regionserver.tablets.host.requests import Fate, TabletAnswer
from regionserver.tablets.host.turn import Turn
from regionserver.tablets.messages import TabletRequest, TabletWrite, TabletWritten, check_request
from regionserver.tablets.process import host as host_module
from regionserver.tablets.process.host import TabletHost
from regionserver.tablets.process.interfaces import HostSettings
from regionserver.tablets.rows.tablet_rows import TabletRows
from tests.support.hosts_in_process import CLUSTER, Cluster, Machine

VALUE: Final = bytes(100)
WARM_S: Final = 1.0
#: As in a region server (`regionserver/service.py`).
SWITCH_S: Final = 0.0005
#: Lines of a profile.
PROFILE_LINES: Final = 45
_REQUESTS: Final = body_decoder(TabletRequest)


@dataclass(frozen=True)
class _Whole:
    """The key range of a tablet that is a whole table."""

    start_key: str = ""
    end_key: str = ""
    hash_buckets: int = 0


_WHOLE: Final = _Whole()


class SharedReactor:
    """One reactor for several hosts. Each host may set a function for the end of a turn."""

    def __init__(self) -> None:
        self.reactor = TurnReactor()
        self._ends: list[Callable[[], bool]] = []
        #: Queues of work for the next turn.
        self.queues: list[deque[Any]] = []
        self.reactor.at_turn_end(self._end)

    def at_turn_end(self, function: Callable[[], bool]) -> None:
        """See `TurnReactor.at_turn_end`."""
        self._ends.append(function)

    def _end(self) -> bool:
        is_left = any([end() for end in self._ends])  # noqa: C419 (every one of them)
        return is_left or any(self.queues)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.reactor, name)


class Wires:
    """Links between the hosts. Frames are passed as bytes and arrive in the next turn."""

    def __init__(self, reactor: SharedReactor) -> None:
        self.reactor = reactor
        self.machines: dict[str, Machine] = {}
        self.decode = decode_frame
        self._hosts: dict[str, TabletHost] = {}
        self._under_way: deque[tuple[str, str, bytes]] = deque()
        reactor.at_turn_end(self._arrive)
        reactor.queues.append(self._under_way)

    def carry(self, source: str, to: str, frame: bytes) -> None:
        """Deliver a frame in the next turn."""
        self._under_way.append((source, to, frame))

    def _arrive(self) -> bool:
        if not self._hosts:
            self._hosts = {one.uuid: one.host for one in self.machines.values() if one.host is not None}
        for _ in range(len(self._under_way)):
            source, to, frame = self._under_way.popleft()
            self._hosts[to].peer_frame(source, self.decode(frame))
        return False


class Client:
    """A client that sends one request after the other, as bytes."""

    def __init__(self, path: WritePath, number: int, tablet: str, host: TabletHost) -> None:
        self._path = path
        self._name = f"bench-{number:04}"
        self._tablet = tablet
        self._host = host
        self._number = 0
        self._reader = RpcFrameReader()
        list(self._reader.feed(PREAMBLE))
        self._sent_s = 0.0

    def send(self) -> None:
        """Send the next request."""
        self._number += 1
        rows = self._path.rows
        first = self._number * rows
        operations: list[Any] = [PutRow(f"{self._name}-{first + one:08}", VALUE) for one in range(rows)]
        now_ms = int(time.time() * 1000)
        write = TabletWrite(self._tablet, self._name, self._number, self._number, now_ms, operations)
        frame = encode_frame(Request(self._number, encode_body(write), CLUSTER))
        self._sent_s = time.perf_counter()
        request = self._path.receive(self._reader, frame)
        self._host.propose(self._tablet, request.command(0)).addCallback(self._answered)

    def _answered(self, answer: TabletAnswer) -> None:
        assert answer.fate is Fate.DONE, f"{self._tablet}: {answer.fate}"
        self._path.answer(self._number, answer)
        self._path.answered(time.perf_counter() - self._sent_s)
        if not self._path.is_over:
            # Like a client behind a socket: its next request arrives in a later turn.
            self._path.later.append(self.send)


class WritePath:
    """The measurement."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.rows: int = options.rows
        self.is_over = False
        self.later: deque[Callable[[], None]] = deque()
        self._options = options
        self._folder = folder
        self._layers = Layers()
        self._latencies: list[float] = []
        self.receive = self._layers.timed("request decoded, checked", self._receive)
        self.answer = self._layers.timed("answer encoded", self._answer)
        self.answered = self._latencies.append

    def _receive(self, reader: RpcFrameReader, frame: bytes) -> TabletWrite:
        [payload] = reader.feed(frame)
        assert isinstance(payload, Request), f"{payload} is no request"
        request = _REQUESTS.decode(payload.body)
        assert isinstance(request, TabletWrite), f"{request} is no write"
        check_request(request, _WHOLE)
        return request

    @staticmethod
    def _answer(number: int, answer: TabletAnswer) -> bytes:
        return encode_frame(Reply(number, encode_body(TabletWritten(answer.value, int(time.time() * 1000)))))

    def _watch(self, wires: Wires) -> None:
        layers = self._layers
        wires.decode = layers.timed("frames decoded", decode_frame)
        layers.watch("propose", TabletHost, "propose")
        layers.watch("raft", Turn, "frame", "persisted", "applied", "take", "tick")
        layers.watch("frames encoded", host_module, "encode_turn", "encode_beat")
        layers.watch("log: checked, encoded", SharedLog, "batch")
        layers.watch("log: written, synced", SharedLog, "write")
        layers.watch("rows applied", TabletRows, "apply")
        layers.watch("host", TabletHost, "end_turn")

    async def run(self, reactor: SharedReactor) -> dict[str, Any]:
        """Create the tablets, write, and return the figures."""
        options = self._options
        cluster = Cluster(reactor, self._folder, settings=HostSettings(threads=options.threads))
        wires = Wires(reactor)
        wires.machines = cluster.wires.machines
        for machine in cluster.machines:
            machine.wires = wires  # type: ignore[assignment]
        if options.layers:
            self._watch(wires)
        reactor.at_turn_end(self._send_later)
        reactor.queues.append(self.later)
        cluster.start()
        tablets = [f"tablet-{number:04}" for number in range(options.tablets)]
        await cluster.make(tablets)
        leaders = [(await cluster.leader(tablet)).running() for tablet in tablets]
        for number in range(options.clients):
            at = number % len(tablets)
            self.later.append(Client(self, number, tablets[at], leaders[at]).send)
        await deferLater(reactor.reactor, WARM_S)
        return await self._measure(reactor, cluster)

    async def _measure(self, reactor: SharedReactor, cluster: Cluster) -> dict[str, Any]:
        hosts = [machine.running() for machine in cluster.machines]
        profile = cProfile.Profile(time.thread_time) if self._options.profile else None
        before = [host.status() for host in hosts]
        self._latencies.clear()
        self._layers.clear()
        if profile is not None:
            profile.enable()
        began, cpu = time.perf_counter(), time.process_time()
        await deferLater(reactor.reactor, self._options.seconds)
        seconds, spent_s = time.perf_counter() - began, time.process_time() - cpu
        if profile is not None:
            profile.disable()
            pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(PROFILE_LINES)
        latencies = sorted(self._latencies)
        layers = self._layers.spent()
        after = [host.status() for host in hosts]
        self.is_over = True
        # Requests in progress are lost with the process and are not used any more.
        requests = len(latencies)
        syncs = sum(one.syncs - was.syncs for one, was in zip(after, before, strict=True))
        return {
            "form": form(),
            "tablets": self._options.tablets,
            "clients": self._options.clients,
            "rows_per_request": self.rows,
            "seconds": seconds,
            "requests": requests,
            "requests_per_s": requests / seconds,
            "p50_ms": latencies[requests // 2] * 1000,
            "p99_ms": latencies[requests * 99 // 100] * 1000,
            "cpu_us_per_request": spent_s / requests * 1e6,
            "entries_per_sync": sum(one.entries - was.entries for one, was in zip(after, before, strict=True)) / syncs,
            "bytes_per_sync": sum(one.log_bytes - was.log_bytes for one, was in zip(after, before, strict=True))
            / syncs,
            "layers_us": {layer: spent / requests / 1000 for layer, (spent, _) in layers.items()},
            "layers_calls": {layer: calls / requests for layer, (_, calls) in layers.items()},
        }

    def _send_later(self) -> bool:
        for _ in range(len(self.later)):
            self.later.popleft()()
        return False


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tablets.path", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--tablets", type=int, default=50)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--rows", type=int, default=1, help="rows of 100 bytes in each request")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--threads", type=int, default=HostSettings().threads, help="for the rows of each host")
    parser.add_argument("--no-layers", dest="layers", action="store_false", help="the total alone: timing costs, too")
    parser.add_argument("--profile", action="store_true", help="functions of the reactor's thread; implies --no-layers")
    parser.add_argument("--work", type=made_folder, default=Path.cwd(), help="where the data goes: a real disk")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    options.layers = options.layers and not options.profile
    folder = Path(tempfile.mkdtemp(prefix="rk-bench-", dir=options.work))
    try:
        figures = _measured(options, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.write(json.dumps(figures) + "\n" if options.json else "\n".join(table(figures)) + "\n")
    sys.stdout.flush()
    # Threads of hosts that were not stopped must not delay the end.
    os._exit(0)


def _measured(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    sys.setswitchinterval(SWITCH_S)
    reactor = SharedReactor()
    outcome: list[Any] = []

    def ended(result: Any) -> None:
        outcome.append(result)
        reactor.reactor.stop()

    path = WritePath(options, folder)
    reactor.reactor.callWhenRunning(lambda: ensureDeferred(path.run(reactor)).addBoth(ended))
    reactor.reactor.run()
    [result] = outcome
    if isinstance(result, Failure):
        result.raiseException()
    figures: dict[str, Any] = result
    return figures


def table(figures: dict[str, Any]) -> list[str]:
    """Return the figures as lines for people."""
    per_s, rows = figures["requests_per_s"], figures["rows_per_request"]
    lines = [
        f"{per_s:,.0f} requests/s of {rows} rows by {figures['clients']} clients on {figures['tablets']} tablets;"
        f" p50 {figures['p50_ms']:.2f} ms, p99 {figures['p99_ms']:.2f} ms",
        f"{figures['cpu_us_per_request']:.0f} us of CPU per request, all three hosts and the clients together;"
        f" {figures['entries_per_sync']:.1f} entries and {figures['bytes_per_sync']:,.0f} bytes per sync;"
        f" {figures['form']}",
    ]
    layers = sorted(figures["layers_us"].items(), key=lambda one: -one[1])
    if layers:
        lines += ["", "| layer | CPU us per request | calls per request |", "| --- | --: | --: |"]
        lines += [f"| {layer} | {spent:.1f} | {figures['layers_calls'][layer]:.2f} |" for layer, spent in layers]
        rest = figures["cpu_us_per_request"] - sum(spent for _, spent in layers)
        lines.append(f"| the rest: clients, threads, reactor | {rest:.1f} | |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
