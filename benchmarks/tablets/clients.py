"""Clients as threads of this process: loads, single puts, gets, and writers who note each acknowledgment."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from benchmarks.tablets.cluster import region_prefix
from regionserver.client.client import Change, RegionClient

VALUE: Final = bytes(100)


def quantile(values: list[float], part: float) -> float:
    """Return the value below which `part` of the values lie; 0 without any."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else 0.0


def keys_of(region: int, writer: int) -> Iterator[str]:
    """Yield keys of a region that only this writer uses."""
    number = 0
    while True:
        number += 1
        yield f"{region_prefix(region)}-{writer:04}-{number:08}"


class Repeated:
    """Threads that each call `work(n)()` again and again, until `stop`."""

    def __init__(self, threads: int, work: Callable[[int], Callable[[], object]]) -> None:
        self.ended = threading.Event()
        self._found: list[list[float]] = [[] for _ in range(threads)]
        self._errors: list[Exception] = []

        def run(number: int) -> None:
            once = work(number)
            mine = self._found[number]
            try:
                while not self.ended.is_set():
                    began = time.perf_counter()
                    once()
                    mine.append(time.perf_counter() - began)
            except Exception as error:  # `stop` raises it
                self._errors.append(error)
                self.ended.set()

        self._threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(threads)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> list[float]:
        """Stop the threads. Return the seconds of each call; raise the exception of a call that failed."""
        self.ended.set()
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]
        return [one for mine in self._found for one in mine]


def repeat(threads: int, seconds: float, work: Callable[[int], Callable[[], object]]) -> list[float]:
    """Call `work(n)()` again and again on each of that many threads. Return the seconds of each call. An exception of a
    call ends the measurement."""
    repeated = Repeated(threads, work)
    repeated.ended.wait(seconds)
    return repeated.stop()


def load(client: RegionClient, table: str, regions: int, threads: int, rows: int, seconds: float) -> list[float]:
    """Write `rows` rows per request into one region after the other; return the seconds of each request."""

    def work(writer: int) -> Callable[[], object]:
        sources = [keys_of(region, writer) for region in range(regions)]
        turns = [writer]

        def once() -> None:
            turns[0] += 1
            source = sources[turns[0] % regions]
            client.write(table, [Change(next(source), VALUE) for _ in range(rows)])

        return once

    return repeat(threads, seconds, work)


def put(client: RegionClient, table: str, regions: int, threads: int, seconds: float) -> list[float]:
    """Put single rows; return the seconds of each put."""

    def work(writer: int) -> Callable[[], object]:
        sources = [keys_of(region, writer) for region in range(regions)]
        turns = [writer]

        def once() -> None:
            turns[0] += 1
            client.put(table, next(sources[turns[0] % regions]), VALUE)

        return once

    return repeat(threads, seconds, work)


def get(client: RegionClient, table: str, regions: int, seconds: float) -> list[float]:
    """Get rows that exist, one after the other; return the seconds of each get."""
    keys = [next(keys_of(region, 9999)) for region in range(regions)]
    for key in keys:
        client.put(table, key, VALUE)

    def work(_: int) -> Callable[[], object]:
        turns = [0]

        def once() -> None:
            turns[0] += 1
            value = client.get(table, keys[turns[0] % regions])
            assert value == VALUE, "a row is missing"

        return once

    return repeat(1, seconds, work)


class Writers:
    """Writers that put one row after the other into their share of the regions, and the times of acknowledgments."""

    def __init__(self, client: RegionClient, table: str, regions: int, threads: int) -> None:
        self._stop = threading.Event()
        #: For each region, the times at which its puts were acknowledged.
        self.acknowledged: list[list[float]] = [[] for _ in range(regions)]
        self.errors: list[Exception] = []

        def run(number: int) -> None:
            mine = [(region, keys_of(region, number)) for region in range(number, regions, threads)]
            try:
                while not self._stop.is_set():
                    for region, keys in mine:
                        client.put(table, next(keys), VALUE)
                        self.acknowledged[region].append(time.monotonic())
            except Exception as error:  # reported at the end
                self.errors.append(error)

        self._threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(threads)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the writers. Raise the error of a writer that failed."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self.errors:
            raise self.errors[0]

    def have_written_since(self, moment: float) -> bool:
        """Return True if every region has an acknowledgment after `moment`."""
        return all(times and times[-1] > moment for times in self.acknowledged)

    def longest_gaps(self, begin: float) -> list[float]:
        """Return, for each region, the longest time between two acknowledgments that ended after `begin`."""
        return [
            max(
                (later - earlier for earlier, later in itertools.pairwise(times) if later >= begin),
                default=0.0,
            )
            for times in self.acknowledged
        ]
