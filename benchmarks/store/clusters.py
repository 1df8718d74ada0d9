"""ZooKeeper and our store as processes. The harness of the load generator starts them, with fsync on."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.store.matrix import BEFORE, ZOOKEEPER
from coord.compiled import PURE_VARIABLE

#: Distance between the port numbers of two targets of one size.
_PORTS: Final = 10


def build_tools(bench: Path, work: Path) -> Path:
    """Copy the generator and build it. Raise SystemExit with one clear line."""
    if not (bench / "servers.py").exists():
        sys.exit(f"bench-store: no load generator in {bench} (--bench DIR)")
    tools = work / "tools"
    shutil.copytree(bench, tools, dirs_exist_ok=True)
    made = subprocess.run(["make", "-s"], cwd=tools, capture_output=True, text=True, check=False)
    if made.returncode:
        sys.exit(f"bench-store: the load generator does not build: {made.stderr.strip()[-300:]}")
    return tools


def jars() -> Path:
    """Return the folder in which pyspark keeps ZooKeeper's jars."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        sys.exit("bench-store: ZooKeeper's jars are missing: install the extra `spark`, or set ZK_JARS")
    return Path(found.origin).parent / "jars"


class Fleet:
    """Makes clusters of one size."""

    def __init__(self, tools: Path, work: Path, nodes: int, before: Path | None = None) -> None:
        sys.path.insert(0, str(tools))
        self._servers: Any = importlib.import_module("servers")
        self.tools = tools
        self.nodes = nodes
        self._work = work
        self._before = before

    def make(self, name: str, position: int = 0, **settings: Any) -> Any:
        """Return a cluster of the target `name`, not started. Clusters that run side by side differ in `position`."""
        kind = "zk" if name == ZOOKEEPER else "rk"
        cluster = self._servers.Cluster(f"{kind}{self.nodes}", str(self._work), name=f"{name}{self.nodes}", **settings)
        cluster.base += _PORTS * position
        return cluster

    def choose(self, name: str) -> None:
        """Choose the checkout and the form (compiled or interpreted) of our nodes that are started from now on."""
        rk = f"{sys.executable} -m cli"
        if name == BEFORE:
            rk = f"env -C {self._before} {self._before}/.venv/bin/python -m cli"
        os.environ["RK"] = f"env {PURE_VARIABLE}=1 {rk}" if name == "interpreted" else rk

    @contextlib.contextmanager
    def running(self, names: list[str]) -> Iterator[dict[str, Any]]:
        """Yield one started cluster of each target, side by side. Stop and remove them afterwards."""
        started: dict[str, Any] = {}
        try:
            for position, name in enumerate(names):
                self.choose(name)
                started[name] = self.make(name, position)
                started[name].start()
            yield started
        finally:
            for cluster in started.values():
                cluster.stop()

    def generator(self, cluster: Any, arguments: list[str], *, node: int | None = None) -> list[str]:
        """Return the command of the load generator against a cluster, or one node of it."""
        where = cluster.target()
        hosts = where["hosts"] if node is None else where["hosts"].split(",")[node]
        return [str(self.tools / "zkbench"), "-s", hosts, "-P", ",".join(map(str, where["pids"])), *arguments]

    def spawn(self, command: list[str]) -> subprocess.Popen[str]:
        """Start a generator beside this process, with the same priority as the servers (ZKBENCH_BOOST)."""
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            preexec_fn=self._servers.boost,  # noqa: PLW1509 (one thread)
        )
