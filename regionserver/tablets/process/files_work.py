"""Work on the files of replicas, on its own thread: making first replicas, resting, deleting.

Steps and their order are those of `disk/steps.py`. Changes of slots go through the running log.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from coord.errors import CoordError, StorageError
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

#: Interval at which a waiting copy checks whether the server ends.
_LOOK_S: Final = 0.2


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
        """Make first replicas together. Each opening names the slot of its replica.

        Consensus metadata of all of them become durable, then all slots by one record of the log, then all superblocks.
        """
        made: list[MadeReplica] = []
        former = self._files.former_generations()
        for opening, slot in openings:
            try:
                # A first replica gets a generation that no file of the tablet has.
                generation = opening.generation or 1 + former.get(opening.tablet, 0)
                made.append(MadeReplica(*self._plan(opening, slot, generation, at_ms)))
            except (CoordError, OSError, ValueError, AssertionError) as error:
                made.append(MadeReplica(None, None, _why(error)))
        plans = [
            steps.creation(one.block, one.meta, opening.beginning)
            for one, (opening, _) in zip(made, openings, strict=True)
            if one.block is not None and one.meta is not None
        ]
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

    def next_generation(self, tablet: str) -> int:
        """Return the generation of the first replica of a tablet that is made here next."""
        return 1 + self._files.former_generations().get(tablet, 0)

    def has_block(self, tablet: str) -> bool:
        """Return True if the tablet has a superblock."""
        return self._files.has_block(tablet)

    def had_replica(self, tablet: str) -> bool:
        """Return True if files of a former replica of the tablet show that its number has been a member."""
        return self._files.had_replica(tablet)

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
            removed = self._delete(block, reason, at_ms)
            if isinstance(removed, str):
                return removed
            block = removed
        if purpose is ClosePurpose.TOMBSTONE:
            return block
        return self._carry_out(steps.forgetting(block)) or None

    def _delete(self, block: Superblock, reason: str, at_ms: int) -> Superblock | str:
        """Carry out a deletion, or the rest of one that the disk has cut short. Return the superblock of the tombstone,
        or the reason of a failure."""
        assert block.slot is not None
        contents = self._slots.contents(block.slot)
        try:
            found = self._files.read_block(block.tablet)
        except CoordError as error:
            return str(error)
        if isinstance(found, Superblock) and found.data_state is DataState.DELETED:
            slots = [] if contents is None else [steps.SlotName(block.slot, block.generation)]
            return self._carry_out(steps.clearing(found, slots, [block.generation])) or found
        if contents is None:
            return f"the shared log has no slot {block.slot} for tablet {block.tablet}"
        state, last = contents.hard_state, contents.last
        # A daughter of a split has no term until a leader has reached it.
        memory = Memory(max(state.term, last.term), state.vote, last.term, last.index)
        why = self._carry_out(steps.deletion(block, memory, reason, at_ms))
        return why or superblock.deleted(block, memory, reason, at_ms)

    def begin_copy(self, tablet: str, number: int, source: str, fresh: Superblock, at_ms: int) -> Superblock | str:
        """Carry out step 1 of a copy: a superblock COPYING. Return it, or the reason of a failure.

        `fresh` is the superblock, without a generation, for a server without files of the tablet.
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

    def carry_out_together(self, plans: Sequence[Sequence[steps.Effect]]) -> None:
        """Carry out steps of several copies together. Raise StorageError, OSError."""
        self._files.carry_out_together(plans)

    def _carry_out(self, effects: Sequence[steps.Effect]) -> str:
        try:
            self._files.carry_out(effects)
        except (CoordError, OSError) as error:
            return _why(error)
        return ""


class _WaitingStep:
    """A step of one copy that waits for the files' thread."""

    def __init__(self, effects: Sequence[steps.Effect]) -> None:
        self.effects = effects
        self.error: Exception | None = None
        self.ended = threading.Event()


class SharedSteps:
    """Steps of several copies at once: those that wait together are carried out together, and share their syncs.

    Each copy is of another tablet, and waits for one step before it asks for the next. So every step of a copy is
    durable before its next one.
    """

    def __init__(self, work: FilesWork, submit: Callable[[Callable[[], None]], None], has_ended: Callable[[], bool]):
        """`submit` runs a function on the files' thread, and may be called on any thread. `has_ended`: the server
        ends, and nothing is carried out any more."""
        self._work = work
        self._submit = submit
        self._has_ended = has_ended
        self._lock = threading.Lock()
        self._waiting: list[_WaitingStep] = []

    def carry_out(self, effects: Sequence[steps.Effect]) -> None:
        """Carry out steps of one copy, on its thread; each is durable before the next. Raise StorageError, OSError."""
        for effect in effects:
            self.carry_out_at_once([effect])

    def carry_out_at_once(self, effects: Sequence[steps.Effect]) -> None:
        """Carry out steps of one copy that may become durable in any order. Raise StorageError, OSError."""
        step = _WaitingStep(effects)
        with self._lock:
            self._waiting.append(step)
            is_first = len(self._waiting) == 1
        if is_first:
            self._submit(self._run)
        while not step.ended.wait(_LOOK_S):
            if self._has_ended():
                raise StorageError("the server ends")
        if step.error is not None:
            raise step.error

    def _run(self) -> None:
        """Carry out the waiting steps, on the files' thread."""
        with self._lock:
            taken, self._waiting = self._waiting, []
        error = self._error_of([effect for step in taken for effect in step.effects])
        for step in taken:
            # Find out which step has failed: carry each one out by itself. Effects that succeeded may be repeated.
            step.error = error if error is None or len(taken) == 1 else self._error_of(step.effects)
            step.ended.set()

    def _error_of(self, effects: Sequence[steps.Effect]) -> Exception | None:
        try:
            self._work.carry_out_together([[effect] for effect in effects])
        except Exception as error:  # the copy's thread raises it
            return error
        return None


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename or 'the data directory'} cannot be written: {error.strerror}"
    return str(error)
