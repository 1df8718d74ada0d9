"""Bugs of splits of tablets. Each must be found; the sound code passes the same histories."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from regionserver.kv.heirs import Rows
from regionserver.tablets.commands import SealCommand
from regionserver.tablets.splits import heirs, prepared, work
from regionserver.tablets.splits.heirs import SealedState
from regionserver.tablets.values import seals
from regionserver.tablets.values.operations import DONE
from regionserver.tablets.values.seals import Seal
from simulation.tablets.faults import Story
from simulation.tablets.server import SimServer
from simulation.tablets.splits import prepared as sim_prepared
from simulation.tablets.splits.servers import SplitServers
from simulation.tablets.storage import rows as sim_rows
from simulation.tablets.storage.rows import RowsImage, SimRows
from tests.sim.tablets.bug import Bug
from tests.support.planted import Patch, instead


def _figures_not_compared(found: Any, seals: list[Seal]) -> SealedState:
    """Stand for `PreparedHeirs._checked`."""
    states = [found._sealed_state(one)[1] for one in found._parents]
    return SealedState(*heirs.position_of(seals), max(one.clock_ms for one in states))


#: The figures of prepared daughters are not compared with those of the sealed parents.
UNCHECKED = (prepared.PreparedHeirs, "_checked", _figures_not_compared)


class SplitBug(Bug):
    """A planted bug of splits."""

    is_splitting = True
    known = "our own design"


class WritesBehindTheSeal(SplitBug):
    """A sealed tablet carries out writes."""

    known = "a parent that is written after its split; TiKV: a stale epoch that is not checked at apply"

    def patches(self) -> list[Patch]:
        """See `PlantedBug`."""
        return [instead(RowsImage, "is_sealed", False)]


class ReadsBehindTheSeal(SplitBug):
    """A sealed tablet answers reads, although its daughters may have been written."""

    known = "reads of a parent by a client with an old location"
    reads_behind_seal = True


class BegunBeforeTheSeal(SplitBug):
    """A daughter is made from the parent's rows before the replica there has reached the seal."""

    def patches(self) -> list[Patch]:
        """See `PlantedBug`."""
        return [instead(work, "may_inherit", lambda seal, index: True)]


class NotesOfFailedCommits(SplitBug):
    """A failed commit leaves no note of its keys and the notes count as whole; figures are not compared at the seal."""

    notes_kept_at_failure = True

    def patches(self) -> list[Patch]:
        """See `PlantedBug`."""
        return [instead(*UNCHECKED)]


class LastNotesNotCopied(SplitBug):
    """The rows that were written since the last round are not copied at the seal; figures are not compared."""

    def patches(self) -> list[Patch]:
        """See `PlantedBug`."""
        original = prepared.PreparedHeirs._catch_up

        def some(found: Any, last: bytes | None) -> int:
            is_sealed = all(found._sealed_state(one)[0].is_set for one in found._parents)
            return 0 if last is None and is_sealed else original(found, last)

        return [instead(*UNCHECKED), instead(prepared.PreparedHeirs, "_catch_up", some)]


class PreparedByADeadProcess(SplitBug):
    """The next process uses the prepared files of a dead one, although its notes begin later; figures are not
    compared."""

    favours = ("_kill_splitting", "_power_cut_splitting", "_kill_split_leader")

    def patches(self) -> list[Patch]:
        """See `PlantedBug`."""
        make, batch, leftovers = SimServer.make_heir, sim_prepared.SimHeirs._batch, Story.leftovers

        def kept(server: SimServer, path: str) -> SimRows:
            found = server.disk.files.get(path)
            return make(server, path) if found is None else server._images[found]

        def rest(found: Any, parent: object, last: bytes | None) -> Rows:
            has_rows = any(one._rows.now.rows for one in found._files)
            return [] if last is None and has_rows else batch(found, parent, last)

        def others(story: Story, server: SimServer) -> list[str]:
            return [one for one in leftovers(story, server) if not one.startswith(".heir-")]

        return [
            instead(*UNCHECKED),
            instead(Story, "leftovers", others),  # what is kept on purpose shall not reveal the bug
            instead(SplitServers, "started", lambda self, server: None),
            instead(SimServer, "make_heir", kept),
            instead(sim_prepared.SimHeirs, "_batch", rest),
        ]


class CleanedTooEarly(SplitBug):
    """The parent's replicas are deleted when one member of each daughter is made, on no majority."""

    cleans_at_once = True


class SealNotSteady(SplitBug):
    """The seal is no part of the steady point: a follower that loses power is not sealed any more."""

    def patches(self) -> list[Patch]:
        """See `PlantedBug`."""
        original = RowsImage.copy

        def unsealed(image: RowsImage) -> RowsImage:
            other = original(image)
            other.seal = Seal()
            return other

        return [instead(RowsImage, "copy", unsealed)]


class SealLostAtCopy(SplitBug):
    """A replica that is copied from a sealed one is not sealed."""

    known = "states beside the rows that a snapshot forgets"
    copies_lose_seal = True


class SealMoves(SplitBug):
    """An order to seal that arrives twice moves the seal to the later entry."""

    known = "commands that are applied twice"

    def patches(self) -> list[Patch]:
        """See `PlantedBug`."""

        def moved(seal: Seal, command: SealCommand, term: int, index: int) -> tuple[Seal, int]:
            if command.is_wanted and seal.resharding == command.resharding:
                return replace(seal, term=term, index=index), DONE
            return seals.seal_after(seal, command, term, index)

        return [instead(sim_rows, "seal_after", moved)]


class AnySealIsTakenAway(SplitBug):
    """A late order to take a seal away ends the seal of a later attempt."""

    known = "names that are not compared"

    def patches(self) -> list[Patch]:
        """See `PlantedBug`."""

        def ended(seal: Seal, command: SealCommand, term: int, index: int) -> tuple[Seal, int]:
            if not command.is_wanted:
                return Seal(canceled=command.resharding), DONE
            return seals.seal_after(seal, command, term, index)

        return [instead(sim_rows, "seal_after", ended)]


class HorizonOfZero(SplitBug):
    """A daughter begins without the horizon of its parent: a late copy of a write is carried out again."""

    known = "results of writes that a split loses"

    def patches(self) -> list[Patch]:
        """See `PlantedBug`."""
        original = heirs.heir_state

        def anew(*arguments: Any) -> Any:
            return replace(original(*arguments), horizon_ms=0)

        return [instead(sim_prepared, "heir_state", anew)]
