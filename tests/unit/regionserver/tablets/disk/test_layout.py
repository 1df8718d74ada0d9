"""Names of files: each has one meaning."""

from __future__ import annotations

import pytest

from regionserver.tablets.disk import layout


@pytest.mark.parametrize("tablet", ["a", "t1.r7", "a.1", "a.mdb", "x" * 200, "00.00"])
@pytest.mark.parametrize("generation", [1, 12, layout.GENERATION_MAX])
def test_a_name_says_whose_it_is(tablet: str, generation: int) -> None:
    assert layout.is_tablet(tablet)
    for suffix in (layout.DATABASE, layout.DATABASE_LOCK, layout.STEADY, layout.DATABASE_USED):
        path = layout.rows_path(tablet, generation, suffix)
        folder, _, name = path.partition("/")
        assert folder == layout.ROWS
        assert len(name) <= 255
        assert layout.parse_rows_name(name) == (tablet, generation, suffix)
    _, _, name = layout.quarantine_path(tablet, generation).partition("/")
    assert layout.parse_quarantine_name(name) == (tablet, generation)


@pytest.mark.parametrize("tablet", ["", ".", "..", ".x", "a/b", "a b", "ä", "x" * 201, "a\n", "-x"])
def test_what_is_no_tablet(tablet: str) -> None:
    assert not layout.is_tablet(tablet)


@pytest.mark.parametrize(
    "name", ["a.mdb", "a.0.mdb", "a.01.mdb", f"a.{1 << 32}.mdb", "a.1.mdb.tmp", ".a.1.mdb", "a.1", "lost+found"]
)
def test_names_of_others_are_left_alone(name: str) -> None:
    assert layout.parse_rows_name(name) is None


def test_a_folder_for_slots_is_no_tablets() -> None:
    _, _, name = layout.slot_quarantine_path(7).partition("/")
    assert layout.parse_quarantine_name(name) is None


@pytest.mark.parametrize(("taken", "free"), [([], "a"), (["a"], "a.1"), (["a", "a.1", "a.3"], "a.2"), (["b"], "a")])
def test_a_name_that_is_taken_gets_a_number(taken: list[str], free: str) -> None:
    assert layout.free_name("a", taken.__contains__) == free
