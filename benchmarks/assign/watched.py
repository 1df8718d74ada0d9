"""What the live page costs the active master while all regions move.

Each pass disables the table and enables it again, so every region passes CLOSING, CLOSED, OFFLINE, OPENING and OPENED.
Passes with listeners on the page's stream and passes without take turns: without, with, with, without, and so on. The
listeners have read the whole cluster before a pass begins; what this costs is a figure of its own.
"""

from __future__ import annotations

import contextlib
import http.client
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.assign.heartbeats import run_s
from benchmarks.assign.lab import DEADLINE_S, Lab, all_open, lab, say
from benchmarks.assign.scenes import GROWTH_SESSION_MS
from coord.rpc.blocking import call_blocking
from regions import messages as ms
from regions.messages.ddl import SetTableIntent
from regions.records.model import TableIntent
from tests.support.helpers import eventually

LISTENERS: Final = 10
#: A goal of this project: the part by which listeners may raise the CPU time of the active master.
GOAL: Final = 0.05
#: A goal of this project: the longest time between two deltas while regions move.
GOAL_GAP_S: Final = 2.0
#: Passes of each kind.
PASSES: Final = 2
#: The store is asked whether regions move: a master's status would cost the master more than its page.
LOOK_S: Final = 0.5
#: The master forgets its listeners after `master.page.feed.LINGER_S`.
FORGOTTEN_S: Final = 16.0
TABLE: Final = "packages"


class Watched(msgspec.Struct, frozen=True):
    """CPU seconds of the active master for each pass, and what the listeners got."""

    regions: int
    listeners: int
    without: list[float]
    watched: list[float]
    #: CPU seconds until all listeners had the whole cluster, in each pass with listeners.
    snapshots: list[float]
    #: Bytes that one listener got during a pass, at a median.
    bytes_each: int
    #: Longest time between two deltas while regions moved, in each pass with listeners.
    gaps: list[float] = []

    @property
    def more(self) -> float:
        """Return the part by which listeners raised the CPU time, between the medians."""
        return statistics.median(self.watched) / statistics.median(self.without) - 1


class Listener:
    """A browser without a screen: reads the stream until it is closed."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._connection = http.client.HTTPConnection(*address, timeout=DEADLINE_S)
        self._connection.request("GET", "/ui/stream")
        self._response = self._connection.getresponse()
        assert self._response.status == 200, self._response.status
        self.bytes = 0
        self.has_all = False
        #: Longest time between two deltas since `watch_gaps`.
        self.gap_s = 0.0
        self._delta_s = 0.0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        last = b""
        with contextlib.suppress(OSError, ValueError, AttributeError, http.client.HTTPException):
            while data := self._response.read1(65536):
                self.bytes += len(data)
                joined = last + data
                self.has_all = self.has_all or b"event: end\n" in joined
                if b"event: delta\n" in joined:
                    self._note_delta(time.monotonic())
                last = data[-20:]

    def _note_delta(self, now_s: float) -> None:
        if self._delta_s:
            self.gap_s = max(self.gap_s, now_s - self._delta_s)
        self._delta_s = now_s

    def watch_gaps(self) -> None:
        """Begin at the next delta: until then nothing moves."""
        self._delta_s = 0.0

    def close(self) -> None:
        """End the connection."""
        if self._connection.sock is not None:
            with contextlib.suppress(OSError):
                self._connection.sock.shutdown(2)
        self._thread.join()
        self._connection.close()


@contextlib.contextmanager
def listeners(address: tuple[str, int], count: int) -> Iterator[list[Listener]]:
    """Yield listeners that have read the whole cluster."""
    found: list[Listener] = []
    try:
        found += [Listener(address) for _ in range(count)]
        eventually(lambda: all(one.has_all for one in found), DEADLINE_S, "the listeners have the whole cluster")
        yield found
    finally:
        for one in found:
            one.close()


def watched(folder: Path, regions: int, count: int = LISTENERS, passes: int = PASSES) -> Watched:
    """Measure passes with and without listeners on one cluster."""
    without: list[float] = []
    seen: list[float] = []
    snapshots: list[float] = []
    sizes: list[int] = []
    gaps: list[float] = []
    with lab(folder, opener="none", session_ms=GROWTH_SESSION_MS, admin=True) as cluster:
        cluster.create_table(TABLE, regions)
        cluster.follow(f"{regions} regions open", all_open(regions), LOOK_S)
        active = cluster.active()
        for number in range(passes):
            for is_watched in (False, True) if number % 2 == 0 else (True, False):
                if not is_watched:
                    without.append(_pass(cluster, regions))
                    continue
                before = run_s(active.pid)
                with listeners(active.admin, count) as found:
                    snapshots.append(run_s(active.pid) - before)
                    bytes_before = [one.bytes for one in found]
                    seen.append(_pass(cluster, regions, found))
                    gaps.append(max(one.gap_s for one in found))
                    sizes += [one.bytes - then for one, then in zip(found, bytes_before, strict=True)]
                    assert len({cluster.active().name, active.name}) == 1, "another master became active"
                threading.Event().wait(FORGOTTEN_S)
        say(f"without {without}, with {count} listeners {seen}, longest times between deltas {gaps}")
    return Watched(regions, count, without, seen, snapshots, round(statistics.median(sizes)), gaps)


def _pass(cluster: Lab, regions: int, listening: Sequence[Listener] = ()) -> float:
    """Close and open all regions. Return the CPU seconds of the active master."""
    active = cluster.active()
    before, began = run_s(active.pid), time.monotonic()
    for intent in (TableIntent.DISABLED, TableIntent.ENABLED):
        for one in listening:
            one.watch_gaps()
        call_blocking(active.address, SetTableIntent(TABLE, intent), DEADLINE_S, expect=ms.Tables)
        wanted = 0 if intent is TableIntent.DISABLED else regions
        eventually(lambda wanted=wanted: _is_done(cluster, wanted), DEADLINE_S, f"{wanted} regions are open")
    used = run_s(active.pid) - before
    say(f"a pass took {time.monotonic() - began:.0f} s, {used:.2f} s of the active master's CPU")
    return used


def _is_done(cluster: Lab, wanted: int) -> bool:
    """Return True if nothing moves and so many regions are open."""
    threading.Event().wait(LOOK_S)
    status = cluster.active_status() if cluster.in_transition() == 0 else None
    return status is not None and status[1].open == wanted and not status[1].rit


def table(rounds: list[Watched]) -> list[str]:
    """Return the table: a line per round."""
    if not rounds:
        return []
    lines = [
        "| regions | listeners | CPU without s | with s | more | goal | longest between deltas s | goal |"
        " whole cluster to all, CPU s | MB to each |",
        "| --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for one in rounds:
        cells = [f"{one.regions:,}", f"{one.listeners}", f"{statistics.median(one.without):.2f}"]
        cells += [f"{statistics.median(one.watched):.2f}", f"{one.more:+.1%}", f"{GOAL:.0%}"]
        cells += [f"{max(one.gaps, default=0.0):.1f}", f"{GOAL_GAP_S:g}"]
        cells += [f"{statistics.median(one.snapshots):.2f}", f"{one.bytes_each / 1e6:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines
