"""A process runs the compiled modules only if they were made of the sources beside them."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from coord import compiled

ROOT = Path(__file__).parents[3]
ASK = "import coord.compiled, coord.wire.jute; print(coord.wire.jute.__file__); print(coord.compiled.form())"


def ask(tree: Path, **environment: str) -> tuple[str, str]:
    """(file of a module that may be compiled, form) as a process in `tree` has them."""
    variables = {key: value for key, value in os.environ.items() if key != compiled.PURE_VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", ASK],
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
    """A copy of the package that claims to be compiled; what is compiled is no code at all."""
    names = shutil.ignore_patterns("*.so", "__pycache__", "compiled.stamp")
    shutil.copytree(ROOT / "coord", tmp_path / "coord", ignore=names)
    (tmp_path / "coord" / ("store__mypyc" + EXTENSION_SUFFIXES[0])).write_bytes(b"")
    (tmp_path / "coord" / "wire" / ("jute" + EXTENSION_SUFFIXES[0])).write_bytes(b"")
    compiled.stamp_path(tmp_path).write_text(compiled.fingerprint(tmp_path))
    return tmp_path


def test_compiled_modules_exist() -> None:
    """The list names files of this tree."""
    for source in compiled.SOURCES:
        assert (ROOT / source).is_file(), source


def test_matching_stamp_chooses_the_compiled_form(tree: Path) -> None:
    """It is taken, and as it is no code here, its import fails."""
    with pytest.raises(subprocess.CalledProcessError) as failure:
        ask(tree)
    assert "jute" + EXTENSION_SUFFIXES[0] in failure.value.stderr


def test_edited_source_runs_as_edited(tree: Path) -> None:
    """A change of any of the sources puts all compiled modules aside."""
    with (tree / "coord" / "tree" / "node.py").open("a") as source:
        source.write("# edited\n")
    assert ask(tree) == ("jute.py", "interpreted: the sources have changed since they were compiled")


def test_unfinished_build_runs_the_sources(tree: Path) -> None:
    """The stamp is written last."""
    compiled.stamp_path(tree).unlink()
    assert ask(tree) == ("jute.py", "interpreted: not compiled for this Python")


def test_variable_chooses_the_sources(tree: Path) -> None:
    """RK_PURE, for tests and benchmarks of both forms."""
    assert ask(tree, RK_PURE="1") == ("jute.py", "interpreted: RK_PURE is set")


@pytest.mark.parametrize("path", compiled.SOURCES)
def test_log_lines_name_the_module_they_come_from(path: str) -> None:
    """Twisted asks the frame of the caller for the name, and compiled code has none."""
    name = path.removesuffix(".py").replace("/", ".")
    module = importlib.import_module(name)
    log = getattr(module, "log", None)
    assert log is None or log.namespace == name
