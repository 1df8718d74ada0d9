"""Replicas compare their states while they run: whoever differs from the majority stops.

All nodes apply the same log, so behind the same entry all have the same zxid and the same digest. If one does not, a
bug, a flipped bit in its memory or a file that was tampered with has changed what clients read there. A round finds
out:

- every `COMPARE_MS`, if something was applied or a peer has come, the leader says what it has behind the last entry it
  applied, to every peer, and asks; while entries come all the time, behind the last one whose index all remember (each
  `NodeSettings.compare_every`th);
- whoever is asked says to every peer what it has there itself, now if it has applied it already (what was remembered of
  the last `REMEMBERED` entries is kept), else as soon as it has;
- each node judges itself. If a majority of the voters has one state there and this node another, the node stops. A
  majority that agrees never stops, whoever leads and whoever is missing. Without a majority (two voters that differ)
  nobody can tell who is right: both say so in their logs and go on.

Nothing is decided about others: the log only names them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from twisted.logger import Logger

from coord.errors import StateDiverged
from coord.raft.quorum import majority
from coord.server.peers.codec import encode_digest

log = Logger(__name__)

#: The leader begins a round this often, if there is a reason.
COMPARE_MS: Final = 1000
#: A round ends after this, whoever has not spoken.
PATIENCE_MS: Final = 30_000
#: How many entries a node remembers its state behind.
REMEMBERED: Final = 4096
#: Rounds that a node keeps at a time; a node far behind keeps the oldest, which it reaches first.
ROUNDS_MAX: Final = 16

#: (zxid, digest) behind an entry.
State = tuple[int, int]


class _Round:
    """What was said about one index."""

    def __init__(self, now_ms: int) -> None:
        self.since_ms = now_ms
        self.said: dict[int, State] = {}
        self.is_answered = False


class DivergenceCheck:
    """One node's part in the comparison."""

    def __init__(
        self, node_id: int, send: Callable[[int, bytes], bool], now: Callable[[], State] | None = None
    ) -> None:
        """`send(peer, frame)` as `PeerDoor.send`; `now`: the state behind the last entry, where `passed` is used."""
        self._id = node_id
        self._send = send
        self._now = now
        self._voters: list[int] = []
        self._members: list[int] = []
        #: By index modulo REMEMBERED: (index, zxid, digest).
        self._own: list[tuple[int, int, int]] = [(0, 0, 0)] * REMEMBERED
        self._last = 0
        #: The newest index that is remembered, and the last one of the tick before.
        self._remembered = 0
        self._seen = 0
        self._rounds: dict[int, _Round] = {}
        #: Highest index that this node has spoken about.
        self._answered = 0
        self._began_ms = 0
        self._began_at = 0
        self._has_newcomer = False
        #: Peers that the log has named, until they agree again.
        self._named: dict[int, None] = {}
        #: Index of the newest round in which a majority of the voters, this node among them or not, agreed with it.
        self.agreed_index = 0

    def applied(self, index: int, zxid: int, digest: int) -> None:
        """This node's state behind the entry at `index`."""
        self._own[index % REMEMBERED] = (index, zxid, digest)
        self._last = self._remembered = index

    def passed(self, index: int) -> None:
        """The entry at `index` is applied; what the state is behind it costs too much to be asked for each."""
        self._last = index

    def tick(self, now_ms: int, *, leads: bool, voters: list[int], members: list[int]) -> None:
        """Some time has passed. Raises StateDiverged."""
        self._voters = voters
        self._members = members
        rounds = self._rounds
        for index in sorted(rounds):
            found = rounds[index]
            if not found.is_answered and index <= self._last:
                self._answer(index, found)
            elif now_ms - found.since_ms > PATIENCE_MS:
                self._end(index, found)
        # At rest all can say what they have behind the last entry; else only behind those that all remember.
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
        """A peer has (again) a connection: whatever it has is to be compared, even if nothing is ever applied again."""
        self._has_newcomer = True

    def heard(self, peer: int, index: int, zxid: int, digest: int, asks: bool, now_ms: int) -> None:
        """A peer says what it has behind the entry at `index`. Raises StateDiverged."""
        found = self._rounds.get(index)
        if found is None:
            if not asks and index <= self._answered:
                return  # that round is over
            found = self._round(index, now_ms)
            if found is None:
                return
        found.said[peer] = (zxid, digest)
        if asks:
            found.is_answered = False
        if not found.is_answered and index <= self._last:
            self._answer(index, found)
        elif self._id in found.said:
            self._judge(index, found)

    def _round(self, index: int, now_ms: int) -> _Round | None:
        """The round about this index, None if there are too many others."""
        found = self._rounds.get(index)
        if found is None and len(self._rounds) < ROUNDS_MAX:
            found = self._rounds[index] = _Round(now_ms)
        return found

    def _answer(self, index: int, found: _Round, *, asks: bool = False) -> None:
        """Say what this node has there; it has applied that much."""
        found.is_answered = True
        self._answered = max(self._answered, index)
        if index == self._last and index != self._remembered and self._now is not None:
            self.applied(index, *self._now())
        kept, zxid, digest = self._own[index % REMEMBERED]
        if kept != index:
            # It came past there with a snapshot, or long ago.
            del self._rounds[index]
            return
        found.said[self._id] = (zxid, digest)
        frame = encode_digest(index, zxid, digest, asks)
        for peer in self._members:
            if peer != self._id:
                self._send(peer, frame)
        self._judge(index, found)

    def _judge(self, index: int, found: _Round) -> None:
        own = found.said[self._id]
        needed = majority(len(self._voters))
        for state in sorted(set(found.said.values())):
            agreeing = [voter for voter in self._voters if found.said.get(voter) == state]
            if len(agreeing) < needed:
                continue
            if state != own:
                raise StateDiverged(index, own, state, agreeing)
            self.agreed_index = max(self.agreed_index, index)
            self._named.pop(self._id, None)
            self._name_others(index, found, own)
        if all(member in found.said for member in self._members):
            self._end(index, found)

    def _name_others(self, index: int, found: _Round, right: State) -> None:
        for peer, state in sorted(found.said.items()):
            if state == right:
                self._named.pop(peer, None)
            elif peer not in self._named:
                self._named[peer] = None
                log.error(
                    "node {peer} has another state than the majority behind entry {index}: zxid {zxid:#x} digest"
                    " {digest:016x}, here {own_zxid:#x} {own:016x}. It stops itself",
                    peer=peer,
                    index=index,
                    zxid=state[0],
                    digest=state[1],
                    own_zxid=right[0],
                    own=right[1],
                )

    def _end(self, index: int, found: _Round) -> None:
        """Everybody has spoken, or it took too long."""
        self._rounds.pop(index, None)
        states = set(found.said.values())
        if len(states) < 2 or self._id not in found.said or self.agreed_index >= index:
            return
        if self._id not in self._named:
            self._named[self._id] = None
            log.error(
                "the nodes' states differ behind entry {index} and no majority says which is right: {states}. Stop all"
                " but one of them and compare their directories: rk coord verify DIR DIR",
                index=index,
                states=_told(found.said.items()),
            )


def _told(said: Iterable[tuple[int, State]]) -> str:
    return ", ".join(f"node {peer} zxid {zxid:#x} digest {digest:016x}" for peer, (zxid, digest) in sorted(said))
