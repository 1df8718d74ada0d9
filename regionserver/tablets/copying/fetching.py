"""The destination of a copy: one thread fetches rows and log, and carries out steps 2 to 5 (`disk/steps.py`).

    source's term and members   ->  consensus metadata merged                                 step 2
    chunks of rows              ->  data/<tablet>.<generation>.mdb, checked, steady           step 3
    members at the rows' entry  ->  consensus metadata, slot begun there
    chunks of entries           ->  the slot, durable                                         step 4
                                    superblock READY                                          step 5

A failure at any point leaves the superblock COPYING. Then the caller, or the next start, gives the copy up.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from coord import kill_points
from coord.errors import CoordError, RemoteProtocolError, StorageError
from regionserver.tablets.copying import merge, wire
from regionserver.tablets.copying.jobs import Job
from regionserver.tablets.copying.merge import SourceMeta
from regionserver.tablets.copying.messages import CopyState
from regionserver.tablets.disk import steps, superblock
from regionserver.tablets.disk.consensus_meta import ConsensusMeta
from regionserver.tablets.disk.layout import rows_path
from regionserver.tablets.disk.superblock import Memory, Superblock
from regionserver.tablets.links.channel import Channel, ChannelLost
from regionserver.tablets.rows.hot_copy import adopt
from regionserver.tablets.rows.received import ReceivedRows
from regionserver.tablets.rows.state import Identity, RowsState
from regionserver.tablets.upkeep.rests import ThreadRests
from regionserver.tablets.upkeep.space import DiskSpace

T = TypeVar("T")

#: First and longest pause before a source at its limit of copies is asked again, and the number of attempts.
WAIT_S: Final = 0.1
WAIT_MAX_S: Final = 1.0
WAITS_MAX: Final = 120


class CopyFailed(CoordError):  # noqa: N818 - says what has happened
    """The copy has failed, and nothing of it may be used."""


class CopyCanceled(CopyFailed):
    """An operator, or the end of the server, has ended the copy."""


class CopyPlan(NamedTuple):
    """A copy whose superblock is COPYING."""

    block: Superblock
    #: This server's record of the replica number, None without one.
    memory: Memory | None
    #: Member number of the source.
    source: int
    slot: int
    space: DiskSpace
    boot: str


class CopiedReplica(NamedTuple):
    """The files of a complete copy; its superblock is READY."""

    block: Superblock
    meta: ConsensusMeta


class CopySteps(NamedTuple):
    """The parts of the host that the thread of a copy uses. All functions block, and may be called on the thread."""

    #: Opens the connection to the source.
    dial: Callable[[], Channel]
    #: Carries out steps on files, in order; each is durable on return.
    carry_out: Callable[[Sequence[steps.Effect]], None]
    #: Carries out steps on files that may become durable in any order; all of them are on return.
    carry_out_at_once: Callable[[Sequence[steps.Effect]], None]
    #: Moves the job to another state.
    enter: Callable[[CopyState, str], None]
    wall_ms: Callable[[], int]
    #: Seconds of rest for each second for which the thread has had a processor.
    rest_factor: Callable[[], float]


class CopyThread:
    """One copy, on its thread."""

    def __init__(self, plan: CopyPlan, job: Job, host: CopySteps) -> None:
        self._plan = plan
        self._job = job
        self._host = host
        self._channel: Channel | None = None
        self._rests = ThreadRests(host.rest_factor)

    def run(self) -> CopiedReplica:
        """Fetch everything; return the READY replica. Raise CoordError, OSError or ValueError."""
        self._rests.begin()
        channel, meta = self._begin()
        try:
            copied = self._fetch_log(channel, self._fetch_rows(channel), meta)
            with contextlib.suppress(ChannelLost):  # the copy is complete; the source notices the end as well
                channel.send(wire.ASK, wire.encode(wire.EndCopy()))
        finally:
            channel.close()
        return copied

    def abort(self) -> None:
        """Make the thread raise at its next step. May be called on any thread."""
        self._job.is_canceled = True
        if self._channel is not None:
            self._channel.abort()

    # --- steps --------------------------------------------------------------------------------------------------------

    def _begin(self) -> tuple[Channel, ConsensusMeta]:
        """Begin the session. Step 2. Return the connection, and the consensus metadata that were written."""
        plan = self._plan
        asked = wire.BeginCopy(plan.block.tablet, plan.source, plan.block.number)
        channel = self._channel = self._host.dial()
        try:
            for attempt in range(WAITS_MAX):
                self._check()
                begun = self._ask(channel, asked, wire.CopyBegun, may_wait=True)
                if begun is not None:
                    self._check_range(begun)
                    self._job.expected = begun.rows_bytes
                    self._check_room(begun.rows_bytes)
                    meta = self._merged(
                        SourceMeta(begun.term, begun.config_term, begun.config_index, begun.configuration)
                    )
                    self._host.carry_out(steps.copy_merged(plan.block, meta))
                    return channel, meta
                if not attempt:
                    self._host.enter(CopyState.WAITING, "the source serves as many copies as it may")
                time.sleep(min(WAIT_S * 2**attempt, WAIT_MAX_S))
        except BaseException:
            channel.close()
            raise
        channel.close()
        raise CopyFailed("the source serves as many copies as it may")

    def _fetch_rows(self, channel: Channel) -> RowsState:
        """Receive the rows, check them, and make them durable. Step 3."""
        plan = self._plan
        self._host.enter(CopyState.ROWS, "")
        path = os.fspath(plan.space.directory / rows_path(plan.block.tablet, plan.block.generation))
        channel.send(wire.ASK, wire.encode(wire.FetchRows()))
        rows = ReceivedRows(path)
        try:
            sent = self._receive_rows(channel, rows)
            kill_points.reached("rows received")
            rows.sync()
            kill_points.reached("rows synced")
            self._check()
            self._host.enter(CopyState.CHECKING, "")
            counted = rows.check(self._check)
        finally:
            rows.close()
        self._rests.rest()
        identity = Identity(plan.block.tablet, plan.block.generation)
        state = adopt(path, identity, sent.generation, plan.boot, counted)
        kill_points.reached("rows checked")
        self._rests.rest()
        return state

    def _receive_rows(self, channel: Channel, rows: ReceivedRows) -> wire.RowsSent:
        while True:
            chunk = self._next(channel, wire.RowsSent)
            if isinstance(chunk, wire.RowsSent):
                if chunk.size != rows.size:
                    raise CopyFailed(f"{rows.size} bytes of rows were received, {chunk.size} were sent")
                return chunk
            rows.write(chunk.data, chunk.crc)

    def _fetch_log(self, channel: Channel, state: RowsState, written: ConsensusMeta) -> CopiedReplica:
        """Receive the entries behind the rows, and finish. Steps 4 and 5. `written`: the consensus metadata of step
        2."""
        plan, host = self._plan, self._host
        block = plan.block
        index, term = state.applied
        host.enter(CopyState.LOG, "")
        begins = self._ask(channel, wire.FetchLog(index, term), wire.LogBegins)
        assert begins is not None, "an answer that must not wait"
        meta = self._merged(SourceMeta(*_fields(begins)))
        # These steps have no effect before the superblock is READY, so they become durable only with the first entries.
        waiting = steps.copy_slot(block, plan.slot, meta, written, index, term)
        last_index, last_term = index, term
        while True:
            chunk = self._next(channel, wire.LogSent)
            if isinstance(chunk, wire.LogSent):
                break
            entries = wire.decode_entries(chunk.data, last_index)
            host.carry_out_at_once([*waiting, steps.FillSlot(plan.slot, block.generation, entries)])
            waiting = []
            last_index, last_term = entries[-1].index, entries[-1].term
        if waiting:
            host.carry_out_at_once(waiting)
        if (chunk.last_index, chunk.last_term) != (last_index, last_term):
            raise CopyFailed(f"the log was received up to entry {last_index}, it was sent up to {chunk.last_index}")
        why = merge.log_objection(plan.memory, last_term, last_index)
        if why:
            raise CopyFailed(why)
        self._check()
        ready = superblock.copied(block, plan.slot, host.wall_ms())
        host.carry_out(steps.copy_ended(ready))
        return CopiedReplica(ready, meta)

    # --- the connection -----------------------------------------------------------------------------------------------

    def _ask(self, channel: Channel, asked: wire.Ask, expected: type[T], *, may_wait: bool = False) -> T | None:
        """Ask, and return the answer. With `may_wait`, return None if the source would answer later."""
        channel.send(wire.ASK, wire.encode(asked))
        kind, body = channel.receive()
        if kind != wire.ANSWER:
            raise RemoteProtocolError(f"a frame of kind {kind} instead of an answer")
        answer = wire.decode_answer(body)
        if isinstance(answer, wire.CopyRefused) and answer.may_wait and may_wait:
            return None
        return _expected(answer, expected)

    def _next(self, channel: Channel, ends: type[T]) -> wire.SentChunk | T:
        """Return the next chunk, or the answer that ends the chunks."""
        self._check()
        self._rests.rest()
        kind, body = channel.receive()
        if kind == wire.CHUNK:
            chunk = wire.open_chunk(body)
            self._job.received += len(chunk.data)
            return chunk
        if kind != wire.ANSWER:
            raise RemoteProtocolError(f"a frame of kind {kind} instead of a chunk")
        return _expected(wire.decode_answer(body), ends)

    def _check(self) -> None:
        if self._job.is_canceled:
            raise CopyCanceled("the copy was canceled")

    def _check_range(self, begun: wire.CopyBegun) -> None:
        block = self._plan.block
        own = (block.table, block.start_key, block.end_key, block.hash_buckets)
        theirs = (begun.table, begun.start_key, begun.end_key, begun.hash_buckets)
        if own != theirs:
            raise CopyFailed(f"the source's tablet {block.tablet} has table and range {theirs}, this one has {own}")

    def _check_room(self, size: int) -> None:
        why = self._plan.space.objection(size)
        if why:
            raise CopyFailed(why)

    def _merged(self, source: SourceMeta) -> ConsensusMeta:
        block = self._plan.block
        try:
            return merge.merged(block.tablet, block.number, self._plan.memory, source)
        except ValueError as error:
            raise StorageError(f"the source's configuration of tablet {block.tablet} is malformed: {error}") from error


def _fields(answer: wire.LogBegins) -> tuple[int, int, int, bytes]:
    return answer.term, answer.config_term, answer.config_index, answer.configuration


def _expected(answer: wire.Answer, expected: type[T]) -> T:
    if isinstance(answer, expected):
        return answer
    if isinstance(answer, wire.CopyRefused):
        raise CopyFailed(f"the source ends the copy: {answer.reason}")
    raise RemoteProtocolError(f"the source answers {type(answer).__name__} instead of {expected.__name__}")
