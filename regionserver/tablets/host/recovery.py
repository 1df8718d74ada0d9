"""Restores a group from the shared log and the rows after its process has ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from coord.env import Rng
from coord.errors import StorageError
from coord.raft.core import RaftCore
from coord.raft.membership import Configuration, decode_configuration
from coord.raft.messages import CONFIG, NOOP, Entry, HardState, RaftConfig, RaftSnapshot
from coord.storage.shared.items import Position, RecoveredSlot
from regionserver.tablets.host.group import Group, GroupTracer, ReplicaIdentity, raft_settings
from regionserver.tablets.host.members import servers_of
from regionserver.tablets.host.requests import InFlight

#: Applied entries kept in memory after a start. Members that need more get them from the disk.
KEEP_AT_START: Final = 100


def reopen(
    replica: ReplicaIdentity,
    slot: RecoveredSlot,
    applied: Position,
    config: Configuration,
    servers: Mapping[int, str],
    rng: Rng,
    *,
    config_id: tuple[int, int] = (0, 0),
    settings: RaftConfig | None = None,
    in_flight: InFlight | None = None,
    tracer: GroupTracer | None = None,
    core_class: Callable[..., RaftCore] = RaftCore,
) -> Group:
    """Return the group of a replica whose slot is whole.

    `applied` is the position of the rows, `config` the configuration in the consensus metadata, with its id. A later
    configuration in the log takes precedence; it is written to the metadata before the log may drop its entry.
    `servers`: the members' servers, for configurations that do not name them.

    Raise StorageError if the slot is damaged or belongs to another replica, or if rows and log contradict each other.
    """
    name = f"replica {replica.number} of tablet {replica.tablet}"
    if slot.damage is not None:
        raise StorageError(f"{name} has lost a part of its log: {slot.damage}")
    if (slot.tablet, slot.number, slot.generation) != (replica.tablet, replica.number, replica.generation):
        raise StorageError(
            f"{name}, generation {replica.generation}, has slot {replica.slot}, which belongs to number {slot.number}"
            f" of {slot.tablet}, generation {slot.generation}"
        )
    if not slot.floor.index <= applied.index <= slot.last.index:
        raise StorageError(
            f"the rows of {name} are at index {applied.index}, its log holds {slot.floor.index} to {slot.last.index}"
        )
    noted = config_id[1]
    entries = [Entry(item.term, item.index, item.kind, item.data) for item in slot.entries]
    own = slot.floor.term if applied.index == slot.floor.index else entries[applied.index - slot.floor.index - 1].term
    if own != applied.term:
        raise StorageError(
            f"the rows of {name} have applied entry {applied.index} of term {applied.term}, its log has one of {own}"
        )
    for entry in entries:
        if entry.kind == CONFIG and config_id[1] < entry.index <= applied.index:
            config, config_id = decode_configuration(entry.data), (entry.term, entry.index)
    if slot.floor.index > 0:
        # The core's log takes its base position from this entry, so that a member whose log ends at the floor can be
        # served. With entry 1 as the base, the core only lacks a leader's first entry, which is a no-op.
        entries.insert(0, Entry(slot.floor.term, slot.floor.index, NOOP, b""))
    # Applied entries stay on the disk, except a few. The first one kept is only a position.
    kept = max(0, applied.index - entries[0].index + 1 - KEEP_AT_START) if entries else 0
    core = core_class(
        replica.number,
        settings or raft_settings(),
        rng,
        RaftSnapshot(applied.index, applied.term, config),
        # The slot of a daughter of a split has no term yet, and no vote.
        HardState(max(slot.hard_state.term, slot.last.term), slot.hard_state.vote),
        entries[kept:],
        config_id=config_id,
    )
    group = Group(
        replica,
        core,
        servers_of(core.configs.current) or servers,
        in_flight=in_flight,
        tracer=tracer,
        noted_config=noted,
    )
    group.memory.on_disk(entries[: kept + 1])
    return group
