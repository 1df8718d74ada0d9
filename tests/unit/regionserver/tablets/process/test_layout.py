"""The files in the directory of a server with tablets (TC-10)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.support.hosts_in_process import Cluster
from tests.support.reactors import in_reactor

#: The permitted places of a running server's files; docs/tablets.md has the table. The directory's own files
#: (`instance.json`, `lock`) exist without tablets, too.
PLACES = (
    r"instance\.json",
    r"lock",
    r"log\.extent",
    r"tablet-meta/(t|u)",
    r"consensus-meta/(t|u)",
    r"wals/[0-9a-f]{16}\.log",
    r"data/(t|u)\.1\.mdb(-lock|\.steady|\.used)?",
)


def files_in(directory: Path) -> set[str]:
    """Return the paths of all files below a directory."""
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


def test_every_file_has_its_place_and_a_superblock_makes_the_tablet(tmp_path: Path) -> None:
    """TC-10: instance, superblocks, consensus metadata, one log, rows. A tablet exists iff its superblock does."""

    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path)
        cluster.start()
        assert all(not files_in(machine.directory / "tablet-meta") for machine in cluster.machines)
        await cluster.make(["t", "u"])
        for tablet in ("t", "u"):
            written = await cluster.put(tablet, "a", b"1")
            await cluster.applied(tablet, written.index)
        for machine in cluster.machines:
            found = files_in(machine.directory)
            strange = [path for path in found if not any(re.fullmatch(place, path) for place in PLACES)]
            missing = [place for place in PLACES if not any(re.fullmatch(place, path) for path in found)]
            assert (strange, missing) == ([], [])
            assert sorted(machine.running().replicas()) == sorted(
                path.removeprefix("tablet-meta/") for path in found if path.startswith("tablet-meta/")
            )
        # Without a superblock the other files are not a tablet: the number is burned, and the files are moved aside.
        machine = cluster.machines[0]
        await machine.stop()
        (machine.directory / "tablet-meta" / "t").unlink()
        machine.start()
        report = machine.running().report("t")
        assert report is not None
        assert report.state == "LOST"
        assert files_in(machine.directory / "quarantine" / "t.1") >= {"log", "rows.mdb"}
        await cluster.stop()

    in_reactor(main)
