"""Clients of a tablet: they put, delete, compare and set, and read; they retry, change the server, and give up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from regionserver.tablets.commands import (
    CONDITION_FAILED,
    DONE,
    CompareAndSet,
    DeleteRow,
    KvCommand,
    Operation,
    PutRow,
    WriteOutcome,
    encode,
)
from regionserver.tablets.host.requests import Fate, TabletAnswer
from simulation.checks.linearizable import Access, KeyOperation
from simulation.engine.history import Violation
from simulation.tablets.server import SimServer
from simulation.tablets.world import World

#: Keys of one tablet: few, so that several clients use the same key.
KEYS: Final = ("a", "b")
#: Time after which an unanswered attempt is repeated at another server.
TIMEOUTS_US: Final = (120_000, 300_000, 800_000)
#: Clients of every fifth seed send stale reads too, with these bounds: shorter than most faults, and longer than some.
STALE_SEEDS: Final = 5
STALE_MS: Final = (50, 200, 1000)
#: The tablet's time when a write began, as clients send it. Results are kept for ten minutes, longer than any history.
BEGAN_MS: Final = 1


@dataclass(slots=True, eq=False)
class SimRequest:
    """One attempt of one operation at one server."""

    client: SimClient
    number: int
    attempt: int
    key: str
    tablet: str
    #: The lowest index that a read may see.
    floor: int = 0

    def answered(self, server: SimServer, answer: TabletAnswer) -> None:
        """Handle the server's answer."""
        self.client.on_answer(server, self, answer)

    def read(self, value: bytes | None) -> None:
        """Handle the server's answer to a read."""
        self.client.on_read(self, value)

    def sealed(self) -> None:
        """Handle the refusal of a read by a sealed tablet."""
        self.client.on_sealed(self)

    def reset(self) -> None:
        """Handle the break of the connection to the server."""
        self.client.on_reset(self)


