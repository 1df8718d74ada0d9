"""Figures of the source tree: sizes, imports, circles, docstrings, assertions, words. `make tidy` prints them.

    python -m tests.support.tidy            tables
    python -m tests.support.tidy --json     the same figures for a program

A *room* is a folder of modules. An *arrow* is an import between two rooms or modules of one folder; *floors* is the
longest chain of such arrows. A *circle* is a set of modules (or rooms) that import each other, imports for type
checking included: an object that needs the other's type is coupled to it.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("coord", "regions", "master", "regionserver", "cli", "simulation", "pyspark_regionkeeper")
#: Parts of a package that are listed separately: the cores, which must have more comments and assertions.
CORES: Final = ("coord.raft", "coord.tree", "coord.storage", "coord.wire", "regions.assign", "regionserver.replica")

FILE_LINES_MAX: Final = 600
#: A module below this size needs a reason to exist.
MODULE_LINES_MIN: Final = 40
FOLDER_MODULES_MAX: Final = 12
#: Rooms whose modules are alike: their signs name only examples.
ALIKE: Final = ("cli.drill.scenarios", "cli.drill.scenarios.tablets")
#: A longer line of a docstring has no room for the next word.
_FULL_LINE: Final = 90

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Module:
    """One source file: its dotted name, its text, its tree, and the modules of this project that it imports."""

    name: str
    path: Path
    text: str
    tree: ast.Module
    imports: set[str] = field(default_factory=set)

    @property
    def room(self) -> str:
        """Return the dotted name of the folder."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]

    def line_count(self) -> int:
        """Return the number of lines of the file."""
        return self.text.count("\n")

    def functions(self) -> list[Function]:
        """Return every function and method, also nested ones."""
        return [node for node in ast.walk(self.tree) if isinstance(node, Function)]


def load(root: Path = ROOT, packages: Iterable[str] = PACKAGES) -> dict[str, Module]:
    """Read every module of `packages`; the result maps dotted names to modules."""
    modules = {}
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            parts = list(path.relative_to(root).with_suffix("").parts)
            if parts[-1] == "__init__":
                parts.pop()
            text = path.read_text()
            modules[".".join(parts)] = Module(".".join(parts), path, text, ast.parse(text))
    for module in modules.values():
        module.imports = {name for name in _imported(module, modules) if name != module.name}
    return modules


