"""A power cut loses any subset of the unsynced pages: the rows come back exactly at a steady point, and accept new
writes.

RK_CUTS=1000 simulates more cuts than `make test` does; `make power-cuts` does the same. RK_SEED chooses the histories.
"""

from __future__ import annotations

import faulthandler
import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from regionserver.kv.pages import check_tree
from regionserver.tablets.rows import environment, steady
from regionserver.tablets.rows.environment import RowsDisk
from regionserver.tablets.rows.state import Identity
from regionserver.tablets.rows.steady import SteadyPoint
from regionserver.tablets.rows.tablet_rows import TabletRows
from tests.support.power_cut import Cut, EndedTransaction, RecordingDisk
from tests.support.tablet_model import Log

CUTS: Final = int(os.environ.get("RK_CUTS", "100"))
SEED: Final = int(os.environ.get("RK_SEED", "1"))
IDENTITY: Final = Identity("t1", 3)
#: Number of cuts in one history.
CUTS_PER_HISTORY: Final = 10
#: Steps of a point between which commits may come.
STEPS_OF_A_POINT: Final = ("before the sync", "after the sync", "before the steady point")


class History:
    """One tablet on one server, with power cuts."""

    def __init__(
        self, seed: int, folder: Path, kind: type[TabletRows] = TabletRows, *, floor_first: bool = False
    ) -> None:
        self.rng = random.Random(seed)
        self.log = Log(self.rng)
        self.path = folder / f"t1.{seed}.mdb"
        self.floor = (0, 0)
        self.kind = kind
        self.floor_first = floor_first
        self.boot = "boot 0"
        self.disk = RecordingDisk(self.path)
        self.rows = self.opened()
        self.cuts: list[tuple[str, Cut, tuple[int, int]]] = []

    def opened(self) -> TabletRows:
        return self.kind.open(str(self.path), IDENTITY, self.boot, self.floor, disk=self.disk)

    def cut(self, when: str) -> None:
        """Record the possible content of the disk after a power cut now."""
        self.cuts.append((when, self.disk.cut(self.rng), self.floor))

    def run(self, steps: int) -> None:
        """Apply, make points, die and restart; cuts may come between any two steps, and inside a point."""
        self.disk.on_step = self.during
        for _ in range(steps):
            self.step()
            if self.rng.random() < 0.3:
                self.cut("between commits")
        self.disk.on_step = lambda _name: None
        self.rows.abandon()

    def during(self, step: str) -> None:
        """Handle a step inside of a steady point: commits continue in another thread, and the power may fail."""
        if step in STEPS_OF_A_POINT and self.rng.random() < 0.5 and self.is_writable:
            self.log.extend(3)
            self.rows.apply(self.log.entries[-3:])
            self.disk.observe()
        if self.rng.random() < 0.2:
            self.cut(step)

    @property
    def is_writable(self) -> bool:
        """Return True if a commit is possible: the first steady point, and the log, must come before."""
        return not self.rows._must_point and self.rows.applied[0] == len(self.log.entries)

    def step(self) -> None:
        kind = self.rng.random()
        if kind < 0.75:
            self.log.extend(self.rng.choice((1, 2, 10)))
            while self.rows.applied[0] < len(self.log.entries):
                behind = self.log.behind(self.rows.applied[0])
                self.rows.apply(behind[: self.rng.randint(1, len(behind))])
                self.disk.observe()
        elif kind < 0.9:
            if self.floor_first:
                self.floor = self.rows.applied
                self.cut("the floor has moved")
            self.rows.steady()
            self.floor = self.rows.point
        elif kind < 0.97:
            self.rows.abandon()  # kill -9: the next process finds the written pages
            if self.disk.steady is None:
                self.disk.begin_anew()
            self.rows = self.opened()
        else:
            self.rows.close()
            self.floor = self.rows.point
            self.rows = self.opened()

    def close(self) -> None:
        self.rows.abandon()


def steady_index(cut: Cut) -> int:
    return steady.decode(cut.steady, "cut").applied_index if cut.steady is not None else 0


def check_after(
    cut: Cut, floor: tuple[int, int], log: Log, path: Path, boot: str, rng: random.Random, again: int = 1
) -> None:
    """Open the files after a cut: they are exactly at the steady point. Then write again, and perhaps lose the power
    again."""
    cut.place(path)
    disk = RecordingDisk(path, cut)
    if again:
        inner: list[Cut] = []
        disk.on_step = lambda _name: inner.append(disk.cut(rng)) if rng.random() < 0.1 else None
    rows = TabletRows.open(str(path), IDENTITY, boot, floor, disk=disk)
    disk.on_step = lambda _name: None
    try:
        expected = steady_index(cut)
        check_equal(rows, log, expected)
        behind = log.behind(expected)
        rows.apply(behind[: rng.randint(0, 8)])
        for entry in behind[rows.applied[0] - expected :][: rng.randint(0, 5)]:
            rows.apply([entry])
            disk.observe()
        if again:
            inner.append(disk.cut(rng))
        rows.apply(log.behind(rows.applied[0]))
        check_equal(rows, log, len(log.entries))
        rows.steady()
    finally:
        rows.abandon()
    check_tree(str(path))
    if again:
        second = rng.choice(inner)
        if second.steady is not None:
            check_after(second, floor, log, path, f"{boot}'", rng, again - 1)


