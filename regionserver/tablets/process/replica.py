"""One replica in this process: its state on the disk, its open parts, and its run state."""

from __future__ import annotations

from typing import Final

from coord.storage.shared.items import RecoveredSlot
from regions.messages.server import MemberEndpoint
from regionserver.tablets.disk.consensus_meta import ConsensusMeta
from regionserver.tablets.disk.life import SERVING, RunState
from regionserver.tablets.disk.superblock import Superblock, memory_of
from regionserver.tablets.host.delivery import ReplicaStanding, State
from regionserver.tablets.host.members import endpoints_of
from regionserver.tablets.rows.tablet_rows import TabletRows

#: The answer to a message for a replica that does not run, by its run state.
_STANDS: Final = {
    RunState.STOPPING: State.RESTING,
    RunState.RESTING: State.RESTING,
    RunState.FAILED: State.FAILED,
    RunState.COPYING: State.COPYING,
    RunState.TOMBSTONE: State.DELETED,
    RunState.LOST: State.DELETED,
}


class TabletReplica:
    """The state of one tablet in this process."""

    def __init__(self, block: Superblock, meta: ConsensusMeta | None, run: RunState, reason: str = "") -> None:
        self.block = block
        self.meta = meta
        self.run = run
        #: The reason of FAILED or LOST.
        self.reason = reason
        self.rows: TabletRows | None = None
        #: The contents of the log at the start of the process; None for a replica that was made after the start.
        self.recovered: RecoveredSlot | None = None
        #: Index of the log's floor.
        self.floor = 0
        #: Index that the floor must not pass while the replica is copied from here; None without a copy.
        self.pin: int | None = None
        #: Bytes received while this replica is being copied.
        self.received = 0
        #: Whether it stands for election as soon as it is open. None: only a new replica that the tablet's name
        #: chooses.
        self.stands_first: bool | None = None
        self.is_opening = False
        self.is_steadying = False
        #: True while entries cannot be applied because the disk is full.
        self.is_full = False

    @property
    def tablet(self) -> str:
        """The tablet's name."""
        return self.block.tablet

    @property
    def number(self) -> int:
        """The member that this replica is, or was."""
        return self.block.number

    @property
    def slot(self) -> int:
        """Return the slot in the shared log; only a READY replica has one."""
        assert self.block.slot is not None, f"{self.tablet} is {self.block.data_state} and has no slot"
        return self.block.slot

    def endpoints(self) -> tuple[MemberEndpoint, ...]:
        """Return the members' servers in the recorded configuration; empty if it does not name them."""
        try:
            return endpoints_of(self.meta.members()) if self.meta is not None else ()
        except ValueError:
            return ()

    def is_serving(self) -> bool:
        """Return True if the replica takes part in its group, or is about to."""
        return self.run in SERVING

    def standing(self, slot: RecoveredSlot | None) -> ReplicaStanding | None:
        """Return the state from which messages are answered while the replica does not run, given its slot; None if it
        should run."""
        state = _STANDS.get(self.run)
        if state is None:
            return None
        if slot is not None:
            last = slot.last
            return ReplicaStanding(state, self.number, max(slot.hard_state.term, last.term), last.index, last.term)
        memory = memory_of(self.block, self.meta)
        if memory is None:
            return ReplicaStanding(state, self.number, progress=self.received)
        may_vote = self.run is RunState.TOMBSTONE and self.meta is not None
        return ReplicaStanding(
            state, self.number, memory.term, memory.last_index, memory.last_term, progress=self.received,
            may_vote=may_vote, vote=memory.vote,
        )  # fmt: skip
