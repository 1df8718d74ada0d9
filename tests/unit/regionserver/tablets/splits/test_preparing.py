"""Servers of one process prepare the daughters of a tablet before it is sealed, and give unused files up."""

from __future__ import annotations

import itertools
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import ensureDeferred, gatherResults

from coord.rpc.wire import RpcError
from regions.assign.resharding.book import SEAL_WITHIN_MS
from regions.assign.resharding.tablets import PREPARE_WITHIN_MS
from regions.messages import BAD_REQUEST, BUSY, PrepareRows
from regions.messages.server import ClosePurpose
from regions.records.model import RegionRecord
from regionserver.tablets.commands import PutRow
from regionserver.tablets.disk.layout import block_path
from regionserver.tablets.splits import prepared, preparing
from regionserver.tablets.upkeep import rests
from regionserver.tablets.upkeep.space import DiskSpace
from tests.support.hosts_in_process import Machine
from tests.support.reactors import PATIENCE_S, refusal, until
from tests.unit.regionserver.tablets.splits.test_split import DAUGHTERS, Splitting, run

RECORDS = [RegionRecord("table", name, *bounds) for name, bounds in DAUGHTERS.items()]


def order(machine: Machine, name: str = "one", daughters: list[RegionRecord] = RECORDS) -> PrepareRows:
    return PrepareRows(1, machine.uuid, 1, ["p"], daughters, seal=name)


async def prepare(split: Splitting, machine: Machine, name: str = "one") -> None:
    """Let a server prepare the daughters of its rows. Files without rows are not made."""
    rows = machine.running().rows_of("p")
    await until(split.reactor, lambda: rows is None or rows.state.rows >= 10, "the server has applied the rows")
    await split.work(machine).prepare(order(machine, name))


def prepared_files(machine: Machine) -> list[str]:
    return sorted(path.name for path in (machine.directory / "data").glob(".heir-*.mdb"))


async def gone(split: Splitting, machine: Machine) -> None:
    await until(split.reactor, lambda: not prepared_files(machine), "the prepared files are removed")


def test_daughters_are_made_of_the_prepared_files(tmp_path: Path, copies: list[str]) -> None:
    """Rows that were written meanwhile are in them, and all replicas are alike."""

    async def main(split: Splitting) -> None:
        for machine in split.cluster.machines:
            await prepare(split, machine)
            assert prepared_files(machine) == [".heir-A.mdb", ".heir-B.mdb"]
        await prepare(split, split.cluster.machines[0])  # by a master that has just become active
        await split.cluster.put("p", "k1", b"new")
        await split.cluster.put("p", "k99", b"new")
        await split.split()
        assert copies == []
        assert await split.cluster.get("A", "k1") == b"new"
        assert await split.cluster.get("B", "k99") == b"new"
        answer = await split.cluster.put("A", "k2", b"later")
        await split.cluster.applied("A", answer.index)
        for tablet in DAUGHTERS:
            states = [machine.running().rows_of(tablet).state for machine in split.cluster.machines]  # type: ignore[union-attr]
            assert len({(one.digest, one.rows, one.horizon_ms) for one in states}) == 1
        for machine in split.cluster.machines:
            assert prepared_files(machine) == []
            assert not split.work(machine)._preparations._works

    run(tmp_path, main)


