"""One byte is flipped in each kind of file of a stopped server: one bad file costs one tablet, and never the server.

Three servers with real files host the tablets t and u. A file that belongs to one tablet is one of t.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from coord.errors import ConfigError
from regions.messages import ClosePurpose
from tests.support.hosts_in_process import Cluster, Machine
from tests.support.reactors import in_reactor, until

NEEDLE: Final = b"needle " * 700


class Damage(NamedTuple):
    """A file below the data directory, the place of the flipped byte, and the resulting states of the tablets t and
    u."""

    path: str
    #: Bytes before the byte that is flipped; b"": the middle of the file.
    after: bytes
    t: str
    u: str = "RUNNING"
    #: A part of the reason in the report.
    reason: str = ""


CASES: Final = (
    Damage("tablet-meta/t", b"", "LOST"),
    Damage("consensus-meta/t", b"", "LOST"),
    Damage("wals/*.log", NEEDLE[:200], "LOST", reason="lost blocks"),
    Damage("data/t.1.mdb", NEEDLE[:200], "FAILED"),
    Damage("data/t.1.mdb.steady", b"", "FAILED"),
    # A count of deaths with the file open: without it every row is read.
    Damage("data/t.1.mdb.used", b"", "RUNNING"),
    Damage("quarantine/v.1/superblock", b"", "RUNNING"),
    Damage("quarantine/v.1/log", b"", "RUNNING"),
    # The head of a segment: the slots in it are those of later records as well.
    Damage("wals/*.log", b"RKW1", "RUNNING"),
    # The lower slot of two. The upper one, or the log itself, tells as much.
    Damage("log.extent", b"RKWE", "RUNNING"),
)


def flip(directory: Path, damage: Damage) -> None:
    [path] = directory.glob(damage.path)
    content = bytearray(path.read_bytes())
    at = content.index(damage.after) + len(damage.after) if damage.after else len(content) // 2
    content[at] ^= 0x01
    path.write_bytes(content)


def state_of(machine: Machine, tablet: str) -> str:
    report = machine.running().report(tablet)
    return report.state.value if report is not None else ""


async def filled(cluster: Cluster) -> Machine:
    """Make the tablets with rows, and a former replica of a third tablet. Return the first server, which is stopped."""
    cluster.start()
    await cluster.make(["t", "u", "v"])
    victim = cluster.machines[0]
    await cluster.put("u", "a", b"1")
    written = await cluster.put("u", "b", b"2")
    await cluster.applied("u", written.index)
    # A separate record without data of u.
    written = await cluster.put("t", "needle", NEEDLE)
    await cluster.applied("t", written.index)
    assert await victim.running().close("v", ClosePurpose.TOMBSTONE) == ""
    await victim.stop()
    Path(f"{victim.directory}/data/t.1.mdb.used").write_bytes(b"damaged")
    return victim


@pytest.mark.parametrize("damage", CASES, ids=lambda one: one.path)
def test_one_bad_file_costs_one_tablet(tmp_path: Path, damage: Damage) -> None:
    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path)
        victim = await filled(cluster)
        flip(victim.directory, damage)
        victim.start()
        await until(
            reactor, lambda: state_of(victim, "t") == damage.t, f"{damage.t} instead of {state_of(victim, 't')}"
        )
        await until(reactor, lambda: state_of(victim, "u") == damage.u, f"the other tablet as {damage.u}")
        assert not victim.deaths
        # The other members go on, with everything that was acknowledged.
        assert await cluster.get("t", "needle") == NEEDLE
        await cluster.put("t", "a", b"3")
        await cluster.put("u", "a", b"3")
        if damage.t in ("LOST", "FAILED"):
            report = victim.running().report("t")
            assert report is not None
            assert damage.reason in report.reason
        # A restart forgets nothing of it.
        await victim.stop()
        victim.start()
        await until(reactor, lambda: state_of(victim, "t") == damage.t, f"{damage.t} after another start")
        await until(reactor, lambda: state_of(victim, "u") == damage.u, f"the other tablet as {damage.u}")
        await cluster.stop()

    in_reactor(main)


def test_a_torn_tail_that_was_never_acknowledged_is_cut(tmp_path: Path) -> None:
    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path)
        victim = await filled(cluster)
        [segment] = (victim.directory / "wals").glob("*.log")
        content = segment.read_bytes()
        end = len(content.rstrip(b"\0"))
        # The beginning of a record that was being written when the power failed.
        torn = content[:end] + b"RKW1" + b"\x00\x00\x10\x00" + b"x" * 100
        segment.write_bytes(torn + content[len(torn) :])
        victim.start()
        for tablet in ("t", "u"):
            await until(reactor, lambda tablet=tablet: state_of(victim, tablet) == "RUNNING", f"{tablet} runs")
        assert await cluster.get("t", "needle") == NEEDLE
        await cluster.put("t", "a", b"3")
        await cluster.stop()

    in_reactor(main)


@pytest.mark.parametrize("gone", ["wals/*.log", "wals", "data", "tablet-meta", "consensus-meta"])
def test_a_server_without_its_log_or_a_folder_is_refused_with_the_command_that_helps(tmp_path: Path, gone: str) -> None:
    async def main(reactor: Any) -> None:
        cluster = Cluster(reactor, tmp_path)
        victim = await filled(cluster)
        for path in victim.directory.glob(gone):
            path.rename(tmp_path / path.name)
        with pytest.raises(ConfigError, match=f"run `rk server new-identity --data-dir {victim.directory}`"):
            victim.start()
        assert await cluster.get("t", "needle") == NEEDLE
        await cluster.stop()

    in_reactor(main)
