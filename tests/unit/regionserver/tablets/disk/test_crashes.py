"""The power fails between any two steps on a tablet's files, and in the middle of each: the decision of the next
start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from coord.errors import CorruptRecord
from coord.raft.membership import Configuration
from coord.storage.records import LogItem
from coord.storage.shared.items import Position, RecoveredSlot
from regionserver.tablets.copying.merge import SourceMeta, merged
from regionserver.tablets.disk import superblock
from regionserver.tablets.disk.consensus_meta import ConsensusMeta
from regionserver.tablets.disk.exported_log import read_log
from regionserver.tablets.disk.layout import TEMPORARY, block_path, meta_path, parse_rows_name, rows_path
from regionserver.tablets.disk.life import DataState, RunState
from regionserver.tablets.disk.startup import Decision
from regionserver.tablets.disk.steps import (
    Beginning,
    FillSlot,
    copy_begun,
    copy_ended,
    copy_merged,
    copy_slot,
    creation,
    deletion,
    forgetting,
    giving_up,
)
from regionserver.tablets.disk.superblock import Memory, Superblock, encode_block, memory_of
from tests.unit.regionserver.tablets.disk.crashes import (
    ROWS,
    STEADY_POINT,
    LogServer,
    PowerCut,
    Server,
    SlotStore,
    cut_everywhere,
)
from tests.unit.regionserver.tablets.disk.examples import MEMBERS, TABLET, meta, ready

#: The memory in the slot of `Server.lives`.
PROMISED: Final = Memory(term=5, vote=2, last_term=4, last_index=30)


def lives(server: Server) -> None:
    server.lives()


def nothing(_server: Server) -> None:
    pass


def create(server: Server) -> None:
    server.files.carry_out(creation(ready(), meta()))


def delete(server: Server) -> None:
    server.files.carry_out(deletion(ready(), PROMISED, "removed", 2000))


def deleted(server: Server) -> None:
    server.lives()
    delete(server)


#: The source of a copy: in a later term than the tombstone; its rows end at entry 40, its log at entry 45. When the
#: copy began its members were those of entry 12; at the end of the rows they are those of entry 38, which the log
#: behind the rows does not have.
SOURCE: Final = SourceMeta(6, 1, 12, MEMBERS.encode())
SOURCE_AT_ROWS: Final = SourceMeta(6, 5, 38, Configuration([1, 2, 3, 4]).encode())
FLOOR: Final = Position(40, 5)
BEHIND: Final = [LogItem(6, index, 0, b"entry %d" % index) for index in range(41, 46)]
SLOT: Final = 17


def block_of(server: Server) -> Superblock:
    block = server.files.read_block(TABLET)
    assert isinstance(block, Superblock)
    return block


def begin_copy(server: Server) -> None:
    server.files.carry_out(copy_begun(superblock.copying(block_of(server), 2, "peer", 3000)))
    server.write_rows(block_of(server).generation)


def copy(server: Server) -> None:
    """Carry out all steps of a copy, as the destination does."""
    server.files.carry_out(copy_begun(superblock.copying(block_of(server), 2, "peer", 3000)))
    fetch(server)


def copy_first(server: Server) -> None:
    """The same, onto a server that has nothing of the tablet."""
    server.files.carry_out(copy_begun(superblock.first_copy(ready(memory=None), 3)))
    fetch(server, first=SOURCE_AT_ROWS)


def fetch(server: Server, *, first: SourceMeta = SOURCE) -> None:
    """`first`: the source's answer at the beginning of the copy."""
    block = block_of(server)
    memory = memory_of(block, server_meta(server))
    written, at_rows = (merged(TABLET, 2, memory, one) for one in (first, SOURCE_AT_ROWS))
    server.files.carry_out(copy_merged(block, written))
    fetch_rows(server, block.generation)
    server.files.carry_out(copy_slot(block, SLOT, at_rows, written, FLOOR.index, FLOOR.term))
    server.files.carry_out([FillSlot(SLOT, block.generation, BEHIND[:3])])
    server.files.carry_out([FillSlot(SLOT, block.generation, BEHIND[3:])])
    server.files.carry_out(copy_ended(superblock.copied(block, SLOT, 4000)))


def fetch_rows(server: Server, generation: int) -> None:
    server.write_rows(generation)


def server_meta(server: Server) -> ConsensusMeta | None:
    if meta_path(TABLET) not in server.disk.files:
        return None
    found = server.files.read_meta(TABLET)
    assert isinstance(found, ConsensusMeta)
    return found


def copying(server: Server) -> None:
    deleted(server)
    begin_copy(server)


