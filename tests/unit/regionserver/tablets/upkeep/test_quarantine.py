"""Which former replicas leave the quarantine."""

from __future__ import annotations

from typing import Final

from regionserver.tablets.upkeep.quarantine import Purge, QuarantineFolder, due, ordered

NOW_MS: Final = 1_000_000
KEEP_MS: Final = 1_000


def folder(name: str, age_ms: int, size: int = 100, tablet: str = "t") -> QuarantineFolder:
    return QuarantineFolder(name, tablet, 1, size, NOW_MS - age_ms)


def names(found: list[tuple[QuarantineFolder, Purge]]) -> list[tuple[str, Purge]]:
    return [(one.name, why) for one, why in found]


def test_a_folder_leaves_at_the_end_of_its_time_and_not_before() -> None:
    folders = [folder("young", KEEP_MS - 1), folder("old", KEEP_MS), folder("older", KEEP_MS + 5)]
    assert names(due(folders, NOW_MS, KEEP_MS, 0)) == [("older", Purge.OVERDUE), ("old", Purge.OVERDUE)]


def test_a_clock_that_went_back_removes_nothing() -> None:
    assert due([folder("t.1", -KEEP_MS)], NOW_MS, KEEP_MS, 0) == []


def test_without_room_the_oldest_go_first_and_no_more_than_needed() -> None:
    folders = [folder("c", 10), folder("a", 30), folder("b", 20)]
    assert names(due(folders, NOW_MS, KEEP_MS, 100)) == [("a", Purge.NO_ROOM)]
    assert names(due(folders, NOW_MS, KEEP_MS, 101)) == [("a", Purge.NO_ROOM), ("b", Purge.NO_ROOM)]
    assert len(due(folders, NOW_MS, KEEP_MS, 10_000)) == 3
    # An overdue folder is removed anyway, and its bytes count.
    folders.append(folder("z", KEEP_MS))
    assert names(due(folders, NOW_MS, KEEP_MS, 100)) == [("z", Purge.OVERDUE)]


def test_an_order_keeps_what_is_not_past_its_time_unless_it_is_forced() -> None:
    folders = [folder("t.1", KEEP_MS), folder("t.2", 10), folder("u.1", KEEP_MS, tablet="u")]

    def answer(tablet: str = "", older_than_ms: int = -1, *, is_forced: bool = False) -> tuple[list[str], list[str]]:
        goes, stays = ordered(folders, NOW_MS, KEEP_MS, tablet=tablet, older_than_ms=older_than_ms, is_forced=is_forced)
        return [one.folder.name for one in goes], [one.name for one in stays]

    assert answer() == (["t.1", "u.1"], ["t.2"])
    assert answer("t") == (["t.1"], ["t.2"])
    assert answer("t", is_forced=True) == (["t.1", "t.2"], [])
    assert answer("t", 10, is_forced=True) == (["t.1", "t.2"], [])
    assert answer("t", 11, is_forced=True) == (["t.1"], [])
    assert answer("v", is_forced=True) == ([], [])
