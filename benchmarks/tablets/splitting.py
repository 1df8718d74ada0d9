"""A large tablet is split under clients: how long its keys are away.

Sixteen clients put single rows into one tablet, with a rest after each put. They are threads of one process that share
the locations of regions, as in the other parts. Two figures say what they notice: the longest put, and the longest time
in which no put was acknowledged. The first also has what the copy before the seal costs; the second is the time without
the keys, if it is far above the longest such time before the split.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from benchmarks.assign.lab import DEADLINE_S, say
from benchmarks.tablets.clients import VALUE, quantile
from benchmarks.tablets.cluster import TABLET, TabletLab, tablet_lab
from coord.rpc.blocking import call_blocking
from regions import messages as ms
from regionserver.client.client import Change, RegionClient, connect

#: Bytes of rows of the tablet, and of each row.
BYTES: Final = 300_000_000
ROW_BYTES: Final = 2_000
LOADERS: Final = 4
REQUEST_ROWS: Final = 200
CLIENTS: Final = 16
#: The rest of a client after each put.
REST_S: Final = 0.02
#: How long the clients put before the split and after it.
AROUND_S: Final = 4.0


class Split(msgspec.Struct, frozen=True):
    """A tablet was split under puts. Seconds, and milliseconds where the name says so."""

    #: Bytes of rows of the tablet.
    bytes: int
    #: From the request until both daughters could be used.
    split_s: float
    #: Puts before the split, and from its request until its end.
    p50_before_ms: float
    p99_before_ms: float
    longest_before_ms: float
    p50_ms: float
    p99_ms: float
    longest_ms: float
    #: Longest time without an acknowledged put, before the split and during it.
    gap_before_ms: float
    gap_ms: float


class Put(NamedTuple):
    """The times at which an acknowledged put began and ended."""

    began: float
    ended: float


def split(folder: Path, size: int = BYTES) -> Split:
    """Split a tablet with `size` bytes of rows in the middle of its keys."""
    with tablet_lab(folder) as cluster:
        cluster.create(TABLET, 1, TABLET)
        _fill(cluster, size)
        with connect(cluster.hosts, timeout_s=DEADLINE_S) as client:
            clients = _Clients(client, size // ROW_BYTES)
            clients.pause(2 * AROUND_S)
            began = time.monotonic()
            _ask(cluster, size // ROW_BYTES // 2)
            ended = time.monotonic()
            say(f"the daughters are open after {ended - began:.1f} s")
            clients.pause(AROUND_S)
            puts = clients.stop()
    before = [one for one in puts if began - AROUND_S <= one.began and one.ended < began]
    during = [one for one in puts if one.ended >= began and one.began <= ended]
    return Split(size, ended - began, *_figures(before), *_figures(during), _gap(before), _gap(during))


def _ask(cluster: TabletLab, middle: int) -> None:
    """Have the tablet split, and wait until both daughters can be used."""
    say("the tablet is split")
    tablet = next(iter(cluster.replicas(cluster.servers[0])))
    request = ms.SplitRegion(tablet, _key(middle), wait_ms=int(DEADLINE_S * 1000))
    call_blocking(cluster.active().address, request, DEADLINE_S, expect=ms.Resharded)


def _figures(puts: list[Put]) -> tuple[float, float, float]:
    """Return the median, the 99th percentile and the maximum in milliseconds."""
    times = [1000 * (one.ended - one.began) for one in puts]
    return quantile(times, 0.5), quantile(times, 0.99), max(times)


def _gap(puts: list[Put]) -> float:
    """Return the longest time without an acknowledged put in milliseconds."""
    ends = sorted(one.ended for one in puts)
    return 1000 * max(later - earlier for earlier, later in itertools.pairwise(ends))


def _key(number: int) -> str:
    return f"k{number:09}"


def _fill(cluster: TabletLab, size: int) -> None:
    rows = size // ROW_BYTES
    say(f"{rows:,} rows of {ROW_BYTES} bytes")
    begins = range(0, rows, REQUEST_ROWS)

    def load(client: RegionClient, part: int) -> None:
        for begin in begins[part::LOADERS]:
            numbers = range(begin, min(rows, begin + REQUEST_ROWS))
            client.write(TABLET, [Change(_key(one), os.urandom(ROW_BYTES)) for one in numbers])

    with connect(cluster.hosts, timeout_s=DEADLINE_S) as client:
        _Threads(client, LOADERS, load).join()


class _Threads:
    """Threads that work with one client."""

    def __init__(self, client: RegionClient, count: int, work: Callable[[RegionClient, int], None]) -> None:
        self._errors: list[Exception] = []

        def run(number: int) -> None:
            try:
                work(client, number)
            except Exception as error:  # `join` raises it
                self._errors.append(error)

        self._threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait for the threads. Raise the error of one that failed."""
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]


class _Clients:
    """Clients that put rows at random, until `stop`."""

    def __init__(self, client: RegionClient, rows: int) -> None:
        self._ended = threading.Event()
        self._puts: list[list[Put]] = [[] for _ in range(CLIENTS)]

        def put(client: RegionClient, number: int) -> None:
            chance, mine = random.Random(number), self._puts[number]
            while not self._ended.is_set():
                began = time.monotonic()
                client.put(TABLET, _key(chance.randrange(rows)), VALUE)
                mine.append(Put(began, time.monotonic()))
                self._ended.wait(REST_S)

        self._threads = _Threads(client, CLIENTS, put)

    def pause(self, seconds: float) -> None:
        """Let the clients put for so long."""
        self._ended.wait(seconds)

    def stop(self) -> list[Put]:
        """Stop the clients. Return their puts; raise the error of one that failed."""
        self._ended.set()
        self._threads.join()
        return [one for mine in self._puts for one in mine]
