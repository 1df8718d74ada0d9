"""Two tablets of three servers in one process are sealed and become one, of prepared rows and without them.

Edits that were tried, and that a test here notices: the daughter has the rows of the first parent alone; the keys that
are written in the first parent while the second one is copied are not noted; a daughter is made as soon as one parent
is sealed; the daughter begins at the position of the first parent's seal.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import ensureDeferred
from twisted.internet.task import deferLater

from coord.rpc.wire import RpcError
from regions.messages import BUSY, PrepareRows, SealAnswer, SealTablet, TabletSealed
from regions.records.model import RegionRecord
from regions.records.resharding.parents import Parent
from regionserver.tablets.commands import DeleteRow, PutRow
from regionserver.tablets.rows.state import Identity
from regionserver.tablets.rows.tablet_rows import TabletRows
from regionserver.tablets.splits import prepared
from regionserver.tablets.splits.heirs import SealedRows, make_heir
from regionserver.tablets.splits.prepared import NotPrepared, PreparedHeirs
from regionserver.tablets.splits.work import SplitWork
from tests.support.hosts_in_process import Cluster, Machine
from tests.support.power_cut import UnsyncedDisk
from tests.support.reactors import in_reactor, until
from tests.unit.regionserver.tablets.rows.rows_file import content, entry
from tests.unit.regionserver.tablets.splits.test_sealed_rows import daughter, sealing

DAUGHTER = RegionRecord("t", "M", "", "")
NAMES = ("p", "q")


# --- files ------------------------------------------------------------------------------------------------------------


class Parents:
    """The rows of two neighbors, of ten rows each, below a server's directory."""

    def __init__(self, folder: Path, empty: tuple[int, ...] = ()) -> None:
        self.folder = folder
        (folder / "data").mkdir()
        self.path = folder / "data" / "p.1.mdb"
        self.rows = [
            TabletRows.open(str(folder / "data" / f"{name}.1.mdb"), Identity(name, 1), "b", (0, 0), disk=UnsyncedDisk())
            for name in NAMES
        ]
        self.index = [0, 0]
        for at, letter in enumerate("fs"):
            if at in empty:
                continue
            self.write(at, *(PutRow(f"{letter}{n:02}", b"%d" % n) for n in range(10)))

    def write(self, at: int, *operations: PutRow | DeleteRow) -> None:
        self.index[at] += 1
        self.rows[at].apply([entry(self.index[at], *operations)])

    def seal(self) -> None:
        for at, rows in enumerate(self.rows):
            self.index[at] += 1
            rows.apply([sealing(self.index[at])])

    @property
    def sealed(self) -> list[SealedRows]:
        return [SealedRows(one, one.seal) for one in self.rows]

    def heirs(self) -> PreparedHeirs:
        return PreparedHeirs(self.rows, self.folder, [DAUGHTER])

    def finish(self, heirs: PreparedHeirs) -> None:
        heirs.finish([one.seal for one in self.rows], [daughter(self.path, "M", "", "")], "b")

    def close(self) -> None:
        for one in self.rows:
            one.close()


@pytest.fixture
def parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parents:
    monkeypatch.setattr(prepared, "BATCH_ROWS", 3)
    return Parents(tmp_path)


def made(parents: Parents) -> tuple[Any, dict[str, bytes]]:
    """Return state and rows of the daughter, whose digest is checked."""
    path = str(parents.path.parent / "M.1.mdb")
    one = TabletRows.open(path, Identity("M", 1), "b", (max(parents.index), 1), disk=UnsyncedDisk())
    stored, counted = one.recount()
    assert stored == counted
    found = one.state, content(one)
    one.close()
    return found


def test_the_daughter_has_the_rows_of_both_parents(parents: Parents) -> None:
    """Its position is the higher one of both seals, and so is its clock."""
    parents.write(1, PutRow("z", b"last"))
    wanted = {key: value for rows in parents.rows for key, value in content(rows).items()}
    parents.seal()
    make_heir(parents.sealed, daughter(parents.path, "M", "", ""), "b")
    state, rows = made(parents)
    assert rows == wanted
    assert (state.applied_index, state.rows) == (3, 21)
    assert state.horizon_ms == max(one.state.clock_ms for one in parents.rows)
    parents.close()


@pytest.mark.parametrize("empty", [(0,), (1,), (0, 1)])
def test_tablets_that_never_had_rows_are_merged(tmp_path: Path, empty: tuple[int, ...]) -> None:
    """They have no file before the seal."""
    parents = Parents(tmp_path, empty)
    wanted = {key: value for rows in parents.rows for key, value in content(rows).items()}
    heirs = parents.heirs()
    heirs.copy(lambda: None)
    parents.seal()
    parents.finish(heirs)
    assert made(parents)[1] == wanted
    parents.close()


