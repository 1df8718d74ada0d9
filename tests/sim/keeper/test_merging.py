"""Merges of tablets under faults: no key without a region, no acknowledged row lost, and planted bugs are found."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final
from unittest import mock

import pytest

from regions.assign.resharding import book, tablets
from regions.assign.resharding.tablets import TabletParents
from tests.sim.keeper.merging import MergingWorld
from tests.sim.keeper.model import BrokenInvariantError
from tests.sim.keeper.world import play

#: RK_SEEDS sets the number of seeds: `RK_SEEDS=2000 pytest tests/sim/keeper`.
SEEDS: Final = int(os.environ.get("RK_SEEDS", "25"))
#: Number of seeds within which a planted bug must be found.
SEEDS_PLANTED: Final = 120
#: Situations that a run must reach.
RARE: Final = (
    "merged", "merge of tablets on different servers", "moved for a merge", "takeover of a half-sealed merge",
    "canceled half-sealed", "unsealed", "late seal", "takeover CLEANING", "power cut",
)  # fmt: skip


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each limit pass within a run."""
    monkeypatch.setattr(tablets, "KEPT_MS", 3_000)
    monkeypatch.setattr(tablets, "SEAL_BOTH_WITHIN_MS", 1_500)
    monkeypatch.setattr(book, "SEAL_WITHIN_MS", 4_000)


def test_no_seed_breaks_an_invariant() -> None:
    """At rest each acknowledged row is in its region, no tablet is sealed, and nothing of the parents is left."""
    met = play(MergingWorld, 2 * SEEDS)
    assert [name for name in RARE if not met[name]] == []


# --- planted bugs -----------------------------------------------------------------------------------------------------


@contextmanager
def _second_not_sealed() -> Iterator[None]:
    """The daughter replaces both parents when the first one is sealed."""
    original = TabletParents.handover

    def handover(self: Any, work: Any, parents: Any, now_ms: int) -> Any:
        found = original(self, work, parents, now_ms)
        if found is not None or len(parents) == 1 or parents[0].record.region_id not in work.sealed:
            return found
        first = work.sealed[parents[0].record.region_id]
        return self._daughters(work, [first, first], now_ms)

    with mock.patch.object(TabletParents, "handover", handover):
        yield


@contextmanager
def _not_aligned() -> Iterator[None]:
    """The members stay where they are, and the daughter gets those of the first parent."""
    with (
        mock.patch.object(TabletParents, "_aligned", return_value=True),
        mock.patch.object(TabletParents, "objection_to_work", return_value=""),
    ):
        yield


@contextmanager
def _second_parent_goes_at_once() -> Iterator[None]:
    """Only the first parent is held: members of the second parent change, and its replicas are removed when it is
    replaced."""
    original = TabletParents.mark

    def mark(self: Any, region_id: str, *, is_leaving: bool) -> None:
        if region_id in firsts:
            original(self, region_id, is_leaving=is_leaving)

    firsts: set[str] = set()
    marks = book.Reshardings._mark

    def mark_all(self: Any, work: Any) -> None:
        firsts.add(work.record.region_id)
        marks(self, work)

    with mock.patch.object(TabletParents, "mark", mark), mock.patch.object(book.Reshardings, "_mark", mark_all):
        yield


#: Name, way to plant the bug, text of the broken invariant.
PLANTED: Final[dict[str, tuple[Callable[[], AbstractContextManager[None]], str]]] = {
    "merged when one parent is sealed": (_second_not_sealed, "is merged, and not sealed"),
    "merged where the members are on different servers": (_not_aligned, "the daughter on"),
    "replicas of the second parent go at once": (_second_parent_goes_at_once, "goes before|has no leader|sealed"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_bugs_are_found(name: str) -> None:
    """Each breaks the invariant that it should break."""
    plant, expected = PLANTED[name]
    with plant(), pytest.raises(BrokenInvariantError, match=expected):
        play(MergingWorld, SEEDS_PLANTED)
