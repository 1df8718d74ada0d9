"""A group is reopened from its log and rows, or rejected with the reason."""

from __future__ import annotations

from typing import Any

import pytest

from coord.errors import StorageError
from coord.raft.membership import Configuration
from coord.raft.messages import APPEND, NORMAL, Entry, Message
from coord.raft.messages import CONFIG as CONFIG_ENTRY
from coord.storage.records import HardStateItem, LogItem
from coord.storage.shared.items import BEGINNING, Floor, Position, RecoveredSlot
from regionserver.tablets.host.group import Group, ReplicaIdentity
from regionserver.tablets.host.recovery import reopen
from simulation.engine.chance import SeededRandom

CONFIG = Configuration([1, 2, 3])
SERVERS = {1: "s1", 2: "s2", 3: "s3"}
REPLICA = ReplicaIdentity("t", 4, 2, 1)


def slot(first: int = 1, last: int = 5, floor: Position = BEGINNING, **changes: Any) -> RecoveredSlot:
    """Return a slot with entries of term 2."""
    entries = [LogItem(2, index, NORMAL, b"%d" % index) for index in range(first, last + 1)]
    fields: dict[str, Any] = {
        "tablet": "t",
        "number": 1,
        "generation": 2,
        "hard_state": HardStateItem(7, 3),
        "floor": floor,
        "last": Position(last, 2) if entries else floor,
        "load": lambda: entries,
        **changes,
    }
    return RecoveredSlot(**fields)


def opened(recovered: RecoveredSlot, applied: Position) -> Group:
    return reopen(REPLICA, recovered, applied, CONFIG, SERVERS, SeededRandom(1))


@pytest.mark.parametrize("applied", [0, 1, 4, 5])
def test_a_group_goes_on_where_its_rows_are(applied: int) -> None:
    group = opened(slot(), Position(applied, 2 if applied else 0))
    core = group.core
    core.validate()
    assert (core.term, core.vote, core.log.last, core.log.stable) == (7, 3, 5, 5)
    assert group.applied_index == core.log.applying == core.log.commit == applied


def test_a_group_goes_on_behind_a_floor() -> None:
    group = opened(slot(first=4, last=6, floor=Position(3, 1)), Position(3, 1))
    assert (group.core.log.offset, group.core.log.last, group.applied_index) == (3, 6, 3)
    group = opened(slot(first=4, last=6, floor=Position(3, 1)), Position(5, 2))
    assert (group.core.log.last, group.applied_index) == (6, 5)
    group.core.validate()


def test_a_configuration_that_is_in_the_log_alone_is_written_before_the_log_drops_it() -> None:
    """The server died between the commit of the configuration and its write to the consensus metadata."""
    change = Configuration([1, 2, 3], [4])
    recovered = slot(load=lambda: [*entries[:2], LogItem(2, 3, CONFIG_ENTRY, change.encode()), *entries[3:]])
    entries = slot().entries
    group = opened(recovered, Position(5, 2))
    floors: list[Floor] = []
    group.steady(5, floors)
    assert not floors
    found = []
    for now in range(1, 60):  # until the member stands for election
        group.tick(now)
        found.append(group.collect().committed)
    committed = next((one for one in found if one is not None), None)
    assert committed is not None
    assert (committed.index, committed.config) == (3, change)
    group.noted(3)
    group.steady(5, floors)
    assert [one.index for one in floors] == [5]


def test_the_metadata_never_precede_the_log() -> None:
    """The others have committed a configuration that is not durable here. After a power cut the metadata named it, and
    the log ended before it."""
    change = Configuration([1, 2, 3], [4])
    group = opened(slot(), Position(5, 2))
    entry = Entry(8, 6, CONFIG_ENTRY, change.encode())
    group.step(Message(APPEND, 2, 1, 8, prev_index=5, prev_term=2, commit=6, entries=[entry]))
    got = group.collect()
    assert group.core.log.commit == 6
    assert got.committed is None
    group.persisted(group.write_ready)
    committed = group.collect().committed
    assert committed is not None
    assert (committed.index, committed.config) == (6, change)


def test_a_new_replica_begins_at_nothing() -> None:
    group = opened(slot(first=1, last=0, hard_state=HardStateItem(0, 0)), BEGINNING)
    assert (group.core.term, group.core.log.last) == (0, 0)


@pytest.mark.parametrize("applied", [Position(3, 1), Position(5, 2)])
def test_a_member_whose_log_ends_at_the_floor_can_be_served(applied: Position) -> None:
    log = opened(slot(first=4, last=6, floor=Position(3, 1)), applied).core.log
    assert log.term_at(3) == 1
    assert [entry.index for entry in log.entries_from(4, 1000)] == [4, 5, 6]


@pytest.mark.parametrize(
    ("recovered", "applied", "why"),
    [
        (slot(damage="bytes 10 to 20"), Position(3, 2), "lost a part of its log: bytes 10 to 20"),
        (slot(tablet="u"), Position(3, 2), "belongs to number 1 of u"),
        (slot(number=2), Position(3, 2), "belongs to number 2"),
        (slot(generation=1), Position(3, 2), "generation 1"),
        (slot(), Position(6, 2), "at index 6, its log holds 0 to 5"),
        (slot(first=4, floor=Position(3, 1)), Position(2, 1), "at index 2, its log holds 3 to 5"),
        (slot(), Position(3, 1), "entry 3 of term 1, its log has one of 2"),
        (slot(first=4, floor=Position(3, 1)), Position(3, 2), "entry 3 of term 2, its log has one of 1"),
    ],
)
def test_what_does_not_fit_is_refused(recovered: RecoveredSlot, applied: Position, why: str) -> None:
    with pytest.raises(StorageError, match=why):
        opened(recovered, applied)
