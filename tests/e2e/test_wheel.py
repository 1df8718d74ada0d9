"""The package: sdist and wheel have what an installation needs, and a cluster runs from the wheel alone.

Nothing is downloaded: the empty environment finds the packages of others where this interpreter has them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import click
import pytest

from coord import compiled
from tests.e2e.clusters import STOP_DEADLINE_S, UP_DEADLINE_S, free_base_port, processes_of
from tests.support.helpers import eventually, finished
from tests.support.sources import ROOT
from tests.support.tidy import PACKAGES

pytestmark = pytest.mark.e2e

#: Longest time for one build and for one command of the installation.
BUILD_DEADLINE_S = 240.0
COMMAND_DEADLINE_S = 300.0
_BUILD = "import sys; from setuptools import build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"
_SHAPE = ("--store-nodes", "1", "--masters", "1", "--servers", "3", "--regions", "12", "--plan-engine", "greedy")
#: Versions of Python that setup.cfg names.
_PYTHONS = ("3.11", "3.12", "3.13")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the source tree, with the modules that are compiled in place."""
    copy = tmp_path_factory.mktemp("source") / "regionkeeper"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    libraries = [str(path.relative_to(ROOT)) for path in compiled.libraries(ROOT)]
    for name in {*listed.stdout.splitlines(), *libraries}:
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    return copy


def build(kind: str, tree: Path, into: Path, *, pure: bool) -> Path:
    """Build the sdist or the wheel of a tree and return its path."""
    into.mkdir(parents=True, exist_ok=True)
    variables = {key: value for key, value in os.environ.items() if key != compiled.PURE_VARIABLE}
    if pure:
        variables[compiled.PURE_VARIABLE] = "1"
    words = [sys.executable, "-c", _BUILD, f"build_{kind}", str(into)]
    done = subprocess.run(
        words, cwd=tree, env=variables, capture_output=True, text=True, timeout=BUILD_DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return into / done.stdout.splitlines()[-1]


def names_in(wheel: Path) -> set[str]:
    """Return the names of a wheel's files, as they are installed."""
    with zipfile.ZipFile(wheel) as opened:
        return {re.sub(r"^[^/]+\.data/(pure|plat)lib/", "", name) for name in opened.namelist()}


def check_contents(wheel: Path) -> None:
    """Assert that the data of the packages, the license and the metadata are in a wheel."""
    names = names_in(wheel)
    for package in PACKAGES:
        assert f"{package}/py.typed" in names
    assert {"cli/examples/debian-packages.csv.gz", "cli/examples/counters.py"} <= names
    assert any(name.endswith("share/man/man1/rk.1") for name in names)
    assert any(re.search(r"dist-info/(licenses/)?LICENSE$", name) for name in names)
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "docs"))]
    with zipfile.ZipFile(wheel) as opened:
        metadata = opened.read(next(name for name in names if name.endswith("METADATA"))).decode()
    for wanted in ("License: Apache-2.0", "Programming Language :: Python :: 3.13", "Requires-Python: >=3.11"):
        assert wanted in metadata


def test_sdist_is_complete_and_gives_a_wheel_for_every_platform(tree: Path, tmp_path: Path) -> None:
    """The wheel is built from nothing but the unpacked sdist."""
    sdist = build("sdist", tree, tmp_path, pure=True)
    with tarfile.open(sdist) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
        opened.extractall(tmp_path, filter="data")
    wanted = {"LICENSE", "CHANGELOG.md", "Makefile", "constraints.txt", "docker/Dockerfile", "docs/operating.md"}
    assert wanted | {"tests/e2e/test_wheel.py", "examples/debian-packages.csv.gz"} <= names
    assert not [name for name in names if name.endswith((".so", ".pyc", "compiled.stamp"))]
    unpacked = tmp_path / sdist.name.removesuffix(".tar.gz")
    wheel = build("wheel", unpacked, tmp_path / "wheel", pure=True)
    assert wheel.name.endswith("-py3-none-any.whl")
    check_contents(wheel)
    assert not [name for name in names_in(wheel) if name.endswith(".so")]


