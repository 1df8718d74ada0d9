"""One simulated server: its disk, which outlives it, and the shell around its Turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from coord.raft.membership import Configuration
from regionserver.tablets.host.turn import Turn
from tests.sim.tablets.disk import SimLog, SimSlot
from tests.sim.tablets.rows import SimRows

if TYPE_CHECKING:
    from tests.sim.tablets.clients import SimRequest


class TombstoneMemory(NamedTuple):
    """What a removed replica remembers."""

    term: int
    vote: int
    last_index: int
    last_term: int


@dataclass(slots=True)
class Holding:
    """The content of this server's superblock for a tablet."""

    slot: int
    number: int
    #: "": READY; else the reason why the replica does not run: LOST (the number is burned), FAILED (damaged rows) or
    #: TOMBSTONE (removed).
    trouble: str = ""
    #: The consensus metadata: a committed configuration and its id. None: the first one.
    config: Configuration | None = None
    config_id: tuple[int, int] = (0, 0)
    #: A tombstone's memory, with its later votes, and as it was at the deletion.
    memory: TombstoneMemory | None = None
    buried: TombstoneMemory | None = None


class SimServer:
    """A server. `turn` is None while its process is down."""

    def __init__(self, name: str, log: SimLog) -> None:
        self.name = name
        self.log = log
        self.rows: dict[str, SimRows] = {}
        self.holdings: dict[str, Holding] = {}
        #: Slots that the disk has lost. Checks compare them with the data that was durable before.
        self.lost: dict[str, SimSlot] = {}
        self.turn: Turn | None = None
        #: Number of starts: events of an earlier start are void. Also the start code.
        self.life = 0
        self.tick_us = 50_000
        self.sync_us = 1000.0
        self.apply_us = 300.0
        self.paused_until = 0
        #: Tablets whose code raises until the process is started again.
        self.broken: set[str] = set()
        self.is_pump_planned = False
        self.is_syncing = False
        #: Requests that wait for an answer of this process: request -> the client's attempt.
        self.requests: dict[int, SimRequest] = {}

    def slot_of(self, tablet: str) -> SimSlot | None:
        """Return the durable state of a tablet here, or the state before it was lost."""
        holding = self.holdings.get(tablet)
        return self.log.slots.get(holding.slot) if holding is not None else self.lost.get(tablet)

    def turn_now(self) -> Turn:
        """Return the turn of a server that is up."""
        assert self.turn is not None, f"{self.name} is down"
        return self.turn
