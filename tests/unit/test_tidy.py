"""Sizes, import circles and names stay within bounds. `make tidy` prints all figures.

Exceptions are listed with their present figure. A list may only become shorter, and a figure smaller.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

import pytest

from tests.support.tidy import (
    FILE_LINES_MAX,
    FOLDER_MODULES_MAX,
    PACKAGES,
    ROOT,
    Module,
    bad_tables,
    broken_lines,
    circles,
    count_words,
    duplicate_classes,
    load,
    longest_chain,
    retired_words,
    room_figures,
    table_faults,
    unnamed,
    unused_definitions,
)

#: Longest function; the longest are constructors and option lists.
FUNCTION_LINES_MAX: Final = 85

LONG_FILES: Final[dict[str, int]] = {}
FULL_FOLDERS: Final[dict[str, int]] = {}
CIRCLES: Final[list[list[str]]] = []
ROOMS_IN_CIRCLES: Final[set[str]] = set()
#: Classes that are still defined twice.
DUPLICATE_CLASSES: Final[set[str]] = set()
#: Definitions whose users are still to be written, or that a base class of another project calls.
UNUSED: Final[set[str]] = {
    "coord.tls.listening.writeSequence",
    "pyspark_regionkeeper.source.pushFilters",
}
#: How often each package still has each retired word of docs/glossary.md. The drill `ddl-storm` keeps its name.
RETIRED_LEFT: Final[dict[str, dict[str, int]]] = {
    "cli": {"storm": 4},
    "simulation": {"storm": 4},
}


@pytest.fixture(scope="module")
def modules() -> dict[str, Module]:
    """Return every module of the product."""
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
    """Each package has a docstring that describes its contents."""
    bare = [m.name for m in modules.values() if m.path.name == "__init__.py" and not ast.get_docstring(m.tree)]
    assert not bare


def test_signs_name_what_is_behind_the_door(modules: dict[str, Module]) -> None:
    """Fails if a room or a module is added without a line in the sign of its package (tried: coord.metrics.turns)."""
    assert not unnamed(modules)


def test_circles_and_chains_are_found() -> None:
    """The computation itself: two circles and a chain."""
    graph = {"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": set(), "x": {"y"}, "y": {"z"}, "z": {"x"}}
    assert circles(graph) == [["a", "b"], ["x", "y", "z"]]
    assert longest_chain({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == ["a", "b", "c"]


def test_nobody_leaves_a_definition_unused(modules: dict[str, Module]) -> None:
    """Public functions, methods and classes have a user, in the product or in a test."""
    users = load(packages=(*PACKAGES, "benchmarks", "examples", "tests"))
    del users["tests.unit.test_tidy"]  # its lists name the unused ones
    dead = set(unused_definitions(modules.values(), users.values()))
    assert dead - UNUSED == set(), "delete these"
    assert UNUSED - dead == set(), "these are used or gone: take them from UNUSED"


def test_tables_in_docstrings_parse(modules: dict[str, Module]) -> None:
    assert not bad_tables(modules.values())


def test_paragraphs_of_docstrings_are_wrapped_once(modules: dict[str, Module]) -> None:
    texts = (
        (module.name, ast.get_docstring(node) or "")
        for module in modules.values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    )
    broken = [f"{name}: {line.strip()}" for name, text in texts for line in broken_lines(text)]
    assert not broken, f"wrap these paragraphs again: {broken}"


def test_a_line_that_breaks_off_is_found() -> None:
    """A line that ends early within a paragraph is found. Rows of a table and last lines of paragraphs are not."""
    full = "word " * 19 + "word"
    assert broken_lines(f"{full}\nand the\nrest of it.") == ["and the"]
    assert not broken_lines(f"{full}\nthe rest.")
    assert not broken_lines(f"{full}\nthe end.\n\nnext paragraph")
    assert not broken_lines(f"a table  {full}\nname\ncell")


def test_retired_words_do_not_return(modules: dict[str, Module]) -> None:
    """The glossary lists them; their counts per package may only decrease."""
    words = retired_words((ROOT / "docs" / "glossary.md").read_text())
    assert words, "the glossary has lost its retired words"
    more = {}
    for package in PACKAGES:
        text = "\n".join(m.text for m in modules.values() if m.name.split(".")[0] == package)
        for word, count in count_words(text, words).items():
            if count > RETIRED_LEFT.get(package, {}).get(word, 0):
                more[f"{package}: {word}"] = f"{count}; write {words[word]}"
    assert not more


def test_unused_definitions_are_found(tmp_path: Path) -> None:
    """A function that only a docstring or a re-export names is unused; a decorated one is registered."""
    package = tmp_path / "house"
    package.mkdir()
    (package / "__init__.py").write_text('from house.rooms import dead\n\n__all__ = ["dead"]\n')
    (package / "rooms.py").write_text(
        '"""Calls dead."""\n\ndef dead() -> None: ...\n\ndef alive() -> None: ...\n\n'
        "@command\ndef registered() -> None: ...\n\n"
        "class Used:\n    @property\n    def forgotten(self) -> int: ...\n\nalive(), Used()\n"
    )
    house = load(tmp_path, ["house"]).values()
    assert unused_definitions(house, house) == ["house.rooms.dead", "house.rooms.forgotten"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("Text.\n\n| a | b |\n| --- | --- |\n| 1 | 2 |", ""),
        ("| a | b |\n| --- | --- |\n| a \\| b | 2 |", ""),
        ("     |   a diagram   |   |", ""),
        ("| a | b |\n| 1 | 2 |", "no line of dashes"),
        ("| a | b |\n| --- | --- |\n| 1 | 2 | 3 |", "3 cells instead of 2"),
    ],
)
def test_a_broken_table_is_found(text: str, fault: str) -> None:
    found = table_faults(text)
    assert bool(found) == bool(fault)
    assert fault in "".join(found)


def test_retired_words_are_found() -> None:
    """In prose and within identifiers, but not within other words."""
    words = retired_words("# G\n\n## Retired words\n\n| Retired | Instead |\n| --- | --- |\n| told, deed | sent |\n")
    assert words == {"told": "sent", "deed": "sent"}
    assert count_words("It was TOLD: was_told, ToldOnce; indeed", words) == {"told": 3}


def test_files_of_tests_fit_their_bound() -> None:
    """Tests, benchmarks and examples have the same bound as the product."""
    files = [path for folder in ("tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 100
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    long = {name: lines for name, lines in lengths.items() if lines > FILE_LINES_MAX}
    assert not long, f"split these by theme: {long}"
