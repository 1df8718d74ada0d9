"""Bugs of merges of tablets. Each must be found; the sound code passes the same histories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regions.records.model import RegionRecord
from regionserver.tablets.splits import prepared
from regionserver.tablets.splits.heirs import SealedState
from regionserver.tablets.values.seals import Seal
from simulation.tablets.splits import prepared as sim_prepared
from simulation.tablets.splits import servers as sim_servers
from simulation.tablets.storage.rows import SimRows
from tests.sim.tablets.bug import Bug
from tests.sim.tablets.planted_splits import UNCHECKED
from tests.support.planted import Patch, instead


class MergeBug(Bug):
    """A planted bug of merges. This base class plants none."""

    is_merging = True
    known = "our own design"


class MergedHalfSealed(MergeBug):
    """Two tablets are merged as soon as one of them is sealed."""

    known = "TiKV: a merge is prepared in the source, and the target may be ahead of it"
    merges_half_sealed = True


class RowsOfTheFirstParent(MergeBug):
    """A daughter that is made after the seals has the rows of the first parent alone."""

    known = "builds that know splits and no merges"

    def patches(self) -> list[Patch]:
        """See `PlantedBug`."""
        original = sim_prepared.made_of

        def made(parents: Sequence[SimRows], seals: Sequence[Seal], daughter: RegionRecord) -> SimRows:
            found = original(parents, seals, daughter)
            found.now.rows = dict(original(parents[:1], seals, daughter).now.rows)
            return found

        return [instead(sim_servers, "made_of", made)]


class ClockOfTheFirstParent(MergeBug):
    """The horizon of a daughter is that of the first parent: a late copy of a write to the second is carried out."""

    known = "results of writes that a merge loses"
    favours_late_copies = True

    def patches(self) -> list[Patch]:
        """See `PlantedBug`."""
        checked, original = prepared.PreparedHeirs._checked, sim_prepared.made_of

        def of_first(found: Any, seals: Sequence[Seal]) -> SealedState:
            return checked(found, seals)._replace(clock_ms=found._sealed_state(found._parents[0])[1].clock_ms)

        def made(parents: Sequence[SimRows], seals: Sequence[Seal], daughter: RegionRecord) -> SimRows:
            found, clock_ms = original(parents, seals, daughter), parents[0].now.totals.clock_ms
            found.now.totals.clock_ms, found.now.totals.horizon_ms = clock_ms + 1, clock_ms
            return found

        return [
            instead(prepared.PreparedHeirs, "_checked", of_first),
            instead(sim_servers, "made_of", made),
        ]


class NotesOfTheSecondParent(MergeBug):
    """Keys that are written in the first parent while the second one is copied are not copied again; figures are not
    compared."""

    def patches(self) -> list[Patch]:
        """See `PlantedBug`."""

        def newest(found: Any, last: bytes | None) -> int:
            parent, reader = found._begun[-1]
            return int(found._catch_up_with(parent, reader, last))

        return [instead(*UNCHECKED), instead(prepared.PreparedHeirs, "_catch_up", newest)]


class SecondParentGoesAtOnce(MergeBug):
    """The replicas of the second parent are deleted when the daughter replaces it."""

    lets_second_parent_go = True
