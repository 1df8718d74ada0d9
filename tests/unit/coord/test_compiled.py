"""A process uses the compiled modules only if they were built from the present sources."""

from __future__ import annotations

import ast
import importlib
import os
import shutil
import subprocess
import sys
import tomllib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from coord import compiled

ROOT = Path(__file__).parents[3]
#: A module of each package.
MODULES = ["coord.wire.jute", "regions.assign.outbox", "regionserver.tablets.host.beats"]
#: Packages of others whose types mypyc needs.
THIRD_PARTY = {"msgspec"}
#: Packages of others that compiled modules use without types, and those that come with mypy.
UNTYPED = {"twisted", "crc32c", "cryptography", "librt", "mypy_extensions", "prometheus_client"}


def ask(tree: Path, module: str, **environment: str) -> tuple[str, str]:
    """Return (file of a module that may be compiled, form) in a process in `tree` that imports nothing before it."""
    variables = {key: value for key, value in os.environ.items() if key != compiled.PURE_VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", f"import {module} as m; print(m.__file__); import coord.compiled as c; print(c.form())"],
        cwd=tree,
        env={**variables, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    file, form = done.stdout.splitlines()
    return Path(file).name, form


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a copy of the packages that claims to be compiled; the compiled files contain no code."""
    names = shutil.ignore_patterns("*.so", "__pycache__", "compiled.stamp")
    for package in ("coord", "master", "regions", "regionserver"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=names)
    for module in (compiled.GROUP + "__mypyc", *MODULES):
        (tmp_path / (module.replace(".", "/") + EXTENSION_SUFFIXES[0])).write_bytes(b"")
    compiled.stamp_path(tmp_path).write_text(compiled.fingerprint(tmp_path))
    return tmp_path


def test_the_build_has_what_the_compiled_modules_import() -> None:
    """Without msgspec's types mypyc refused the modules, and every new installation ran interpreted in silence."""
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    needed = {"mypy", *THIRD_PARTY}
    assert needed <= {one.partition("==")[0] for one in requires}
    assert {one for one in requires if one.partition("==")[0] in needed} <= set(pins)


def test_no_other_package_is_imported_by_compiled_modules() -> None:
    """What they import, directly or by modules of ours, has to be there when they are compiled."""
    todo, seen, foreign = [*compiled.SOURCES], set(), set()
    while todo:
        source = todo.pop()
        if source in seen or not (ROOT / source).is_file():
            continue
        seen.add(source)
        for node in ast.walk(ast.parse((ROOT / source).read_text())):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{one.name}" for one in node.names)]
            for name in names:
                if name.partition(".")[0] in ("coord", "master", "regionserver", "regions"):
                    todo += [name.replace(".", "/") + ".py", name.replace(".", "/") + "/__init__.py"]
                elif name.partition(".")[0] not in sys.stdlib_module_names:
                    foreign.add(name.partition(".")[0])
    assert foreign <= {*THIRD_PARTY, *UNTYPED}, foreign


def test_compiled_modules_exist() -> None:
    """The list names existing files."""
    for source in compiled.SOURCES:
        assert (ROOT / source).is_file(), source


@pytest.mark.parametrize("module", MODULES)
def test_matching_stamp_chooses_the_compiled_form(tree: Path, module: str) -> None:
    """The compiled form is chosen, and because it has no code here, its import fails."""
    with pytest.raises(subprocess.CalledProcessError) as failure:
        ask(tree, module)
    assert module.rpartition(".")[2] + EXTENSION_SUFFIXES[0] in failure.value.stderr


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("edited", ["coord/tree/node.py", "regionserver/tablets/host/turn.py"])
def test_edited_source_runs_as_edited(tree: Path, module: str, edited: str) -> None:
    """A change of any source disables all compiled modules."""
    with (tree / edited).open("a") as source:
        source.write("# edited\n")
    file = module.rpartition(".")[2] + ".py"
    assert ask(tree, module) == (file, "interpreted: the sources have changed since they were compiled")


@pytest.mark.parametrize("module", MODULES)
def test_unfinished_build_runs_the_sources(tree: Path, module: str) -> None:
    """The stamp is written last."""
    compiled.stamp_path(tree).unlink()
    assert ask(tree, module) == (module.rpartition(".")[2] + ".py", "interpreted: not compiled for this Python")


@pytest.mark.parametrize("module", MODULES)
def test_variable_chooses_the_sources(tree: Path, module: str) -> None:
    """RK_PURE, for tests and benchmarks of both forms."""
    assert ask(tree, module, RK_PURE="1") == (module.rpartition(".")[2] + ".py", "interpreted: RK_PURE is set")


@pytest.mark.parametrize("value", ["", "0", "no", "No", "false", " off "])
def test_variable_that_says_no_is_unset(tree: Path, value: str) -> None:
    """RK_PURE=0 asks for the compiled form."""
    compiled.stamp_path(tree).unlink()
    assert ask(tree, MODULES[0], RK_PURE=value) == ("jute.py", "interpreted: not compiled for this Python")


@pytest.mark.parametrize("path", compiled.SOURCES)
def test_log_lines_name_the_module_they_come_from(path: str) -> None:
    """Twisted asks the frame of the caller for the name, and compiled code has none."""
    name = path.removesuffix(".py").replace("/", ".")
    module = importlib.import_module(name)
    log = getattr(module, "log", None)
    assert log is None or log.namespace == name
