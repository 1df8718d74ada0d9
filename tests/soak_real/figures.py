"""Measures the processes of a cluster, its znodes and its files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.e2e.clusters import processes_of
from tests.e2e.masters import Cluster
from tests.soak_real.judge import Name

#: Folders whose znodes have a bound of their own that a soak of hours does not reach (docs/operating.md).
BOUNDED: Final = ("requests", "history")


def of_process(pid: int) -> tuple[int, int]:
    """Return the resident bytes and the open descriptors of a process. Raise OSError if it has ended."""
    folder = Path(f"/proc/{pid}")
    pages = int((folder / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(folder / "fd"))


def of_disk(folder: Path) -> int:
    """Return the bytes on disk below a folder, without logs of processes."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += 0 if name.endswith(".log") else Path(root, name).stat().st_blocks * 512
    return total


def of_znodes(cluster: Cluster) -> dict[str, int]:
    """Return the number of znodes in each folder of the cluster, and of all but the bounded ones."""
    layout, found = cluster.layout, {}
    for name in cluster.zk.get_children(layout.root):
        stat = cluster.zk.exists(f"{layout.root}/{name}")
        found[f"/{name}"] = 0 if stat is None else stat.children_count
    facts = dict(line.split("\t", 1) for line in cluster.zk.command(b"mntr").splitlines() if "\t" in line)
    found["all others"] = int(facts["zk_znode_count"]) - sum(found[f"/{name}"] for name in BOUNDED)
    return found


def of_store(folder: Path) -> dict[str, int]:
    """Return the processes of the store's nodes, by the data directories in their command lines."""
    found = {}
    for line in processes_of(folder):
        pid, *words = line.split()
        if "coord" in words:
            found[Path(words[words.index("--data-dir") + 1]).name] = int(pid)
    return found


def measure(cluster: Cluster, pids: Mapping[str, int], folders: Mapping[str, Path]) -> dict[Name, float]:
    """Return all figures. `pids`: processes by name; a process that was started again has another name."""
    found: dict[Name, float] = {}
    for name, pid in pids.items():
        with contextlib.suppress(OSError):
            found[name, "bytes"], found[name, "descriptors"] = of_process(pid)
    for name, count in of_znodes(cluster).items():
        found[name, "znodes"] = count
    for name, folder in folders.items():
        found[f"files of {name}", "bytes"] = of_disk(folder)
    return found