def give_up(server: Server) -> None:
    block = server.files.read_block(TABLET)
    assert isinstance(block, Superblock)
    server.files.carry_out(giving_up(block, [], [block.generation], "it failed", 4000))


def forget(server: Server) -> None:
    block = server.files.read_block(TABLET)
    assert isinstance(block, Superblock)
    server.files.carry_out(forgetting(block))


def flip(path: str) -> Callable[[Server], None]:
    """Return a live replica with a damaged file."""

    def prepare(server: Server) -> None:
        server.lives()
        server.disk.flip(path, 20, 3)

    return prepare


def lose(path: str) -> Callable[[Server], None]:
    def prepare(server: Server) -> None:
        server.lives()
        server.disk.lose(path)

    return prepare


def start(server: Server) -> None:
    server.start()


def only(decisions: list[Decision]) -> Decision | None:
    assert len(decisions) <= 1
    return decisions[0] if decisions else None


def at_rest(server: Server, where: str) -> tuple[RunState | None, Superblock | None]:
    """Start, and check that a second start has nothing left to do."""
    first = only(server.start())
    second = only(server.start())
    run = first.run if first else None
    if first is None or second is None:
        assert run is None, where
        assert second is None, where
    else:
        assert (second.run, second.effects) == (first.run, []), where
    block = server.files.read_block(TABLET) if block_path(TABLET) in server.disk.files else None
    assert block is None or isinstance(block, Superblock), where
    assert (block is None) == (run is None), where
    names = server.disk.files
    assert not [name for name in names if TEMPORARY in name], where
    generations = {parsed.generation for parsed in map(parse_rows_name, server.disk.names("data")) if parsed}
    if block is not None and block.data_state is DataState.READY:
        assert generations <= {block.generation}, where
        assert list(server.live()) == [block.slot], where
    else:
        assert (generations, server.live()) == (set(), {}), where
    return run, block


def all_bytes(server: Server, where: str, *, is_copied: bool = False) -> None:
    """Check that rows and log of the replica are in their place or in quarantine; those of a replica that was copied
    over are in quarantine."""
    contents = server.contents()
    assert ROWS in contents.values(), where
    assert STEADY_POINT in contents.values(), where
    if is_copied or not server.live():
        logs = [path for path in contents if path.startswith("quarantine/") and path.endswith("/log")]
        assert [len(read_log(server.disk, path).entries) for path in logs] == [30], where
        found = read_log(server.disk, logs[0])
        assert (found.term, found.vote, found.last_term()) == (5, 2, 4), where


def test_a_creation_is_there_or_has_promised_nothing() -> None:
    seen = set()
    for server, where, done in cut_everywhere(nothing, create):
        run, block = at_rest(server, where)
        seen.add(run)
        if run is None:
            assert not done, where
        else:
            assert block == ready(), where
            assert run is RunState.ASLEEP, where
    assert seen == {None, RunState.ASLEEP}


def test_a_daughter_of_a_split_is_there_or_has_promised_nothing() -> None:
    """Its slot begins behind the parent's last entry. Fails with LOST if such a slot counts as one that has promised
    something: kill -9 of all servers between slot and superblock would then lose the daughter's rows."""
    seen = set()

    def inherit(server: Server) -> None:
        server.files.carry_out(creation(ready(), meta(), Beginning(4, 40)))

    for server, where, done in cut_everywhere(nothing, inherit):
        run, _ = at_rest(server, where)
        seen.add(run)
        assert run is not RunState.LOST, where
        assert run is not None or not done, where
    # Here the rows were not made before, so they are missing.
    assert seen == {None, RunState.FAILED}


def test_a_deletion_happens_or_not_and_loses_nothing() -> None:
    seen = set()
    for server, where, done in cut_everywhere(lives, delete):
        run, block = at_rest(server, where)
        assert block is not None
        seen.add(run)
        if run is RunState.ASLEEP:
            assert not done, where
            assert block == ready(), where
        else:
            assert run is RunState.TOMBSTONE, where
            assert (block.memory, block.generation, block.number) == (PROMISED, 4, 2), where
            assert meta_path(TABLET) in server.disk.files, where
            saved = server.contents()
            assert saved[f"{block.quarantine}/superblock"] == encode_block(ready()), where
            assert saved[f"{block.quarantine}/consensus-meta"] == saved[meta_path(TABLET)], where
        all_bytes(server, where)
    assert seen == {RunState.ASLEEP, RunState.TOMBSTONE}


