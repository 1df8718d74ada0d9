"""Planted bugs around disks that are lost, whole or in part (`tests.sim.store.amnesia`).

One bug is not here: the acknowledgments of a wiped voter count. Random faults that lose one disk at a time did not find
it within 120 seeds. The simulation of bare Raft finds it, and so does a scripted schedule of whole nodes
(tests/unit/coord/server/test_amnesia.py).
"""

from __future__ import annotations

from coord.storage import wal as wal_module
from tests.sim.store.world import Bug
from tests.support.planted import Patch, instead


class ShortLogTaken(Bug):
    """A missing or shortened log is regarded as complete."""

    number = 17
    known = "this store, found by hand: stores that compare no lengths"
    favours = ("_lose_memory", "_kill", "_power_cut", "_isolate_leader", "_partition")
    members_move = False

    def patches(self) -> list[Patch]:
        return [instead(wal_module, "check_files", lambda *_: None), instead(wal_module, "check_end", lambda *_: None)]
