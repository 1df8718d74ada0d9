"""An attacker at the peer ports who sends Raft messages in the name of nodes that no node can have sent.

At any moment, in any role, a node must reject each of them and change nothing. So histories are the same with forgeries
and without, and every seed has them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from coord.errors import RemoteProtocolError
from coord.raft.bounds import TERM_LEAP_MAX, TERM_MAX
from coord.raft.core import RaftCore
from coord.raft.membership import Configuration
from coord.raft.messages import (
    APPEND,
    APPEND_RESP,
    COMMIT,
    HEARTBEAT,
    HEARTBEAT_RESP,
    NORMAL,
    PRE_VOTE,
    READ_INDEX_RESP,
    SNAPSHOT,
    Entry,
    Message,
    RaftSnapshot,
)
from coord.server.peers import codec, raft_frames
from simulation.engine.chance import SeededRandom
from simulation.engine.history import Violation
from simulation.engine.timeline import SECOND
from tests.sim.store.world import World

#: Pause between two forged messages in the store.
EVERY_US: Final = SECOND // 5

Forge = Callable[[RaftCore, int, SeededRandom], Message | None]


def _leap(core: RaftCore, src: int, chance: SeededRandom) -> Message | None:
    """Return a message with a term far beyond the node's own. A node in term 0 accepts any."""
    if core.term == 0:
        return None
    kind = PRE_VOTE + chance.below(READ_INDEX_RESP)
    term = chance.pick([core.term + TERM_LEAP_MAX + 1, TERM_MAX - 1, TERM_MAX, (1 << 63) - 2])
    meta = RaftSnapshot(1, 1, Configuration([1, 2, 3])) if kind == SNAPSHOT else None
    return Message(kind, src, core.id, term, granted=chance.happens(0.5), snapshot=meta)


def _usurp(core: RaftCore, src: int, chance: SeededRandom) -> Message | None:
    """Return a message of another leader in the node's own term."""
    return Message(chance.pick([APPEND, HEARTBEAT, COMMIT]), src, core.id, core.term) if core.leadership else None


def _acknowledge(core: RaftCore, src: int, chance: SeededRandom) -> Message | None:
    """Return an acknowledgment beyond the log, or for a round of reads that was never begun."""
    if core.leadership is None:
        return None
    if chance.happens(0.5):
        beyond = core.log.last + 1 + chance.below(1000)
        return Message(APPEND_RESP, src, core.id, core.term, match_index=beyond, granted=True)
    return Message(HEARTBEAT_RESP, src, core.id, core.term, context=core.leadership.reads.newest + 1)


def _rewrite(core: RaftCore, src: int, chance: SeededRandom) -> Message | None:
    """Return an append with a different entry in place of a committed one."""
    log = core.log
    if log.commit <= log.offset or core.leadership is not None:
        return None
    entry = Entry(core.term + 1, log.commit, NORMAL, b"forged")
    before = max(0, log.term_at(log.commit - 1))
    return Message(APPEND, src, core.id, core.term + 1, log.commit - 1, before, entries=[entry])


def _gap(core: RaftCore, src: int, chance: SeededRandom) -> Message | None:
    """Return an append with a gap between its entries."""
    last = core.log.last
    entries = [Entry(core.term, last + 1, NORMAL, b""), Entry(core.term, last + 2 + chance.below(5), NORMAL, b"")]
    if entries[1].index == last + 2:
        entries[1].term += 1
    return Message(APPEND, src, core.id, core.term, last, core.log.last_term, entries=entries)


_FORGERIES: Final[list[Forge]] = [_leap, _usurp, _acknowledge, _rewrite, _gap]


class Forger:
    """Sends forged messages to the nodes of one world, with its own random source."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = SeededRandom(world.seed * 1_000_033)

    def begin(self) -> None:
        """Send forged messages from the first second on."""
        self._world.at(SECOND, self._forge)

    def _forge(self) -> None:
        world = self._world
        world.at(world.now + 1 + self._chance.below(2 * EVERY_US), self._forge)
        processes = [process for process in world.running() if process.node.failure is None]
        if not processes:
            return
        node = self._chance.pick(processes).node
        core = node.core
        src = self._chance.pick([i for i in range(1, 10) if i != core.id])
        message = self._chance.pick(_FORGERIES)(core, src, self._chance)
        if message is None:
            return
        before = _state(core)
        frame = raft_frames.encode_raft(message)
        try:
            node.peer_frame(src, 1, codec.RAFT, frame, 5, len(frame))
        except RemoteProtocolError:
            pass
        else:
            raise Violation(f"{core.id} took a forged message of kind {message.kind}, term {message.term}")
        if _state(core) != before:
            raise Violation(f"{core.id} has changed by a forged message of kind {message.kind}, term {message.term}")
        world.counts["forged_message_refused"] += 1


def _state(core: RaftCore) -> tuple[object, ...]:
    log = core.log
    progress = (
        [(p.match, p.next, p.last_received) for p in core.leadership.peers] if core.leadership is not None else []
    )
    return core.term, core.vote, core.role, core.leader, core.elapsed, log.last, log.commit, log.stable, progress
