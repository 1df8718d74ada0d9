"""CPU cost per operation of the Twisted client, in the client's process, against any ZooKeeper-compatible server.

    python -m benchmarks.bench_client 127.0.0.1:2181 [--seconds 3]

The program prints one line per load: operations per second, and user + system time of this process per operation.
`window` is the number of requests in flight. The figures describe the client, unless the server is slower.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.epollreactor import EPollReactor

from coord.client import Create, Delete, SetData, ZkClient

Ask = Callable[[], "Deferred[Any]"]


def cpu_s() -> float:
    """Return the user and system time of this process, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def run_window(ask: Ask, window: int, seconds: float) -> Deferred[tuple[float, float]]:
    """Keep `window` requests in flight for `seconds`. Return operations per second and CPU microseconds per
    operation."""
    finished: Deferred[tuple[float, float]] = Deferred()
    started, cpu = time.perf_counter(), cpu_s()
    counts = [0, window]

    def answered(_: object) -> None:
        counts[0] += 1
        if time.perf_counter() - started < seconds:
            ask().addCallbacks(answered, finished.errback)
            return
        counts[1] -= 1
        if counts[1] == 0:
            spent = time.perf_counter() - started
            finished.callback((counts[0] / spent, (cpu_s() - cpu) * 1e6 / counts[0]))

    for _ in range(window):
        ask().addCallbacks(answered, finished.errback)
    return finished


async def measure(reactor: Any, hosts: str, seconds: float) -> None:
    """Run all loads, one after the other."""
    client = ZkClient(reactor, hosts, 10_000, name="bench")
    await client.connect()
    path = await client.create("/bench-", b"x" * 100, sequence=True)
    data = b"y" * 100
    loads: list[tuple[str, Ask, int]] = [
        ("get", lambda: client.get(path), 1),
        ("exists", lambda: client.exists(path), 1),
        ("set", lambda: client.set(path, data), 1),
        ("multi of 100 sets", lambda: client.multi([SetData(path, data)] * 100), 100),
        ("multi create+delete", lambda: client.multi([Create(path + "/c"), Delete(path + "/c")]), 2),
    ]
    for name, ask, parts in loads:
        for window in (1, 64, 1000) if parts == 1 else (8,):
            rate, each_us = await run_window(ask, window, seconds)
            line = f"{name:20} window {window:4}  {rate * parts:9.0f}/s  {each_us / parts:7.1f} us CPU each\n"
            sys.stdout.write(line)
    await client.delete(path)
    await client.close()


def main() -> None:
    """Parse the arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hosts")
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    reactor: Any = EPollReactor()  # type: ignore[no-untyped-call]

    def start() -> None:
        running = Deferred.fromCoroutine(measure(reactor, options.hosts, options.seconds))
        running.addErrback(lambda reason: sys.stderr.write(reason.getTraceback()))
        running.addBoth(lambda _: reactor.stop())

    reactor.callWhenRunning(start)
    reactor.run()


if __name__ == "__main__":
    main()
