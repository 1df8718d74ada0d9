"""Planted bugs of upgrades; see `planted`."""

from __future__ import annotations

from typing import Any

from coord.server.membership.levels import Levels
from coord.tree.levels import SUPPORTED
from coord.tree.machine import StateMachine
from tests.sim.store.builds import JUDGE
from tests.sim.store.world import Bug
from tests.support.planted import Patch, instead


class PlansByOwnLevel(Bug):
    """A node plans commands by the level of its build, not by the level in force."""

    number = 25
    known = "replicas of two builds"
    upgrade = (SUPPORTED - 1, SUPPORTED)

    def patches(self) -> list[Patch]:
        def has(machine: StateMachine, level: int) -> bool:
            return (machine.level if machine.supported == JUDGE else machine.supported) >= level

        return [instead(StateMachine, "has", has)]


class AbsentMemberIgnored(Bug):
    """The leader raises the level when the members that it has links to support the level."""

    number = 25
    known = "upgrades that forget who is away"
    upgrade = (SUPPORTED - 1, SUPPORTED)
    favours = ("_power_cut", "_partition", "_pause", "_kill")

    def patches(self) -> list[Patch]:
        def attainable(levels: Levels) -> int:
            return max(levels.required(), min([levels.supported, *levels.announced.values()]))

        return [instead(Levels, "attainable", attainable)]


class OlderStaysLinked(Bug):
    """A node of a build below the level in force keeps its links."""

    number = 25
    known = "an older build that joins"
    upgrade = (SUPPORTED - 1, SUPPORTED)

    def patches(self) -> list[Patch]:
        return [instead(Levels, "objection", lambda *_: "")]


class LevelNotInSnapshot(Bug):
    """A snapshot leaves the level out: who takes it over plans by level 0."""

    number = 13
    known = "replicas of two builds"

    def patches(self) -> list[Patch]:
        def of_snapshot(cls: type[StateMachine], reader: Any) -> StateMachine:
            machine: StateMachine = real.__func__(cls, reader)
            machine.level = 0
            return machine

        real = StateMachine.__dict__["of_snapshot"]
        return [instead(StateMachine, "of_snapshot", classmethod(of_snapshot))]
