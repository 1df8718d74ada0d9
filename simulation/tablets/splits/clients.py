"""Clients whose tablets are split: when a tablet refuses them, they look up the key's tablet in the store and write
again.

A write that a sealed tablet has refused was not carried out, and never will be. So the client sends it to the daughter
under another number. A write whose outcome is unknown is not sent to another tablet; late copies arrive there
nevertheless, and must not be carried out.
"""

from __future__ import annotations

from regionserver.tablets.commands import SEALED, TOO_OLD, WriteOutcome
from regionserver.tablets.host.requests import Fate, TabletAnswer
from simulation.engine.history import Violation
from simulation.engine.timeline import SECOND
from simulation.tablets.clients import SimClient, SimRequest
from simulation.tablets.splits.master import KEYS, SimulatedSplits
from simulation.tablets.world import World


class SplitClient(SimClient):
    """A client of a table that begins with one tablet."""

    keys = KEYS
    late_copies = 0.04

    #: Set by `clients_of`.
    splits: SimulatedSplits

    def __init__(self, world: World, name: str, tablet: str) -> None:
        self.root = self.splits.regions.records[tablet].table_id
        if world.bug.favours_late_copies:
            self.late_copies = 0.6
        self._began: dict[int, int] = {}
        #: The tablets of keys as this client knows them, and the index of its last write in each tablet.
        self._known: dict[str, str] = {}
        self._wrote: dict[str, int] = {}
        super().__init__(world, name, tablet)

    # --- where a key is

    def _look_up(self) -> None:
        """Send the next requests to the tablet that has the key, as far as the client knows."""
        tablet = self._known.setdefault(self.key, self.splits.regions.tablet_of(self.root, self.key))
        if not self.world.places[tablet]:
            tablet = self._known[self.key] = self.splits.regions.tablet_of(self.root, self.key)
        if tablet != self.tablet:
            self._wrote[self.tablet] = self.wrote_index
            self.tablet, self.wrote_index = tablet, self._wrote.get(tablet, 0)
        self.members = list(self.world.places[tablet].values())
        self.target = self.target if self.target in self.members else self.world.chance.pick(self.members)

    def send(self) -> None:
        """See `SimClient`."""
        if self.attempts == 0:
            self._look_up()
            self.is_at_least = self.is_at_least and self.wrote_index > 0
        super().send()

    def _read_regions_again(self) -> None:
        self._known[self.key] = self.splits.regions.tablet_of(self.root, self.key)

    def _late_copy(self, name: str, request: SimRequest) -> None:
        """A copy of a write arrives at the tablet that has the key by now.

        A request names its tablet, so this is more than a network can do. A write that began behind a seal is not sent
        elsewhere: nothing promises that a daughter takes such a write for too old.
        """
        tablet = self.splits.regions.tablet_of(self.root, request.key)
        origin = self.splits.origins.get(tablet)
        began_ms = self._began_ms(request.number)
        is_older = origin is None or began_ms <= origin.asked_ms
        if origin is not None and request.tablet in origin.tablets:
            # A parent that is sealed after the other one has executed such writes meanwhile.
            is_older = is_older or began_ms <= self.world.checks[request.tablet].sealed_ms
        if self.world.chance.happens(0.5) and is_older:
            self.world.counts["copy_at_daughter"] += tablet != request.tablet
            request = SimRequest(self, request.number, request.attempt, request.key, tablet)
            leaders = [one.name for one in self.world.leaders(tablet)]
            if not leaders and self.world.bug.favours_late_copies:
                self.world.at(self.world.now + SECOND // 5, self._late_copy, name, request)
                return
            name = self.world.chance.pick(leaders or list(self.world.places[tablet].values()))
        super()._late_copy(name, request)

    # --- answers

    def _began_ms(self, number: int) -> int:
        return self._began.setdefault(number, 1 + self.world.now // 1000)

    def _not_done(self, request: SimRequest, outcome: WriteOutcome) -> None:
        """The write was not carried out: write again, under another number. The outcome of one that is too old is
        unknown: its result may be forgotten."""
        if outcome.code not in (SEALED, TOO_OLD):
            raise Violation(f"write {request.number} of {self.name} was answered {outcome}")
        self.world.counts["write_sealed" if outcome.code == SEALED else "write_too_old"] += 1
        if outcome.code == SEALED and not self.world.bug.favours_late_copies:
            self._anew()
        else:
            self._finish(None)

    def on_sealed(self, request: SimRequest) -> None:
        """See `SimClient`."""
        self.world.counts["read_sealed"] += 1
        self._later(self._take_refusal, request)

    def _take_refusal(self, request: SimRequest) -> None:
        if self._is_present(request):
            self._anew()

    def _anew(self) -> None:
        """Begin the operation again under another number, after a while."""
        self.number += 1
        self.attempts = 0
        number = self.number
        self.world.at(self.world.now + 10_000 + self.world.chance.below(40_000), self._send_anew, number)

    def _send_anew(self, number: int) -> None:
        if self.access is None or self.number != number or self.attempts:
            return
        self._read_regions_again()
        self.send()

    def _take_answer(self, request: SimRequest, answer: TabletAnswer) -> None:
        if self._is_present(request) and answer.fate is Fate.DOES_NOT_EXIST:
            self._read_regions_again()
            if self._known[self.key] != request.tablet:
                self.world.counts["client_gave_up_parent"] += 1
                self._finish(None)
                return
        super()._take_answer(request, answer)

    def _history_of(self) -> str:
        return self.root