def test_a_start_that_is_cut_short_again_and_again_comes_to_an_end() -> None:
    """A deletion is cut at each step, and so is the next start."""
    for server, where, _ in cut_everywhere(lives, delete, seeds=2):
        for steps in range(40):
            server.cut_power_after(steps)
            try:
                server.start()
                break
            except PowerCut:
                pass
            finally:
                server.power_is_back()
        run, block = at_rest(server, f"{where}, then in each start")
        assert run in (RunState.ASLEEP, RunState.TOMBSTONE), where
        assert block is not None
        assert block.memory == (PROMISED if run is RunState.TOMBSTONE else None), where
        all_bytes(server, where)


def test_a_deletion_that_a_start_resumes_survives_a_power_cut() -> None:
    """The process is killed after it has renamed the superblock and before it syncs the folder. The next start resumes
    the deletion, and then the power fails. Before the fix the superblock was READY again, although the rows had been
    moved into the quarantine."""
    for server, where, _ in cut_everywhere(lives, delete, is_kill=True):
        server.start()
        server.disk.power_cut()
        run, block = at_rest(server, where)
        assert block is not None
        assert run in (RunState.ASLEEP, RunState.TOMBSTONE), where
        if run is RunState.TOMBSTONE:
            assert block.memory == PROMISED, where
        all_bytes(server, where)


def test_a_copy_that_was_cut_short_leaves_the_tombstone() -> None:
    for server, where, _ in cut_everywhere(deleted, begin_copy):
        run, block = at_rest(server, where)
        assert run is RunState.TOMBSTONE, where
        assert block is not None
        assert block.memory == PROMISED, where
        all_bytes(server, where)


def check_copied(server: Server, block: Superblock, where: str) -> None:
    """Check a complete copy: rows, log, promises and members."""
    members = server_meta(server)
    assert members is not None, where
    assert (members.number, members.config_index, members.members().voters) == (2, 38, [1, 2, 3, 4]), where
    (slot,) = server.live().values()
    assert (slot.number, slot.generation) == (2, block.generation), where
    assert (slot.hard_state.term, slot.hard_state.vote) == (6, 0), where
    assert (slot.floor, slot.last) == (FLOOR, Position(45, 6)), where
    assert [one.index for one in slot.entries] == [41, 42, 43, 44, 45], where
    assert bytes(server.disk.files[rows_path(TABLET, block.generation)].content) == ROWS, where


def test_a_copy_is_complete_or_leaves_the_tombstone_with_its_memory() -> None:
    seen = set()
    for server, where, done in cut_everywhere(deleted, copy, seeds=4):
        run, block = at_rest(server, where)
        assert block is not None, where
        seen.add(run)
        if run is RunState.ASLEEP:
            check_copied(server, block, where)
        else:
            assert run is RunState.TOMBSTONE, where
            assert not done, where
            # A vote of term 5 stays, and no vote of term 6 was given: the term may have been learned.
            assert block.memory == PROMISED, where
            found = memory_of(block, server_meta(server))
            assert found is not None, where
            assert (found.term, found.vote) in ((5, 2), (6, 0)), where
            assert (found.last_term, found.last_index) == (4, 30), where
        all_bytes(server, where, is_copied=run is RunState.ASLEEP)
    assert seen == {RunState.ASLEEP, RunState.TOMBSTONE}


def test_a_first_copy_is_complete_or_leaves_a_tombstone_without_memory() -> None:
    seen = set()
    for server, where, done in cut_everywhere(nothing, copy_first, seeds=4):
        run, block = at_rest(server, where)
        seen.add(run)
        if run is RunState.ASLEEP:
            assert block is not None, where
            check_copied(server, block, where)
        else:
            assert not done, where
            assert run in (None, RunState.TOMBSTONE), where
            # The number has promised nothing. The tombstone says that it was begun, and never votes.
            assert block is None or (block.memory, block.highest_number) == (None, 2), where
    assert seen == {None, RunState.ASLEEP, RunState.TOMBSTONE}


def test_giving_a_copy_up_can_be_cut_short() -> None:
    for server, where, _ in cut_everywhere(copying, give_up):
        run, block = at_rest(server, where)
        assert run is RunState.TOMBSTONE, where
        assert block is not None
        assert (block.memory, block.is_lost) == (PROMISED, False), where
        all_bytes(server, where)


def test_a_tombstone_is_forgotten_or_kept_whole() -> None:
    seen = set()
    for server, where, done in cut_everywhere(deleted, forget):
        run, block = at_rest(server, where)
        seen.add(run)
        if run is None:
            assert block is None
        else:
            assert not done, where
            assert block is not None
            assert block.memory == PROMISED, where
        all_bytes(server, where)
    assert seen == {None, RunState.TOMBSTONE}