def test_rows_that_are_written_while_both_are_copied_are_in_the_daughter(parents: Parents) -> None:
    pauses: list[int] = []

    def rest() -> None:
        pauses.append(len(pauses))
        n = len(pauses)
        parents.write(0, PutRow("f00", b"again %d" % n), PutRow(f"f{n:02}5", b"new"), DeleteRow(f"f0{n % 9}"))
        parents.write(1, PutRow("s00", b"again %d" % n), PutRow("s09", b"behind %d" % n), DeleteRow(f"s0{n % 9}"))

    heirs = parents.heirs()
    heirs.copy(rest)
    assert len(pauses) > 5
    parents.write(0, PutRow("f04", b"later"))
    parents.write(1, PutRow("s05", b"later"))
    assert heirs.behind() == 2
    heirs.catch_up()
    parents.write(0, PutRow("f06", b"last"))
    wanted = {key: value for rows in parents.rows for key, value in content(rows).items()}
    parents.seal()
    parents.finish(heirs)
    prepared_state, rows = made(parents)
    assert rows == wanted
    make_heir(parents.sealed, daughter(parents.path, "M", "", ""), "b")
    assert made(parents) == (prepared_state, rows)
    parents.close()


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("spoil", ["a note is lost", "another seal"])
def test_files_that_may_lack_a_row_of_either_parent_are_not_used(parents: Parents, at: int, spoil: str) -> None:
    heirs = parents.heirs()
    heirs.copy(lambda: None)
    if spoil == "a note is lost":
        parents.write(at, PutRow("f03" if at == 0 else "s03", b"new"))
        parents.rows[at].notes.take()
    parents.seal()
    seals = [one.seal for one in parents.rows]
    if spoil == "another seal":
        parents.rows[at].apply([sealing(parents.index[at] + 1, is_wanted=False)])
    with pytest.raises(NotPrepared):
        heirs.finish(seals, [daughter(parents.path, "M", "", "")], "b")
    assert sorted(path.name for path in parents.path.parent.glob("*M*")) == []
    parents.close()


def test_a_preparation_that_is_given_up_late_leaves_the_notes_of_the_next(parents: Parents) -> None:
    """A thread gives it up, when the next one has begun already. Tried: without the reader's number the next one is of
    no use."""
    former, heirs = PreparedHeirs(parents.rows[1:], parents.folder, [RegionRecord("t", "A", "")]), parents.heirs()
    former.copy(lambda: None)
    heirs.copy(lambda: None)
    with pytest.raises(NotPrepared):
        former.catch_up()
    former.discard()
    parents.write(1, PutRow("s03", b"new"))
    parents.seal()
    parents.finish(heirs)
    assert made(parents)[1]["s03"] == b"new"
    parents.close()


# --- servers ----------------------------------------------------------------------------------------------------------


class Merging:
    """A cluster with tablets "p" and "q" of ten rows each, and the work on merges of its servers."""

    def __init__(self, reactor: Any, folder: Path) -> None:
        self.reactor = reactor
        self.cluster = Cluster(reactor, folder)
        self.works: dict[str, SplitWork] = {}

    async def begin(self) -> None:
        self.cluster.start()
        await self.cluster.make(NAMES)
        for number in range(10):
            await self.cluster.put("p", f"f{number}", b"%d" % number)
            await self.cluster.put("q", f"s{number}", b"%d" % number)

    def work(self, machine: Machine) -> SplitWork:
        """Return the work of the server's present process."""
        host = machine.running()
        found = self.works.get(machine.name)
        if found is None or found._host is not host:
            found = self.works[machine.name] = SplitWork(self.reactor, host, machine.directory)
        return found

    async def prepare(
        self, machine: Machine, name: str = "one", parents: tuple[str, ...] = NAMES, daughter: str = "M"
    ) -> None:
        host = machine.running()
        for tablet in NAMES:
            await until(
                self.reactor,
                lambda: (rows := host.rows_of(tablet)) is None or rows.seal.is_set or rows.state.rows >= 10,  # noqa: B023
                "the server has applied the rows",
            )
        await self.work(machine).prepare(
            PrepareRows(1, machine.uuid, 1, list(parents), [RegionRecord("t", daughter)], seal=name)
        )

    async def seal(self, tablet: str, name: str = "one", *, wanted: bool = True) -> TabletSealed:
        """Seal a tablet as a master does: ask its leader until that has an answer."""
        waiting = (SealAnswer.NOT_LEADER, SealAnswer.STARTED, SealAnswer.NOT_READY)
        while True:
            machine = await self.cluster.leader(tablet)
            answer = await self.work(machine).seal(SealTablet(1, machine.uuid, 1, tablet, name, wanted))
            if answer.answer not in waiting:
                return answer
            await deferLater(self.reactor, 0.01)

    async def seal_both(self) -> tuple[Parent, ...]:
        return tuple([Parent(tablet, (await self.seal(tablet)).index) for tablet in NAMES])

    async def inherit(self, machine: Machine, parents: tuple[Parent, ...]) -> str:
        """Make the daughter's replica on a server, and host it."""
        number = self.cluster.machines.index(machine) + 1
        why = await self.work(machine).inherit(self.cluster.opening("M", number), parents)
        return why or await machine.running().begin("M")

    async def check(self) -> None:
        """Check that the daughter has all rows, takes writes, and has the same rows everywhere."""
        for number in range(10):
            assert await self.cluster.get("M", f"f{number}") == b"%d" % number
            assert await self.cluster.get("M", f"s{number}") == b"%d" % number
        answer = await self.cluster.put("M", "f1", b"new")
        await self.cluster.applied("M", answer.index)
        states = [machine.running().rows_of("M").state for machine in self.cluster.machines]  # type: ignore[union-attr]
        assert len({(one.digest, one.rows, one.horizon_ms) for one in states}) == 1

    async def stop(self) -> None:
        for work in self.works.values():
            work.stop()
        await self.cluster.stop()