def test_the_copy_for_daughters_rests_as_long_as_requests_wait_for_a_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without requests it does not rest, though its processor time makes the reactor's thread wait.

    Edit that makes this fail: `Preparations` does not begin the rests, or gives them another count than that of the
    host.
    """
    monkeypatch.setattr(rests, "queued_s", itertools.count().__next__)
    monkeypatch.setattr(rests, "REST_LOOK_S", 0.001)
    monkeypatch.setattr(prepared, "BATCH_ROWS", 1)
    looked = threading.Event()
    look = rests.CopyRests.look
    factors: list[float] = []

    def noted(self: rests.CopyRests, *times: Any) -> None:
        look(self, *times)
        looked.set()

    def rest(self: rests.ThreadRests) -> None:
        assert looked.wait(PATIENCE_S)
        looked.clear()
        factors.append(self._factor())

    monkeypatch.setattr(rests.CopyRests, "look", noted)
    monkeypatch.setattr(rests.ThreadRests, "rest", rest)

    async def main(split: Splitting) -> None:
        await prepare(split, split.cluster.machines[0])

    run(tmp_path, main)
    assert factors == [0.0] * 10, "no request has waited"
    factors.clear()
    looked.clear()
    monkeypatch.setattr(rests, "ASKED_MIN", 0)
    run(tmp_path / "asked", main)
    assert all(factors)


def test_a_daughter_that_is_there_is_not_prepared_again(tmp_path: Path) -> None:
    """A late order after a restart: the parent does not have its seal yet, and the daughter's replica is at work.

    Formerly the prepared files took the place of the replica's rows when the seal came.
    """

    async def main(split: Splitting) -> None:
        machine = split.cluster.machines[0]
        await split.cluster.make(["A"])
        with pytest.raises(RpcError, match="tablet A, which is to be prepared, is on this server already") as refused:
            await prepare(split, machine)
        assert refused.value.code == BUSY
        assert prepared_files(machine) == []

    run(tmp_path, main)


def test_both_daughters_are_made_at_once(tmp_path: Path) -> None:
    async def main(split: Splitting) -> None:
        machine = split.cluster.machines[0]
        await prepare(split, machine)
        index = (await split.seal()).index
        host = machine.running()
        made: list[list[str]] = []
        make = host.make

        def noted(openings: Any) -> Any:
            made.append([one.tablet for one in openings])
            return make(openings)

        host.make = noted  # type: ignore[method-assign]
        assert await gatherResults([ensureDeferred(split.inherit(machine, one, index)) for one in DAUGHTERS]) == [
            "",
            "",
        ]
        assert made == [["A", "B"]]

    run(tmp_path, main)


def test_members_that_did_not_prepare_copy_the_rows_after_the_seal(tmp_path: Path, copies: list[str]) -> None:
    """One was restarted, one was never asked, and one prepared for another attempt."""

    async def main(split: Splitting) -> None:
        first, second, third = split.cluster.machines
        await prepare(split, first)
        await first.stop()
        first.start()
        await prepare(split, third, "another")
        await split.split()
        assert sorted(copies) == ["A", "A", "A", "B", "B", "B"]
        assert await split.cluster.get("A", "k1") == b"1"
        for machine in (first, second, third):
            await gone(split, machine)

    run(tmp_path, main)


def test_prepared_files_stay_as_long_as_masters_wait_for_other_servers() -> None:
    """Otherwise the fastest servers give theirs up before the slowest one is done, and copy all rows at the seal."""
    assert preparing.KEPT_S * 1000 > PREPARE_WITHIN_MS + SEAL_WITHIN_MS


def test_prepared_files_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(split: Splitting) -> None:
        machine = split.cluster.machines[0]
        work = split.work(machine)
        await prepare(split, machine)
        await work.prepare(order(machine, "an earlier one", []))
        assert prepared_files(machine)
        await work.prepare(order(machine, daughters=[]))
        await gone(split, machine)

        await prepare(split, machine)
        monkeypatch.setattr(preparing, "KEPT_S", 0.0)
        await prepare(split, machine)
        await gone(split, machine)
        monkeypatch.undo()

        await prepare(split, machine)
        await split.seal("other")
        await gone(split, machine)
        with pytest.raises(RpcError, match="is sealed") as refused:
            await prepare(split, machine)
        assert refused.value.code == BUSY
        await split.seal("other", wanted=False)
        await until(split.reactor, lambda: not machine.running().rows_of("p").seal.is_set, "unsealed")  # type: ignore[union-attr]

        await prepare(split, machine)
        await machine.running().close("p", ClosePurpose.TOMBSTONE)
        await gone(split, machine)
        assert (await refusal(ensureDeferred(work.prepare(order(machine))), RpcError)).code == BUSY

    run(tmp_path, main)


def test_a_split_that_is_unsealed_leaves_no_file(tmp_path: Path) -> None:
    """The files are finished at the seal, and no daughter takes them."""

    async def main(split: Splitting) -> None:
        for machine in split.cluster.machines:
            await prepare(split, machine)
        await split.seal()
        for machine in split.cluster.machines:
            works = split.work(machine)._preparations._works
            await until(split.reactor, lambda: works["p"].is_finished, "the daughters' files are made")  # noqa: B023
        await split.seal(wanted=False)
        for machine in split.cluster.machines:
            folder = machine.directory / "data"
            await until(split.reactor, lambda: not [*folder.glob("[AB].*")], "the files are removed")  # noqa: B023
        assert (await split.write(split.cluster.command(PutRow("k1", b"after")))).code == 0

    run(tmp_path, main)


def test_the_rows_of_a_copied_daughter_stay_when_finished_files_are_given_up(tmp_path: Path) -> None:
    """Another server was told to copy A to this one, under the name that A's finished file has. B has no replica.

    Edit that makes this fail: `_remove` does not ask for the superblock.
    """

    async def main(split: Splitting) -> None:
        machine = split.cluster.machines[0]
        await prepare(split, machine)
        await split.seal()
        works = split.work(machine)._preparations._works
        await until(split.reactor, lambda: works["p"].is_finished, "the daughters' files are made")
        (machine.directory / block_path("A")).touch()
        await split.seal(wanted=False)
        folder = machine.directory / "data"
        await until(split.reactor, lambda: not [*folder.glob("B.*")], "the file of B is removed")
        assert (folder / "A.1.mdb").exists()
        (machine.directory / block_path("A")).unlink()

    run(tmp_path, main)


def test_a_full_disk_ends_the_split_and_not_the_tablet(tmp_path: Path) -> None:
    async def main(split: Splitting) -> None:
        machine = split.cluster.machines[0]
        split.work(machine)._preparations._space = DiskSpace(tmp_path, shutil.disk_usage(tmp_path).total)
        with pytest.raises(RpcError, match="MB free") as refused:
            await prepare(split, machine)
        assert refused.value.code == BAD_REQUEST
        await gone(split, machine)
        assert await split.cluster.get("p", "k1") == b"1"

    run(tmp_path, main)
