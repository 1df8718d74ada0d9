"""Amnesia: a node restarts without a part of its disk, or without all of it.

Any one disk may be lost at any time, while the other nodes are paused, cut off, down or have torn writes. A second disk
is lost only when the first one has been replaced: its node counts again, with a new memory. The same holds while a late
starter of a new store waits to be added, because its disk looks like a wiped one. No acknowledged write may be lost in
any order of events, and the store must have a majority again at the end. So no disk is lost where recovery would be
impossible for any store:

- fewer than three voters, or a change of the members that is not committed: the last majority may need this disk
  (for the same reason operators change no members while a disk has damage that its node has not found yet);
- a node that never had data, beside one that is emptied: no other node could tell it that the store had data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from coord.server.membership.joining import read_memory
from coord.server.recovery.startup import WAL_FOLDER
from coord.storage.extent import NAME as EXTENT
from tests.sim.store.operators import Operator

if TYPE_CHECKING:
    from collections.abc import Iterable

    from simulation.engine.chance import SeededRandom
    from tests.sim.store.clients import Client
    from tests.sim.store.world import Host, World

#: The kind of loss: the directory, the log, the end of its last file, or any one file.
HARMS: Final = ("directory", "log", "tail", "file")


def may_lose(world: World, clients: Iterable[Client], host: Host) -> bool:
    """Return True if the store must survive the loss of this disk now."""
    config = world.check.config()
    if not config.is_voter(host.id) or len(config.voters) < 3 or host.is_flipped or not world.check.configs:
        return False
    if is_change_under_way(world, clients):
        return False
    return all(_spares_another(each, host) for each in world.hosts.values() if config.is_voter(each.id))


def is_change_under_way(world: World, clients: Iterable[Client]) -> bool:
    """Return True if a change of the members is requested or not committed: the last majority may need any disk."""
    if any(isinstance(client, Operator) and client.link is not None and client.link.pending for client in clients):
        return True
    for each in world.hosts.values():
        process = each.process
        newest = each.config_index if process is None else process.node.core.configs.newest_index()
        if newest > world.check.config_index or (process is not None and process.node.membership.is_busy):
            return True
    return False


def _spares_another(each: Host, host: Host) -> bool:
    """Return True if voter `each` is intact, so that `host` may lose its disk."""
    if each.is_flipped or each.is_odd:
        return False
    if each is host:
        # A late starter that waits to be added does not count as a second lost disk. A damaged disk loses no more.
        return each.lost_memory == 0 or each.is_whole()
    return each.is_whole() and each.has_held()


def _may_be_lost(name: str) -> bool:
    return "/" in name or name in ("memory", "joining", EXTENT)


def lose(world: World, host: Host, chance: SeededRandom) -> None:
    """Stop the machine and remove the part of the disk that `chance` selects."""
    harm = chance.pick(list(HARMS))
    if host.process is not None:
        host.process.power_cut()
    host.disk.power_cut()
    world.counts["amnesia"] += 1
    world.counts[f"lost_{harm}"] += 1
    disk = host.disk
    host.lost_memory = read_memory(disk)
    host.must_forget = harm == "directory"
    names = sorted(disk.files)
    segments = [name for name in names if name.startswith(f"{WAL_FOLDER}/")]
    if harm == "directory":
        had_joined = host.joins
        host.wipe()
        host.joins = had_joined or world.check.has_moved()
    elif harm == "log":
        for name in segments:
            disk.lose(name)
    elif harm == "tail" and segments:
        size = disk.files[segments[-1]].size()
        cut = min(size, chance.pick([1 + chance.below(60), size // 2, 1 + chance.below(size + 1)]))
        disk.shorten(segments[-1], size - cut)
    elif harm == "file" and (files := [name for name in names if _may_be_lost(name)]):
        lost = chance.pick(files)
        world.note(f"{host.id} loses {lost}")
        disk.lose(lost)
    if harm != "directory":
        host.is_flipped = True
    world.note(f"{host.id} loses {harm}")
    host.restart_later()
