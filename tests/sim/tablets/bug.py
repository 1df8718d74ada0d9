"""The base of the planted bugs of tablets: patches of the real code, and faults of the simulated shell."""

from __future__ import annotations

from simulation.tablets.flaws import Flaws
from tests.support.planted import PlantedBug


class Bug(PlantedBug, Flaws):  # type: ignore[misc]
    """A planted bug of hosts and shells. This base class plants none."""

    #: Numbers of servers to try.
    sizes: tuple[int, ...] = (3, 5)
