"""docs/requirements.md has a row for every requirement that the tree cites, and names modules and tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Final

from tests.support.sources import ROOT, cited_requirements, text_files

PAGE: Final = ROOT / "docs" / "requirements.md"
NOT_BUILT: Final = "not built"
#: Documents whose sections may be cited; the page describes them.
SOURCES: Final = {"S0", "S1", "S2", "S3", "S4", "Raft", "Dissertation", "RFC"}
#: A name in front of a section sign: `S4 §3`, `RFC 2831 §2.1`, `Raft dissertation §4.1`.
_SECTION: Final = re.compile(r"(?<!\w)(?!and )([A-Za-z][\w.-]*)(?: \d+)? §\d")


@cache
def rows() -> list[tuple[str, str, list[str], list[str]]]:
    """Return id, text, place of the decision, and proof of each row: one file or test, or several with commas."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.read_text().splitlines()]
    return [(c[0], c[1], _named(c[2]), _named(c[3])) for c in cells if len(c) == 4 and re.match(r"[A-Z]+-?\d", c[0])]


def _named(cell: str) -> list[str]:
    """Return the names in a cell, without their quotes."""
    return [one.strip().strip("`") for one in cell.split(",") if one.strip()]


@cache
def names_in(path: Path) -> set[str]:
    """Return the names of the functions and classes of a Python file; methods also with their class."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}::{one.name}"
                for one in node.body
                if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return found


def test_no_row_stands_twice() -> None:
    ids = [row[0] for row in rows()]
    assert sorted({one for one in ids if ids.count(one) > 1}) == []
    assert len(ids) > 150


def test_every_citation_has_a_row() -> None:
    known = {row[0] for row in rows()}
    dangling = {row: places[0] for row, places in cited_requirements().items() if row not in known}
    assert dangling == {}


def test_every_row_names_a_module_that_exists() -> None:
    """Or the row says that it is not built."""
    missing = [row[0] for row in rows() if row[2] != [NOT_BUILT] and not all((ROOT / one).is_file() for one in row[2])]
    assert missing == []


def test_every_row_that_is_built_is_proved_by_a_test_that_exists() -> None:
    missing = []
    for row, _, modules, proofs in rows():
        if modules != [NOT_BUILT] and not proofs:
            missing.append((row, ""))
        for proof in proofs:
            path, _, name = proof.partition("::")
            if not (ROOT / path).is_file() or (name and name not in names_in(ROOT / path)):
                missing.append((row, proof))
    assert missing == []


def test_cited_documents_are_sources_of_the_page() -> None:
    """A section of a document that the reader cannot find justifies nothing."""
    strange = {}
    for path in text_files():
        cited = {name.capitalize() if name.islower() else name for name in _SECTION.findall(path.read_text())}
        if unknown := cited - SOURCES:
            strange[str(path.relative_to(ROOT))] = sorted(unknown)
    assert strange == {}


def test_the_page_lists_the_sources() -> None:
    listed = {line.split("|")[1].strip() for line in PAGE.read_text().splitlines() if line.startswith("| ")}
    assert listed >= SOURCES
