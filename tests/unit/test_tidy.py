"""The house stays tidy: sizes, import circles and names within bounds. `make tidy` prints all figures.

What is over a bound today is listed with its present figure. A list may only become shorter, and a figure smaller.
"""

from __future__ import annotations

import ast
from typing import Final

import pytest

from tests.support.tidy import (
    FILE_LINES_MAX,
    FOLDER_MODULES_MAX,
    Module,
    circles,
    duplicate_classes,
    load,
    longest_chain,
    room_figures,
)

#: No function is longer than this; the longest are constructors and option lists.
FUNCTION_LINES_MAX: Final = 85

LONG_FILES: Final = {
    "regions.assign.assigner": 790,
}
FULL_FOLDERS: Final[dict[str, int]] = {}
CIRCLES: Final[list[list[str]]] = []
ROOMS_IN_CIRCLES: Final[set[str]] = set()
#: Classes that are still defined twice.
DUPLICATE_CLASSES: Final[set[str]] = set()


@pytest.fixture(scope="module")
def modules() -> dict[str, Module]:
    """Every module of the product."""
    return load()


def test_files_fit_their_bound(modules: dict[str, Module]) -> None:
    long = {m.name: m.line_count() for m in modules.values() if m.line_count() > LONG_FILES.get(m.name, FILE_LINES_MAX)}
    assert not long, f"split these, or take from them: {long}"


def test_folders_fit_their_bound(modules: dict[str, Module]) -> None:
    full = {
        row["room"]: row["modules"]
        for row in room_figures(modules)
        if row["modules"] > FULL_FOLDERS.get(row["room"], FOLDER_MODULES_MAX)
    }
    assert not full, f"make rooms in these: {full}"


def test_functions_fit_their_bound(modules: dict[str, Module]) -> None:
    long = [
        f"{m.name}.{f.name}: {(f.end_lineno or 0) - f.lineno + 1}"
        for m in modules.values()
        for f in m.functions()
        if (f.end_lineno or 0) - f.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert not long


def test_no_new_circle_of_imports(modules: dict[str, Module]) -> None:
    """Imports for type checking count."""
    assert [one for one in circles({m.name: m.imports for m in modules.values()}) if one not in CIRCLES] == []
    assert {row["room"] for row in room_figures(modules) if row["circles"]} <= ROOMS_IN_CIRCLES


def test_one_class_for_one_name(modules: dict[str, Module]) -> None:
    assert set(duplicate_classes(modules)) <= DUPLICATE_CLASSES


def test_every_package_has_a_sign_on_its_door(modules: dict[str, Module]) -> None:
    """A docstring that says what lives there."""
    bare = [m.name for m in modules.values() if m.path.name == "__init__.py" and not ast.get_docstring(m.tree)]
    assert not bare


def test_circles_and_chains_are_found() -> None:
    """The figures themselves: two circles beside a chain."""
    graph = {"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": set(), "x": {"y"}, "y": {"z"}, "z": {"x"}}
    assert circles(graph) == [["a", "b"], ["x", "y", "z"]]
    assert longest_chain({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == ["a", "b", "c"]