@pytest.mark.parametrize(
    "prepare",
    [flip(block_path(TABLET)), lose(block_path(TABLET)), flip(meta_path(TABLET)), lose(meta_path(TABLET))],
    ids=["superblock flipped", "superblock lost", "metadata flipped", "metadata lost"],
)
def test_burning_can_be_cut_short_and_keeps_every_file(prepare: Callable[[Server], None]) -> None:
    for server, where, _ in cut_everywhere(prepare, start):
        kept = [
            content for path, content in server.contents().items() if path in (block_path(TABLET), meta_path(TABLET))
        ]
        run, block = at_rest(server, where)
        assert run is RunState.LOST, where
        assert block is not None
        assert (block.is_lost, block.memory, block.number) == (True, None, 2), where
        assert block.generation > 3, where
        all_bytes(server, where)
        # The damaged file itself is evidence.
        assert set(kept) <= {*server.contents().values()}, where


def test_damaged_rows_cost_no_memory_and_stay_where_they_are() -> None:
    server = Server(1)
    flip(rows_path(TABLET, 3))(server)
    before = server.contents()
    run, block = at_rest(server, "damaged rows")
    assert (run, block) == (RunState.FAILED, ready())
    assert server.contents() == before


# --- with the real shared log -----------------------------------------------------------------------------------------


def test_a_creation_over_the_real_log() -> None:
    seen = set()
    for server, where, done in cut_everywhere(nothing, create, seeds=3, kind=LogServer):
        run, block = at_rest(server, where)
        seen.add(run)
        assert (run, block) == ((None, None) if run is None else (RunState.ASLEEP, ready())), where
        assert run or not done, where
    assert seen == {None, RunState.ASLEEP}


def test_a_deletion_over_the_real_log() -> None:
    seen = set()
    for server, where, done in cut_everywhere(lives, delete, seeds=3, kind=LogServer):
        run, block = at_rest(server, where)
        assert block is not None
        seen.add(run)
        assert block.memory == (PROMISED if run is RunState.TOMBSTONE else None), where
        assert run is RunState.TOMBSTONE or (run is RunState.ASLEEP and not done), where
        all_bytes(server, where)
    assert seen == {RunState.ASLEEP, RunState.TOMBSTONE}


def test_burning_over_the_real_log() -> None:
    for server, where, _ in cut_everywhere(flip(block_path(TABLET)), start, seeds=3, kind=LogServer):
        run, block = at_rest(server, where)
        assert run is RunState.LOST, where
        assert block is not None
        assert (block.is_lost, block.number) == (True, 2), where
        assert block.generation > 3, where
        all_bytes(server, where)


def test_a_copy_over_the_real_log() -> None:
    seen = set()
    for server, where, done in cut_everywhere(deleted, copy, seeds=2, kind=LogServer):
        run, block = at_rest(server, where)
        assert block is not None, where
        seen.add(run)
        if run is RunState.ASLEEP:
            check_copied(server, block, where)
        else:
            assert (run, block.memory, done) == (RunState.TOMBSTONE, PROMISED, False), where
        all_bytes(server, where, is_copied=run is RunState.ASLEEP)
    assert seen == {RunState.ASLEEP, RunState.TOMBSTONE}


def test_a_damaged_log_costs_the_tablet_its_number() -> None:
    """The damage is in the entries of the slot; the log names the slot, and drops it."""
    server = LogServer(1)
    server.lives()
    server.disk.power_cut()
    log = next(path for path in server.disk.files if path.startswith("wals/"))
    server.disk.flip(log, server.contents()[log].index(b"entry 17"), 1)
    run, block = at_rest(server, "damaged log")
    assert run is RunState.LOST
    assert block is not None
    assert "damage" in block.reason or "lost" in block.reason, block.reason
    assert ROWS in server.contents().values()
    assert server.live() == {}


def test_a_slot_that_cannot_be_read_does_not_stop_the_server() -> None:
    def unreadable() -> list[LogItem]:
        raise CorruptRecord("wals/1.log", 100, "a record", "damage")

    server = Server(1)
    server.lives()
    assert isinstance(server.slots, SlotStore)
    former = server.slots.slots[9]
    server.slots.slots[9] = RecoveredSlot(
        TABLET, 2, 3, former.hard_state, former.floor, former.last, "bytes 1 to 9 are damaged", unreadable
    )
    run, block = at_rest(server, "unreadable slot")
    assert run is RunState.LOST
    assert block is not None
    assert block.reason == "bytes 1 to 9 are damaged"
