"""Planted bugs around disks that are lost, whole or in part (`tests.sim.store.amnesia`)."""

from __future__ import annotations

from coord.raft.leadership import Leadership
from coord.raft.progress import Progress
from coord.storage import wal as wal_module
from tests.sim.store.planted import Patch, instead
from tests.sim.store.world import Bug


class ForgottenCounted(Bug):
    """What a voter acknowledges that lost its disk counts; it only takes no part in elections."""

    number = 17
    known = "this store, found by a scripted schedule"
    favours = ("_lose_memory", "_kill", "_pause_leader", "_isolate_leader", "_partition")
    members_move = False

    def patches(self) -> list[Patch]:
        def judge(self: Leadership, peer: Progress) -> None:
            peer.counts = True

        return [instead(Leadership, "_judge", judge)]


class ShortLogTaken(Bug):
    """A log that is missing, or shorter than it was, is taken for all there ever was of it."""

    number = 17
    known = "this store, found by hand: stores that compare no lengths"
    favours = ("_lose_memory", "_kill", "_power_cut", "_isolate_leader", "_partition")
    members_move = False

    def patches(self) -> list[Patch]:
        return [instead(wal_module, "check_files", lambda *_: None), instead(wal_module, "check_end", lambda *_: None)]
