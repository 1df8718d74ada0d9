"""docs/tablets.md shows the tables of the code."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from regionserver.tablets.disk.life import DATA_LIFE
from regionserver.tablets.disk.startup import TABLE
from tests.support.sources import ROOT

PAGE = (ROOT / "docs" / "tablets.md").read_text().splitlines()


def cell(values: Iterable[StrEnum]) -> str:
    return ", ".join(values) or "any"


def section(heading: str) -> list[str]:
    """Return the lines of the first table below a heading, without its head."""
    start = next(i for i, line in enumerate(PAGE) if line.startswith(heading))
    first = next(i for i in range(start, len(PAGE)) if PAGE[i].startswith("| --- |"))
    last = next(i for i in range(first, len(PAGE)) if not PAGE[i].startswith("|"))
    return PAGE[first + 1 : last]


def test_the_start_up_table_is_that_of_the_program() -> None:
    rows = [
        f"| {cell(row.block)} | {cell(row.log)} | {cell(row.meta)} | {cell(row.rows)} | {row.outcome} | {row.why} |"
        for row in TABLE
    ]
    assert [line.replace("|  |", "| |") for line in section("## What a start does")] == [
        row.replace("|  |", "| |") for row in rows
    ], "\n".join(rows)


def test_the_moves_of_the_files_are_those_of_the_program() -> None:
    rows = [f"| {row.before or 'absent'} | {row.event} | {row.after or 'absent'} | {row.when} |" for row in DATA_LIFE]
    assert section("### Moves of the data state") == rows, "\n".join(rows)