def _imported(module: Module, modules: dict[str, Module]) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.room.split(".")
                base = ".".join([*parents[: len(parents) - node.level + 1], *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                if full in modules:
                    yield full
                elif base in modules:
                    yield base
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)


# --- graphs -----------------------------------------------------------------------------------------------------------


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components with more than one member, sorted (Tarjan)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for following in sorted(graph.get(name, ())):
            if following not in order:
                visit(following)
                low[name] = min(low[name], low[following])
            elif following in stack:
                low[name] = min(low[name], order[following])
        if low[name] == order[name]:
            at = stack.index(name)
            component, stack[at:] = stack[at:], []
            if len(component) > 1:
                found.append(sorted(component))

    for name in sorted(graph):
        if name not in order:
            visit(name)
    return sorted(found)


def longest_chain(graph: dict[str, set[str]]) -> list[str]:
    """Return the longest chain of arrows. Arrows that close a circle are left out."""
    best: dict[str, list[str]] = {}
    open_now: set[str] = set()

    def chain(name: str) -> list[str]:
        if name not in best:
            open_now.add(name)
            tails = [chain(following) for following in sorted(graph.get(name, ())) if following not in open_now]
            open_now.discard(name)
            best[name] = [name, *max(tails, key=len, default=[])]
        return best[name]

    return max((chain(name) for name in sorted(graph)), key=len, default=[])


def room_graph(modules: dict[str, Module], room: str) -> dict[str, set[str]]:
    """Return the arrows between the direct children (modules and rooms) of one folder."""
    graph: dict[str, set[str]] = {}
    for module in modules.values():
        child = _child(module.name, room)
        if child is None:
            continue
        arrows = graph.setdefault(child, set())
        arrows |= {other for name in module.imports if (other := _child(name, room)) is not None and other != child}
    return graph


def _child(name: str, room: str) -> str | None:
    """Return the direct child of `room` that holds `name`; None outside of the room and for the room's own sign."""
    if not name.startswith(room + "."):
        return None
    return name[len(room) + 1 :].partition(".")[0]


def unnamed(modules: dict[str, Module]) -> dict[str, list[str]]:
    """Return package -> rooms and modules that its sign (the docstring of `__init__`) does not name.

    A sign must name every room. It need not list modules, but a list must be complete: two named modules make a list,
    and rooms whose modules are all of one kind list only examples.
    """
    found: dict[str, list[str]] = {}
    for package in (one for one in modules.values() if one.path.name == "__init__.py"):
        sign = ast.get_docstring(package.tree) or ""
        children = {_child(name, package.name) for name in modules} - {None}
        rooms = [one for one in children if one and modules[f"{package.name}.{one}"].path.name == "__init__.py"]
        files = [f"{one}.py" for one in children if one and one not in rooms and one != "__main__"]
        missing = [one for one in rooms if not re.search(rf"\b{one}\b", sign)]
        named = set(re.findall(r"\w+\.py\b", sign))
        if len(named.intersection(files)) > 1 and package.name not in ALIKE:
            missing += [one for one in files if one not in named]
        if missing:
            found[package.name] = sorted(missing)
    return found


# --- figures ----------------------------------------------------------------------------------------------------------


def package_figures(modules: dict[str, Module], package: str) -> dict[str, Any]:
    """Return sizes, docstring coverage, assertions per function and comment lines per 100 of one package."""
    members = [m for m in modules.values() if m.name == package or m.name.startswith(package + ".")]
    functions = [f for m in members for f in m.functions()]
    lengths = sorted((f.end_lineno or f.lineno) - f.lineno + 1 for f in functions) or [0]
    lines = sum(m.line_count() for m in members)
    public = [node for m in members for node in _public(m.tree)]
    asserts = sum(isinstance(node, ast.Assert) for m in members for node in ast.walk(m.tree))
    comments = sum(bool(re.match(r"\s*#(?!:)|\s*#:", line)) for m in members for line in m.text.splitlines())
    return {
        "package": package,
        "files": len(members),
        "lines": lines,
        "functions": len(functions),
        "length_median": int(statistics.median(lengths)),
        "length_p95": lengths[int(len(lengths) * 0.95) - 1],
        "length_max": lengths[-1],
        "docstrings_percent": round(100 * sum(ast.get_docstring(n) is not None for n in public) / max(1, len(public))),
        "asserts_per_function": round(asserts / max(1, len(functions)), 2),
        "comments_per_100_lines": round(100 * comments / max(1, lines), 1),
    }


def _public(tree: ast.AST) -> Iterator[ast.ClassDef | Function]:
    """Yield public classes, functions and methods; a private class hides its methods."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | Function) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from _public(node)


def room_figures(modules: dict[str, Module]) -> list[dict[str, Any]]:
    """Return modules, children, arrows, floors and circles of every folder."""
    rows = []
    for room in sorted({m.room for m in modules.values()}):
        graph = room_graph(modules, room)
        own = [m for m in modules.values() if m.room == room and m.path.name != "__init__.py"]
        rows.append(
            {
                "room": room,
                "modules": len(own),
                "children": len(graph),
                "arrows": sum(map(len, graph.values())),
                "floors": len(longest_chain(graph)),
                "circles": circles(graph),
            }
        )
    return rows


def duplicate_classes(modules: dict[str, Module]) -> dict[str, list[str]]:
    """Return every class name that more than one module defines at its top level, with these modules."""
    places: dict[str, list[str]] = defaultdict(list)
    for module in modules.values():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(module.name)
    return {name: sorted(found) for name, found in sorted(places.items()) if len(found) > 1}


def unused_definitions(modules: Iterable[Module], users: Iterable[Module]) -> list[str]:
    """Return the public functions, methods and classes of `modules` whose names occur nowhere in `users`.

    A name in a string counts as a use, since some names are looked up by text. A definition with a decorator other than
    a property or a method kind is skipped: the decorator registers it. A re-export does not count as a use.
    """
    used = {name for module in users for name in _used_names(module)}
    return [
        f"{module.name}.{node.name}"
        for module in modules
        for node in _public(module.tree)
        if node.name not in used and not _is_registered(node)
    ]


def _is_registered(node: ast.ClassDef | Function) -> bool:
    kinds = ("property", "staticmethod", "classmethod", "override", "dataclass")
    return any(not any(kind in ast.unparse(one) for kind in kinds) for one in node.decorator_list)


def _used_names(module: Module) -> Iterator[str]:
    """Yield every name that the module mentions, other than in definitions, docstrings and re-exports."""
    is_package = module.path.name == "__init__.py"
    skipped: set[int] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
        elif is_package and isinstance(node, ast.Assign | ast.AnnAssign) and "__all__" in ast.unparse(node):
            skipped |= {id(each) for each in ast.walk(node)}
    for node in ast.walk(module.tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias) and not is_package:
            yield node.name.rpartition(".")[2]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"\w+", node.value)


def bad_tables(modules: Iterable[Module]) -> list[str]:
    """Return the Markdown tables of docstrings that do not parse: `module: line` with the reason."""
    found = []
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Module | ast.ClassDef | Function):
                text = ast.get_docstring(node) or ""
                found += [f"{module.name}: {why}" for why in table_faults(text)]
    return found


def table_faults(text: str) -> list[str]:
    """Return why tables in `text` do not parse. Two consecutive lines within bars are a table."""
    faults = []
    block: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|") and line.rstrip().endswith("|") and len(line) > 1:
            block.append(line.strip())
            continue
        if len(block) > 1:
            columns = [len(re.findall(r"(?<!\\)\|", row)) - 1 for row in block]
            if not re.fullmatch(r"\|( *:?-{3,}:? *\|)+", block[1]):
                faults.append(f"{block[0]!r} has no line of dashes below it")
            faults += [
                f"{row!r} has {count} cells instead of {columns[0]}"
                for row, count in zip(block, columns, strict=True)
                if count != columns[0]
            ]
        block = []
    return faults


def broken_lines(text: str) -> list[str]:
    """Return the lines of a docstring that end in the middle of a sentence after one word or two, behind a full line.

    A paragraph gets such lines when it is wrapped a second time, to a smaller width.
    """
    lines = text.splitlines()
    return [
        here
        for before, here, after in zip(lines, lines[1:], lines[2:], strict=False)
        if len(before) > _FULL_LINE
        and "  " not in before.strip()
        and re.fullmatch(r" *[\w'`]+(?: [\w'`]+)?,?", here)
        and re.match(r" *[a-z`*]", after)
        and "  " not in after.strip()
    ]


def retired_words(glossary: str) -> dict[str, str]:
    """Return the words of the glossary's section "Retired words", with their replacements."""
    section = glossary.partition("## Retired words")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("| \n").split("|")] for line in section.splitlines() if "|" in line]
    return {word: row[1] for row in rows[2:] for word in re.split(r", *", row[0])}