class SimClient:
    """One client: one operation after the other, under rising numbers."""

    keys: tuple[str, ...] = KEYS
    #: Probability that a copy of a request arrives late.
    late_copies = 0.01

    def __init__(self, world: World, name: str, tablet: str) -> None:
        self.world = world
        self.name = name
        self.tablet = tablet
        self.members = list(world.places[tablet].values())
        self.target = world.chance.pick(self.members)
        self.pause_us = world.chance.pick([20_000, 80_000, 200_000])
        self.number = 0
        self.attempts = 0
        self.is_stopped = False
        #: The operation in progress; None between operations.
        self.access: Access | None = None
        self.is_at_least = False
        #: The bound of a stale read, 0 for another read.
        self.stale_ms = 0
        self.key = ""
        self.value: bytes | None = None
        self.expected: bytes | None = None
        self.invoked = 0
        #: Value of each key as this client last saw it, and the index of its last write.
        self.seen: dict[str, bytes | None] = {}
        self.wrote_index = 0
        #: Every write by its number, for late copies.
        self._writes: dict[int, Operation] = {}
        world.at(world.now + world.chance.below(400_000), self.begin)

    # --- operations

    def begin(self) -> None:
        """Begin the next operation."""
        if self.is_stopped:
            return
        chance = self.world.chance
        self.number += 1
        self.attempts = 0
        self.key = chance.pick(self.keys)
        self.value = b"%s.%d" % (self.name.encode(), self.number)
        self.expected = None
        self.is_at_least = False
        self.stale_ms = 0
        unit = chance.unit()
        if unit < 0.4:
            self.access = Access.WRITE
            if unit < 0.05:
                self.value = None
        elif unit < 0.6:
            self.access = Access.CAS
            self.expected = self.seen.get(self.key)
        else:
            self.access = Access.READ
            self.is_at_least = unit > 0.9 and self.wrote_index > 0
            is_stale = self.world.seed % STALE_SEEDS == 0 or self.world.bug.favours_stale_reads
            if is_stale and not self.is_at_least:
                self.stale_ms = chance.pick(STALE_MS)
        self.invoked = self.world.now
        self.send()

    def send(self) -> None:
        """Send the operation to the server that probably leads."""
        world = self.world
        chance = world.chance
        self.attempts += 1
        if self.stale_ms and self.attempts == 1:
            # All clients of a tablet read at the same member, so that one proof serves several reads.
            self.target = self.members[-1]
        elif self.is_at_least or self.stale_ms:
            self.target = chance.pick(self.members)
        request = SimRequest(self, self.number, self.attempts, self.key, self.tablet)
        world.at(world.now + 100 + chance.below(2000), self._arrive, self.target, request)
        world.at(world.now + chance.pick(TIMEOUTS_US), self._timed_out, request)
        if world.is_faulty and chance.happens(self.late_copies):
            world.counts["late_copy"] += 1
            world.at(world.now + chance.below(3_000_000), self._late_copy, chance.pick(self.members), request)

    def _late_copy(self, name: str, request: SimRequest) -> None:
        self._arrive(name, request)

    def _arrive(self, name: str, request: SimRequest) -> None:
        world = self.world
        server = world.servers[name]
        if server.turn is None:
            return
        if server.paused_until > world.now:
            world.at(server.paused_until, self._arrive, name, request)
            return
        self._submit(server, request)
        world.soon(server)

    def _submit(self, server: SimServer, request: SimRequest) -> None:
        world = self.world
        turn = server.turn_now()
        number = world.next_request()
        # A late copy of the request has a floor of its own: more may be committed when the copy arrives.
        request = replace(request)
        server.requests[number] = request
        payload, tablet = self._payload(request), request.tablet
        check = world.checks[tablet]
        if payload is not None:
            turn.propose(tablet, number, payload)
        elif self._is_present(request):
            if self.is_at_least:
                request.floor = self.wrote_index
                turn.read_at_least(tablet, number, self.wrote_index)
            elif self.stale_ms:
                request.floor = check.committed_at(world.now - 1000 * self.stale_ms)
                turn.read_stale(tablet, number, self.stale_ms, world.now // 1000)
            else:
                request.floor = check.raft.commit
                turn.read(tablet, number)
        else:
            del server.requests[number]

    def _payload(self, request: SimRequest) -> bytes | None:
        """Return the write of a request, None for a read. All copies of one write carry the same operations."""
        if self._is_present(request) and self.access is not Access.READ:
            self._writes.setdefault(self.number, self._operation())
        operation = self._writes.get(request.number)
        if operation is None:
            return None
        number = request.number
        began_ms = self._began_ms(number)
        return encode(KvCommand(self.name, number, number, began_ms, 1 + self.world.now // 1000, [operation]))

    def _began_ms(self, number: int) -> int:
        """Return the time at which a write began."""
        del number
        return BEGAN_MS

    def _operation(self) -> Operation:
        if self.access is Access.CAS:
            return CompareAndSet(self.key, self.value, self.expected)
        return DeleteRow(self.key) if self.value is None else PutRow(self.key, self.value)

    # --- answers

    def _is_present(self, request: SimRequest) -> bool:
        return request.number == self.number and self.access is not None

    def on_answer(self, server: SimServer, request: SimRequest, answer: TabletAnswer) -> None:
        """Handle the answer to an attempt, which arrives after a delay."""
        if answer.fate is Fate.DONE:
            outcome = answer.value
            assert isinstance(outcome, WriteOutcome)
            if outcome.code in (DONE, CONDITION_FAILED):
                number = server.holdings[request.tablet].number
                check = self.world.checks[request.tablet]
                check.on_write_done(number, self.name, request.number, outcome.index, answer.index)
        self._later(self._take_answer, request, answer)

    def on_read(self, request: SimRequest, value: bytes | None) -> None:
        """Handle the result of a read at a server."""
        self._later(self._take_read, request, value)

    def _later(self, what: object, *arguments: object) -> None:
        world = self.world
        if world.is_faulty and world.chance.happens(0.01):
            world.counts["answer_lost"] += 1
            return
        world.at(world.now + 100 + world.chance.below(2000), what, *arguments)  # type: ignore[arg-type]

    def _take_answer(self, request: SimRequest, answer: TabletAnswer) -> None:
        if not self._is_present(request):
            return
        if answer.fate is Fate.DONE:
            outcome = answer.value
            if outcome.code not in (DONE, CONDITION_FAILED):
                self._not_done(request, outcome)
                return
            self.wrote_index = max(self.wrote_index, outcome.index)
            if outcome.index != answer.index:
                self.world.counts["repeated_result"] += 1
            self._finish(outcome.code == DONE)
            return
        if request.attempt != self.attempts:
            return
        self.target = answer.leader_server or self.world.chance.pick(self.members)
        self._retry(request)

    def _not_done(self, request: SimRequest, outcome: WriteOutcome) -> None:
        """Handle the answer that a write was not carried out."""
        raise Violation(f"write {request.number} of {self.name} is under way and was answered {outcome}")

    def on_sealed(self, request: SimRequest) -> None:
        """Handle the refusal of a read by a sealed tablet."""
        raise Violation(f"read {request.number} of {self.name} was refused: nothing is split here")

    def _take_read(self, request: SimRequest, value: bytes | None) -> None:
        if self._is_present(request) and self.access is Access.READ and request.key == self.key:
            self.value = value
            self._finish(True)

    def on_reset(self, request: SimRequest) -> None:
        """Handle the break of the connection to the server."""
        if self._is_present(request) and request.attempt == self.attempts:
            self.target = self.world.chance.pick(self.members)
            self._retry(request)

    def _timed_out(self, request: SimRequest) -> None:
        if self._is_present(request) and request.attempt == self.attempts:
            self.target = self.world.chance.pick(self.members)
            self._retry(request)

    def _retry(self, request: SimRequest) -> None:
        world = self.world
        if self.attempts > 3 and world.chance.happens(0.1):
            world.counts["client_gave_up"] += 1
            self._finish(None)
            return
        world.at(world.now + 10_000 + world.chance.below(40_000), self._send_again, request)

    def _send_again(self, request: SimRequest) -> None:
        if self._is_present(request) and request.attempt == self.attempts:
            self.send()

    def _finish(self, succeeded: bool | None) -> None:
        """End the operation. None: its outcome is unknown."""
        access, self.access = self.access, None
        assert access is not None, f"{self.name} has nothing under way"
        if not (access is Access.READ and (self.is_at_least or self.stale_ms)):
            answered = None if succeeded is None else self.world.now
            self.world.checks[self._history_of()].on_operation(
                self.key,
                0 if access is Access.READ else self.number,
                KeyOperation(
                    self.name, access, self.invoked, answered, self.value, self.expected, succeeded is not False
                ),
            )
        if succeeded:
            self.seen[self.key] = self.value
            self.world.counts["stale_read" if self.stale_ms else access.name.lower()] += 1
        elif succeeded is False:
            # The row has another value than expected; a read will show it.
            self.world.counts["cas_refused"] += 1
            self.seen.pop(self.key, None)
        self.world.at(self.world.now + 1 + self.world.chance.below(2 * self.pause_us), self.begin)

    def _history_of(self) -> str:
        """Return the tablet whose checker has the history of the client's keys."""
        return self.tablet

    def stop(self) -> None:
        """Begin no more operations. The present one continues until it is answered."""
        self.is_stopped = True

    def is_done(self) -> bool:
        """Return True if no operation is in progress."""
        return self.access is None

    def give_up(self) -> None:
        """Give up: the history is over, and the present operation stays open."""
        if self.access is not None:
            self._finish(None)
