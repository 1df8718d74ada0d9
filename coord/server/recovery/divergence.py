"""Comparison of digests between running replicas: a replica that differs from the majority stops.

All nodes apply the same log, so after the same entry all have the same zxid and the same digest. If one node differs, a
bug, a flipped bit in its memory or a changed file has altered what clients read there. Rounds of comparison find it:

- Every `COMPARE_MS`, if an entry was applied or a peer has connected, the leader sends its digest after the last
  applied entry to every peer and asks for theirs. Under load it uses the last index at which all nodes keep a digest
  (each `NodeSettings.compare_every`th).
- A node that is asked sends its own digest at that index to every peer as soon as it has applied that index. It keeps
  the digests of the last `REMEMBERED` entries.
- Each node decides only about itself. If a majority of the voters has one digest and this node has another, this node
  stops. A majority that agrees never stops, whichever node leads or is missing. Without a majority (two voters that
  differ) no node can know which digest is right: both log the difference and continue.

Nodes log which other nodes differ; those nodes decide for themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from twisted.logger import Logger

from coord.errors import StateDiverged
from coord.raft.quorum import majority
from coord.server.peers.codec import encode_digest

log = Logger(__name__)

#: Shortest time between two rounds that the leader begins.
COMPARE_MS: Final = 1000
#: A round ends after this time even if some members have sent no digest.
PATIENCE_MS: Final = 30_000
#: Number of entries after which a node keeps its digest.
REMEMBERED: Final = 4096
#: Limit of concurrent rounds. A node far behind keeps the oldest ones, which it reaches first.
ROUNDS_MAX: Final = 16

#: (zxid, digest) after an entry.
State = tuple[int, int]


class _Round:
    """The digests received for one index."""

    def __init__(self, now_ms: int) -> None:
        self.since_ms = now_ms
        self.digests: dict[int, State] = {}
        self.is_answered = False


class DivergenceCheck:
    """One node's part in the comparison."""

    def __init__(
        self, node_id: int, send: Callable[[int, bytes], bool], now: Callable[[], State] | None = None
    ) -> None:
        """`send` is `PeerTransport.send`; `now` returns the state after the last entry, needed if `passed` is used."""
        self._id = node_id
        self._send = send
        self._now = now
        self._voters: list[int] = []
        self._members: list[int] = []
        #: By index modulo REMEMBERED: (index, zxid, digest).
        self._own: list[tuple[int, int, int]] = [(0, 0, 0)] * REMEMBERED
        self._last = 0
        #: Newest index with a digest, and the last index at the previous tick.
        self._remembered = 0
        self._seen = 0
        self._rounds: dict[int, _Round] = {}
        #: Highest index at which this node has sent its digest.
        self._answered = 0
        self._began_ms = 0
        self._began_at = 0
        self._has_newcomer = False
        #: Peers that differ and have been logged, until they agree again.
        self._logged: dict[int, None] = {}
        #: Index of the newest round in which a majority of the voters had this node's digest.
        self.agreed_index = 0

    def applied(self, index: int, zxid: int, digest: int) -> None:
        """Keep this node's state after the entry at `index`, just applied."""
        self._own[index % REMEMBERED] = (index, zxid, digest)
        self._last = self._remembered = index

    def passed(self, index: int) -> None:
        """Record that the entry at `index` is applied, without a digest: computing one per entry is too expensive."""
        self._last = index

    def tick(self, now_ms: int, *, leads: bool, voters: list[int], members: list[int]) -> None:
        """Answer and end rounds; as the leader, begin one. Raise StateDiverged."""
        self._voters = voters
        self._members = members
        rounds = self._rounds
        for index in sorted(rounds):
            found = rounds[index]
            if not found.is_answered and index <= self._last:
                self._answer(index, found)
            elif now_ms - found.since_ms > PATIENCE_MS:
                self._end(index, found)
        # Without load all nodes have their digest after the last entry; otherwise they have it only at common indexes.
        at = self._last if self._last == self._seen else self._remembered
        self._seen = self._last
        has_reason = at > self._began_at or self._has_newcomer
        if leads and has_reason and at and now_ms - self._began_ms >= COMPARE_MS:
            self._began_ms = now_ms
            self._began_at = at
            self._has_newcomer = False
            begun = self._round(at, now_ms)
            if begun is not None:
                self._answer(at, begun, asks=True)

    def peer_arrived(self) -> None:
        """Begin a round even without a new entry: a peer has connected and may have another state."""
        self._has_newcomer = True

    def take_digest(self, peer: int, index: int, zxid: int, digest: int, asks: bool, now_ms: int) -> None:
        """Handle a peer's digest after the entry at `index`. Raise StateDiverged."""
        found = self._rounds.get(index)
        if found is None:
            if not asks and index <= self._answered:
                return  # the round has ended
            found = self._round(index, now_ms)
            if found is None:
                return
        found.digests[peer] = (zxid, digest)
        if asks:
            found.is_answered = False
        if not found.is_answered and index <= self._last:
            self._answer(index, found)
        elif self._id in found.digests:
            self._evaluate(index, found)

    def _round(self, index: int, now_ms: int) -> _Round | None:
        """Return the round for this index, or None at the limit of rounds."""
        found = self._rounds.get(index)
        if found is None and len(self._rounds) < ROUNDS_MAX:
            found = self._rounds[index] = _Round(now_ms)
        return found

    def _answer(self, index: int, found: _Round, *, asks: bool = False) -> None:
        """Send this node's digest at `index`, which is applied, to every member."""
        found.is_answered = True
        self._answered = max(self._answered, index)
        if index == self._last and index != self._remembered and self._now is not None:
            self.applied(index, *self._now())
        kept, zxid, digest = self._own[index % REMEMBERED]
        if kept != index:
            # This node installed a snapshot beyond the index, or applied the index long ago.
            del self._rounds[index]
            return
        found.digests[self._id] = (zxid, digest)
        frame = encode_digest(index, zxid, digest, asks)
        for peer in self._members:
            if peer != self._id:
                self._send(peer, frame)
        self._evaluate(index, found)

    def _evaluate(self, index: int, found: _Round) -> None:
        own = found.digests[self._id]
        needed = majority(len(self._voters))
        for state in sorted(set(found.digests.values())):
            agreeing = [voter for voter in self._voters if found.digests.get(voter) == state]
            if len(agreeing) < needed:
                continue
            if state != own:
                raise StateDiverged(index, own, state, agreeing)
            self.agreed_index = max(self.agreed_index, index)
            self._logged.pop(self._id, None)
            self._log_others(index, found, own)
        if all(member in found.digests for member in self._members):
            self._end(index, found)

    def _log_others(self, index: int, found: _Round, right: State) -> None:
        for peer, state in sorted(found.digests.items()):
            if state == right:
                self._logged.pop(peer, None)
            elif peer not in self._logged:
                self._logged[peer] = None
                log.error(
                    "node {peer} differs from the majority after entry {index}: zxid {zxid:#x} digest {digest:016x},"
                    " here {own_zxid:#x} {own:016x}. Node {peer} stops itself",
                    peer=peer,
                    index=index,
                    zxid=state[0],
                    digest=state[1],
                    own_zxid=right[0],
                    own=right[1],
                )

    def _end(self, index: int, found: _Round) -> None:
        """End a round; log it if the members differ without a majority."""
        self._rounds.pop(index, None)
        states = set(found.digests.values())
        if len(states) < 2 or self._id not in found.digests or self.agreed_index >= index:
            return
        if self._id not in self._logged:
            self._logged[self._id] = None
            log.error(
                "the states of the nodes differ after entry {index} and no majority decides which is right: {states}."
                " Stop all but one of them and compare their directories: rk coord verify DIR DIR",
                index=index,
                states=_listed(found.digests.items()),
            )


def _listed(digests: Iterable[tuple[int, State]]) -> str:
    return ", ".join(f"node {peer} zxid {zxid:#x} digest {digest:016x}" for peer, (zxid, digest) in sorted(digests))
