"""Builds: the store is upgraded and downgraded during the other faults.

A machine's next process is of the older or of the newer build, in any order. The checks are:

- A level comes into force only when every member has run a build that supports it.
- No process passes the entry with a level that its build does not support, and none has to stop at one: nodes below
  the level have no link. An older build that is started on a log with a higher level does not start.

At the end of the faults every machine gets the newer build.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from coord.tree.levels import SUPPORTED
from simulation.engine.chance import SeededRandom
from simulation.engine.history import Violation

if TYPE_CHECKING:
    from tests.sim.store.world import Host, Process, World

#: A future build; its level changes nothing.
NEXT: Final = SUPPORTED + 1
#: The level that only the replica of the checks supports: bugs are planted only in the others.
JUDGE: Final = NEXT + 1
#: (older, newer) by the highest levels that they support: mostly the present build twice, else an upgrade from the
#: build before levels, to the next build, or both at once.
UPGRADES: Final = ((SUPPORTED, SUPPORTED), (SUPPORTED - 1, SUPPORTED), (SUPPORTED, NEXT), (0, NEXT))


class Builds:
    """The builds of the machines."""

    def __init__(self, world: World, upgrade: tuple[int, int] | None = None) -> None:
        self._world = world
        # A separate random source: builds do not change the rest of a history.
        self._chance = chance = SeededRandom(world.seed * 1_000_003 + 7)
        self.older, self.newer = upgrade or chance.pick(list(UPGRADES))
        #: Number of processes out of ten that are of the newer build.
        self._newer_share = chance.pick([3, 5, 8])
        #: (index, level) of the entries that have raised the level.
        self.raises: list[tuple[int, int]] = []

    def next_for(self, host: Host) -> int:
        """Return the highest level that the next process on this machine supports."""
        must = host.must_be_newer or not self._world.faulty
        level = self.newer if must or self._chance.below(10) < self._newer_share else self.older
        if host.build > level:
            self._world.counts["build_downgraded"] += 1
        elif 0 <= host.build < level:
            self._world.counts["build_upgraded"] += 1
        host.best_build = max(host.best_build, level)
        return level

    def refused(self, host: Host) -> None:
        """Handle a process that did not start on files of a newer build: the operator starts the newer one."""
        if host.build >= self.newer:
            raise Violation(f"{host.id} refuses a level that its build supports")
        self._world.counts["level_refused_at_start"] += 1
        host.must_be_newer = True
        host.restart_later()

    def raised(self, index: int, level: int, members: list[int]) -> None:
        """Handle the first application of an entry that raises the level."""
        self._world.counts["level_raised"] += 1
        for member in members:
            best = self._world.hosts[member].best_build
            if best < level:
                raise Violation(f"level {level} is in force from {index} on, {member} never supported more than {best}")
        self.raises.append((index, level))

    def check(self, process: Process) -> None:
        """Check a process after a turn."""
        build = process.host.build
        for index, level in self.raises:
            if build < level and process.node.applied_index >= index:
                raise Violation(f"{process.host.id} has gone past level {level} at {index} with a build for {build}")

    def make_peace(self) -> None:
        """Give the newer build to every machine whose build is too old."""
        for host in self._world.hosts.values():
            if host.process is not None and host.build < self.newer:
                if host.process.node.levels.trouble():
                    self._world.counts["level_trouble_told"] += 1
                host.process.kill()
                host.restart_later()
