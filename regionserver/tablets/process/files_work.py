"""Work on the files of replicas, on its own thread: making first replicas, resting, deleting.

Steps and their order are those of `disk/steps.py`. Changes of slots go through the running log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from coord.errors import CoordError
from regions.messages.server import ClosePurpose
from regionserver.tablets.disk import steps, superblock
from regionserver.tablets.disk.consensus_meta import ConsensusMeta
from regionserver.tablets.disk.files import TabletFiles
from regionserver.tablets.disk.layout import is_tablet
from regionserver.tablets.disk.life import DataState
from regionserver.tablets.disk.startup import Unreadable
from regionserver.tablets.disk.superblock import Memory, Superblock
from regionserver.tablets.host.members import first_configuration
from regionserver.tablets.process.interfaces import ReplicaOpening
from regionserver.tablets.process.log_thread import RunningSlots


class MadeReplica(NamedTuple):
    """Result of one opening: the files, or the reason for the failure."""

    block: Superblock | None
    meta: ConsensusMeta | None
    reason: str = ""


class FilesWork:
    """The steps, as functions for the files' thread. They do not raise: they return the reason of a failure."""

    def __init__(self, files: TabletFiles, slots: RunningSlots, server: str) -> None:
        self._files = files
        self._slots = slots
        self._server = server

    def make(self, openings: Sequence[tuple[ReplicaOpening, int]], at_ms: int) -> list[MadeReplica]:
        """Make first replicas together; each opening names the slot of its replica.

        Consensus metadata of all of them become durable, then all slots by one record of the log, then all superblocks.
        """
        made: list[MadeReplica] = []
        former = self._files.former_generations()
        for opening, slot in openings:
            try:
                # A first replica gets a generation that no file of the tablet has.
                generation = 1 + former.get(opening.tablet, 0)
                made.append(MadeReplica(*self._plan(opening, slot, generation, at_ms)))
            except (CoordError, OSError, ValueError, AssertionError) as error:
                made.append(MadeReplica(None, None, _why(error)))
        plans = [steps.creation(one.block, one.meta) for one in made if one.block is not None and one.meta is not None]
        try:
            self._files.carry_out_together(plans)
        except (CoordError, OSError) as error:
            # A half-made replica has promised nothing. The next attempt, or the next start, sets its files aside.
            return [one if one.reason else MadeReplica(None, None, _why(error)) for one in made]
        return made

    def _plan(
        self, opening: ReplicaOpening, slot: int, generation: int, at_ms: int
    ) -> tuple[Superblock, ConsensusMeta]:
        tablet = opening.tablet
        if not is_tablet(tablet):
            raise ValueError(f"{tablet!r} is not the name of a tablet")
        own = [one for one in opening.initial if one.number == opening.number]
        if [one.uuid for one in own] != [self._server]:
            raise ValueError(f"member {opening.number} of tablet {tablet} is not on this server, {self._server}")
        configuration = first_configuration(opening.initial)
        block = Superblock(
            self._server,
            tablet,
            DataState.READY,
            opening.number,
            opening.number,
            generation,
            slot,
            opening.table,
            opening.start_key,
            opening.end_key,
            opening.hash_buckets,
            created_ms=at_ms,
            changed_ms=at_ms,
        )
        return block, ConsensusMeta(tablet, opening.number, 0, 0, configuration.encode())

    def read(self, tablet: str) -> tuple[Superblock | Unreadable, ConsensusMeta | Unreadable | None]:
        """Return superblock and consensus metadata of a tablet whose files were intact at the start."""
        block = self._files.read_block(tablet)
        try:
            return block, self._files.read_meta(tablet)
        except CoordError:
            return block, None

    def enable(self, block: Superblock, at_ms: int) -> Superblock | str:
        """Let a resting replica run again. Return its superblock, or why not."""
        after = superblock.enabled(block, at_ms)
        return after if not (why := self._carry_out([steps.WriteBlock(after)])) else why

    def write_meta(self, meta: ConsensusMeta) -> str:
        """Make consensus metadata durable: a committed configuration, or the vote of a tombstone. Return "" or the
        reason of a failure."""
        return self._carry_out([steps.WriteMeta(meta)])

    def write_metas(self, metas: Sequence[ConsensusMeta]) -> list[str]:
        """Make consensus metadata of several tablets durable together. Return "" or why not, for each."""
        try:
            self._files.carry_out_together([[steps.WriteMeta(meta)] for meta in metas])
        except (CoordError, OSError):
            # One bad file must not keep the others from being written.
            return [self.write_meta(meta) for meta in metas]
        return [""] * len(metas)

    def close(self, block: Superblock, purpose: ClosePurpose, reason: str, at_ms: int) -> Superblock | str | None:
        """Carry out an order to close on a replica that has stopped. Return the resulting superblock, None if the
        tablet does not exist here any more, or the reason of a failure."""
        if purpose is ClosePurpose.REST:
            after = superblock.resting(block, at_ms)
            return self._carry_out([steps.WriteBlock(after)]) or after
        if block.data_state is DataState.READY:
            assert block.slot is not None
            contents = self._slots.contents(block.slot)
            if contents is None:
                return f"the shared log has no slot {block.slot} for tablet {block.tablet}"
            state, last = contents.hard_state, contents.last
            memory = Memory(state.term, state.vote, last.term, last.index)
            why = self._carry_out(steps.deletion(block, memory, reason, at_ms))
            if why:
                return why
            block = superblock.deleted(block, memory, reason, at_ms)
        if purpose is ClosePurpose.TOMBSTONE:
            return block
        return self._carry_out(steps.forgetting(block)) or None

    def begin_copy(self, tablet: str, number: int, source: str, fresh: Superblock, at_ms: int) -> Superblock | str:
        """Carry out step 1 of a copy: a superblock COPYING. Return it, or the reason of a failure.

        `fresh` is the superblock for a server that has nothing of the tablet, without its generation.
        """
        try:
            if self._files.has_block(tablet):
                before = self._files.read_block(tablet)
                if isinstance(before, Unreadable):
                    return f"the superblock of tablet {tablet} is damaged: {before.why}"
                after = superblock.copying(before, number, source, at_ms)
            else:
                generation = 1 + self._files.former_generations().get(tablet, 0)
                after = superblock.first_copy(fresh, generation)
        except (CoordError, ValueError) as error:
            return str(error)
        return self._carry_out(steps.copy_begun(after)) or after

    def give_up(self, block: Superblock, slot: int | None, reason: str, at_ms: int) -> Superblock | str:
        """Remove the files of a copy that has failed. Return the superblock of the tombstone, or why not.

        `slot` is the slot that was taken for the copy; the copy may have ended before it began the slot.
        """
        contents = None if slot is None else self._slots.contents(slot)
        names = []
        if slot is not None and contents is not None:
            assert (contents.tablet, contents.generation) == (block.tablet, block.generation), (
                f"slot {slot} is another's"
            )
            names.append(steps.SlotName(slot, block.generation))
        effects = steps.giving_up(block, names, [block.generation], reason, at_ms)
        return self._carry_out(effects) or superblock.given_up(block, reason, at_ms)

    def carry_out(self, effects: Sequence[steps.Effect]) -> None:
        """Carry out steps of a copy. Raise StorageError, OSError."""
        self._files.carry_out(effects)

    def _carry_out(self, effects: Sequence[steps.Effect]) -> str:
        try:
            self._files.carry_out(effects)
        except (CoordError, OSError) as error:
            return _why(error)
        return ""


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename or 'the data directory'} cannot be written: {error.strerror}"
    return str(error)