def check_equal(rows: TabletRows, log: Log, index: int) -> None:
    assert rows.applied[0] == index
    stored, counted = rows.recount()
    assert stored == counted
    with rows.reading() as snapshot:
        found = dict(all_rows(snapshot))
    assert found == log.models[index]


def all_rows(snapshot: Any) -> Iterator[tuple[str, bytes]]:
    start, more = "", True
    while more:
        page, start = snapshot.page(start.encode(), b"", 1000)
        yield from ((row.key, row.value) for row in page)
        more = bool(start)


def histories(count: int, folder: Path, *, moments: tuple[str, ...] = (), **options: Any) -> Iterator[History]:
    """Yield histories until they have `count` cuts together, if necessary only cuts at these moments."""
    seed, cuts = SEED * 10_000, 0
    while cuts < count:
        history = History(seed, folder, **options)
        try:
            history.run(40)
        finally:
            history.close()
        history.cuts = [cut for cut in history.cuts if not moments or cut[0] in moments]
        history.rng.shuffle(history.cuts)
        del history.cuts[min(CUTS_PER_HISTORY, count - cuts) :]
        cuts += len(history.cuts)
        seed += 1
        yield history


def test_every_power_cut_leaves_a_steady_point_and_the_tablet_writes_on(tmp_path: Path) -> None:
    moments: dict[str, int] = {}
    points = 0
    for history in histories(CUTS, tmp_path):
        for number, (when, cut, floor) in enumerate(history.cuts):
            where = f"RK_SEED={SEED}, history {history.path.name}, cut {number} ({when})"
            moments[when] = moments.get(when, 0) + 1
            points += cut.steady is not None
            try:
                check_after(cut, floor, history.log, tmp_path / "after.3.mdb", f"next boot {number}", history.rng)
            except BaseException as error:
                raise AssertionError(f"{where}: {error!r}") from error
    assert points > CUTS // 2, "most cuts come after a steady point"
    assert {"between commits", "after the sync", "while the steady point is replaced"} <= set(moments), moments


# --- planted bugs -----------------------------------------------------------------------------------------------------


class WithoutThePin(TabletRows):
    """A steady point is made without the pin."""

    def _begin_pin(self) -> Any:
        return EndedTransaction(super()._begin_pin())


class NoPointAfterDeath(TabletRows):
    """A process that finds the file after its steady point pins the latest commit, and continues."""

    def _repin(self) -> None:
        super()._repin()
        if self._must_point:
            self._pin, self._must_point = self._begin_pin(), False


class SyncAfterThePoint(TabletRows):
    """The steady point is written before the pages that it needs."""

    def _sync(self) -> None:
        pass


class FormerPinEndsFirst(TabletRows):
    """The pin of the former point ends before the new point is in place."""

    def _sync(self) -> None:
        if self._pin is not None:
            self._pin.abort()
            self._pin = None
        super()._sync()


def finds_harm(check: Callable[[], None]) -> bool:
    """Return True if `check` fails. It runs in a separate process, because damaged pages may kill it."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            faulthandler.disable()
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 2)
            check()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return status != 0


def harm_found(folder: Path, cuts: int, **options: Any) -> int:
    """Return how many cuts leave a state other than a steady point."""
    path = folder / "after.3.mdb"
    found = 0
    for history in histories(cuts, folder, **options):
        for _, cut, floor in history.cuts:
            check = partial(check_after, cut, floor, history.log, path, "next boot", history.rng, again=0)
            found += finds_harm(check)
    return found


@pytest.mark.parametrize(
    ("bug", "cuts"),
    [(WithoutThePin, 10), (NoPointAfterDeath, 20), (SyncAfterThePoint, 5)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_planted_bug_is_found(bug: type[TabletRows], cuts: int, tmp_path: Path) -> None:
    assert harm_found(tmp_path, cuts, kind=bug) > 0


def test_a_pin_that_ends_before_the_next_point_is_in_place_is_found(tmp_path: Path) -> None:
    assert harm_found(tmp_path, 20, kind=FormerPinEndsFirst, moments=("before the steady point",)) > 0


def test_a_floor_that_moves_before_the_steady_point_is_found(tmp_path: Path) -> None:
    assert harm_found(tmp_path, 6, floor_first=True, moments=("the floor has moved",)) > 0


def test_meta_pages_that_are_not_written_back_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unrestored(disk: RowsDisk, path: str, point: SteadyPoint, boot: str) -> SteadyPoint:
        return point

    monkeypatch.setattr(environment, "restore", unrestored)
    assert harm_found(tmp_path, 20) > 5