@pytest.fixture(scope="module")
def installed(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel, install it into an empty environment, and return the path of its `rk`."""
    folder = tmp_path_factory.mktemp("installed")
    is_compiled = compiled.is_current(ROOT / "coord")
    wheel = build("wheel", tree, folder, pure=not is_compiled)
    check_contents(wheel)
    libraries = {name for name in names_in(wheel) if name.endswith(EXTENSION_SUFFIXES[0])}
    assert len(libraries) == (len(compiled.SOURCES) + 1 if is_compiled else 0)
    environment = folder / "environment"
    python = environment / "bin" / "python"
    for words in (
        [sys.executable, "-m", "venv", "--without-pip", str(environment)],
        [sys.executable, "-m", "pip", "-q", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)],
    ):
        done = finished(words, BUILD_DEADLINE_S)
        assert done.returncode == 0, done.stderr
    packages = next(environment.glob("lib/python*/site-packages"))
    # A line of a path file adds a folder, and ignores the path files in that folder: our own source tree stays hidden.
    (packages / "others.pth").write_text(f"{Path(click.__file__).parents[1]}\n")
    return environment / "bin" / "rk"


def run(rk: Path, where: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the installation in the folder `where`, with no trace of the source tree in its environment."""
    return subprocess.run(
        [str(rk), *words], cwd=where, env=surroundings(where), capture_output=True, text=True,
        timeout=COMMAND_DEADLINE_S, check=False,
    )  # fmt: skip


def surroundings(where: Path) -> dict[str, str]:
    """Return the environment of the installation's commands."""
    return {"PATH": os.environ["PATH"], "HOME": str(where)}


def test_cluster_and_drill_run_from_the_wheel_in_an_empty_directory(installed: Path, tmp_path: Path) -> None:
    """`rk up` finds its example data, daemons start, and a drill holds; the installed form is that of the wheel."""
    version = run(installed, tmp_path, "--version")
    wanted = "store compiled" if compiled.is_current(ROOT / "coord") else "store interpreted"
    assert wanted in version.stdout, version.stdout + version.stderr
    script = run(installed, tmp_path, "completion", "show", "bash")
    assert script.returncode == 0, script.stderr
    words = [str(installed), "up", "--json", "--base-port", str(free_base_port()), *_SHAPE]
    data_dir = tmp_path / "rk-data"
    log = tmp_path / "up.json"
    with log.open("w") as output:
        process = subprocess.Popen(words, cwd=tmp_path, env=surroundings(tmp_path), stdout=output, stderr=output)
    try:
        started = eventually(_event(log, process), UP_DEADLINE_S, "rk up has started")
        assert started["open"] == started["regions"] > 0, log.read_text()
        drilled = run(installed, tmp_path, "drill", "server-crash", "--json")
        assert drilled.returncode == 0, drilled.stdout[-4000:] + drilled.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait(STOP_DEADLINE_S) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
        eventually(lambda: not processes_of(data_dir), STOP_DEADLINE_S, "no process is left")


def _event(log: Path, process: subprocess.Popen[bytes]) -> Callable[[], dict[str, int] | None]:
    """Return a function that finds the event of a complete start in the output of `rk up`."""

    def found() -> dict[str, int] | None:
        for line in log.read_text().splitlines():
            if line.startswith('{"event":"up"') or '"event": "up"' in line:
                event: dict[str, int] = json.loads(line)
                return event
        assert process.poll() is None, log.read_text()
        return None

    return found


@pytest.mark.parametrize("version", _PYTHONS)
def test_sources_are_of_every_python_that_the_package_names(version: str) -> None:
    """Each interpreter that this machine has compiles every module of the product."""
    python = shutil.which(f"python{version}")
    if python is None or finished([python, "--version"], COMMAND_DEADLINE_S).returncode != 0:
        pytest.skip(f"no python{version} on this machine: the sources were NOT tried with it")
    script = (
        "import ast, pathlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    for path in pathlib.Path(name).rglob('*.py'): ast.parse(path.read_text(), str(path))"
    )
    packages = [str(ROOT / name) for name in PACKAGES]
    done = finished([python, "-c", script, *packages], COMMAND_DEADLINE_S)
    assert done.returncode == 0, done.stderr
