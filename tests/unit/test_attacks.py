"""docs/attacks.md has a row for each attack, and names tests that exist."""

from __future__ import annotations

import re
from typing import Final

from tests.support.sources import ROOT
from tests.unit.test_requirements import names_in

PAGE: Final = ROOT / "docs" / "attacks.md"
ATTACKS: Final = 29


def rows() -> list[list[str]]:
    """Return the cells of all rows of both tables, without heads."""
    lines = [line for line in PAGE.read_text().splitlines() if re.match(r"\| (?!-|#|area)", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_each_attack_has_a_row_and_each_row_a_test() -> None:
    numbered = [row for row in rows() if row[0].isdecimal()]
    assert [int(row[0]) for row in numbered] == list(range(1, ATTACKS + 1))
    later = [row for row in rows() if row[0] == "\N{EN DASH}"]
    assert not [row[1] for row in numbered + later if "`tests/" not in row[2]]
    assert all("`tests/" in row[1] for row in rows() if not row[0].isdecimal() and row not in later)


def test_the_named_tests_exist() -> None:
    for named in re.findall(r"`(tests/[^`]+)`", PAGE.read_text()):
        file, _, name = named.partition("::")
        assert (ROOT / file).exists(), named
        assert not name or name in names_in(ROOT / file), named