def count_words(text: str, words: Iterable[str]) -> dict[str, int]:
    """Return how often each of `words` occurs in prose and identifiers; `SheToldUs` and `was_told` contain `told`."""
    counts = Counter(part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", text))
    return {word: counts[word] for word in words if counts[word]}


def figures(modules: dict[str, Module]) -> dict[str, Any]:
    """Return all printed figures."""
    graph = {m.name: set(m.imports) for m in modules.values()}
    rooms = room_figures(modules)
    return {
        "packages": [package_figures(modules, p) for p in (*PACKAGES, *CORES)],
        "rooms": rooms,
        "files_too_long": {m.name: m.line_count() for m in modules.values() if m.line_count() > FILE_LINES_MAX},
        "modules_too_short": {
            m.name: m.line_count()
            for m in modules.values()
            if m.line_count() < MODULE_LINES_MIN and m.path.stem not in ("__init__", "__main__")
        },
        "folders_too_full": {r["room"]: r["modules"] for r in rooms if r["modules"] > FOLDER_MODULES_MAX},
        "circles_of_modules": circles(graph),
        "circles_of_rooms": {r["room"]: r["circles"] for r in rooms if r["circles"]},
        "deepest_chain": longest_chain(graph),
        "duplicate_classes": duplicate_classes(modules),
    }


def _print(found: dict[str, Any]) -> None:
    for title, rows in (("packages and cores", found["packages"]), ("rooms", found["rooms"])):
        shown = [{key: "" if value == [] else value for key, value in row.items()} for row in rows]
        widths = {key: max(len(key), *(len(str(row[key])) for row in shown)) for key in shown[0]}
        print(title)
        print("  " + "  ".join(key.ljust(width) for key, width in widths.items()))
        for row in shown:
            print("  " + "  ".join(str(row[key]).ljust(width) for key, width in widths.items()))
    chain = found["deepest_chain"]
    print(f"deepest import chain: {len(chain)}: {' > '.join(chain)}")
    for key in ("files_too_long", "modules_too_short", "folders_too_full", "circles_of_modules", "circles_of_rooms"):
        print(f"{key.replace('_', ' ')}: {len(found[key])}  {found[key] or ''}")
    duplicates = found["duplicate_classes"]
    print(f"class names defined more than once: {len(duplicates)}  {' '.join(duplicates)}")


def main(arguments: list[str]) -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.tidy", description="Figures of the source tree.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--root", type=Path, default=ROOT, help="another checkout")
    options = parser.parse_args(arguments)
    found = figures(load(options.root))
    if options.json:
        json.dump(found, sys.stdout, indent=1)
        print()
    else:
        _print(found)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