def run(tmp_path: Path, main: Any) -> None:
    async def whole(reactor: Any) -> None:
        merging = Merging(reactor, tmp_path)
        await merging.begin()
        await main(merging)
        await merging.stop()

    in_reactor(whole)


def test_two_tablets_become_one(tmp_path: Path, copies: list[str]) -> None:
    """Two servers have prepared the daughter, one was never asked; all are alike, also after a restart."""

    async def main(merge: Merging) -> None:
        first, second, third = merge.cluster.machines
        await merge.prepare(first)
        await merge.prepare(second)
        parents = await merge.seal_both()
        for machine in (first, second, third):
            assert await merge.inherit(machine, parents) == ""
        assert copies == ["M"]
        await merge.check()
        for machine in merge.cluster.machines:
            assert [*(machine.directory / "data").glob(".heir-*")] == []
            await machine.stop()
        merge.cluster.start()
        assert await merge.cluster.get("M", "f1") == b"new"
        assert await merge.cluster.get("M", "s1") == b"1"

    run(tmp_path, main)


def test_the_daughter_waits_for_both_seals(tmp_path: Path) -> None:
    """A daughter that was made after only one seal would lack rows that the other parent acknowledges later."""

    async def main(merge: Merging) -> None:
        machine = merge.cluster.machines[0]
        index = (await merge.seal("p")).index
        last = await merge.cluster.put("q", "s1", b"1")
        making = ensureDeferred(merge.inherit(machine, (Parent("p", index), Parent("q", last.index + 1))))
        await until(merge.reactor, lambda: machine.running().rows_of("p").seal.is_set, "sealed")  # type: ignore[union-attr]
        assert not making.called
        other = (await merge.seal("q")).index
        assert other == last.index + 1
        assert await making == ""
        for one in merge.cluster.machines[1:]:
            assert await merge.inherit(one, (Parent("p", index), Parent("q", other))) == ""
        await merge.check()

    run(tmp_path, main)


def test_a_merge_of_which_one_parent_was_sealed_is_unsealed(tmp_path: Path) -> None:
    """Both tablets accept writes again, no prepared file is left, and the next attempt succeeds."""

    async def main(merge: Merging) -> None:
        for machine in merge.cluster.machines:
            await merge.prepare(machine)
        await merge.seal("q")
        await merge.seal("q", wanted=False)
        for machine in merge.cluster.machines:
            folder = machine.directory / "data"
            await until(merge.reactor, lambda: not [*folder.glob(".heir-*")], "the files are removed")  # noqa: B023
        await merge.cluster.put("p", "f1", b"1")
        await merge.cluster.put("q", "s1", b"1")
        parents = tuple([Parent(tablet, (await merge.seal(tablet, "two")).index) for tablet in NAMES])
        for machine in merge.cluster.machines:
            assert await merge.inherit(machine, parents) == ""
        await merge.check()

    run(tmp_path, main)


def test_one_work_at_a_time_uses_the_rows_of_a_tablet(tmp_path: Path) -> None:
    """The notes of changed keys have one reader. Tried: work is looked for by its first parent alone."""

    async def main(merge: Merging) -> None:
        machine = merge.cluster.machines[0]
        works = merge.work(machine)._preparations._works
        await merge.prepare(machine, "split", ("q",), "A")
        await merge.prepare(machine, "merge")
        assert list(works) == ["p"]
        await merge.prepare(machine, "another split", ("q",), "B")
        assert list(works) == ["q"]
        works["q"].is_finishing = True  # a thread makes the daughters' files
        with pytest.raises(RpcError, match="is being given up") as refused:
            await merge.prepare(machine, "merge again")
        assert refused.value.code == BUSY
        works["q"].is_finishing = False

    run(tmp_path, main)
