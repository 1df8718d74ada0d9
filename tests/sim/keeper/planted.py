"""Bugs that are put into the keeper; the simulation must find each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final
from unittest import mock

import msgspec

from regions.messages.server import TabletOpening
from regions.records.members import Member
from regions.records.model import RegionRecord, RegionState, TabletState, TransitionRecord
from regions.replication import effects, keeper, member_orders, recovery
from regions.replication.heartbeat_steps import Facts, ReportAction, updated
from regions.replication.keeper import Keeper
from regions.replication.siting import Site
from regions.replication.tablet import Tablet
from tests.sim.keeper.world import World


def _write(one: Keeper, tablet: Tablet, **fields: object) -> None:
    if not tablet.is_writing:
        one._write_region(tablet, msgspec.structs.replace(tablet.record, **fields))


class RunningOnFirstOpened(Keeper):
    """A region is RUNNING when its first member is open, as shared regions are."""

    def transition_seen(
        self, region_id: str, number: int, record: TransitionRecord | None, version: int, now_ms: int
    ) -> None:
        tablet = self.tablets.get(region_id)
        if record is not None and record.state is RegionState.OPENED and tablet is not None and tablet.is_creating:
            _write(self, tablet, state=TabletState.RUNNING)
        super().transition_seen(region_id, number, record, version, now_ms)


class StartupPlansAnew(Keeper):
    """A master that finds no server alive takes that for a cluster startup, and plans every region anew."""

    def begin(self, now_ms: int) -> None:
        if not self.servers:
            for tablet in self.tablets.values():
                _write(self, tablet, state=TabletState.PREPARING, members=(), next_number=1)
        super().begin(now_ms)


class DeadServersAreReplaced(Keeper):
    """While members are made, a dead server's number goes to another server."""

    def server_down(self, uuid: str) -> None:
        super().server_down(uuid)
        for tablet in self.tablets.values():
            gone = [one for one in tablet.record.members if one.uuid == uuid]
            free = [one for one in self.servers if all(one != member.uuid for member in tablet.record.members)]
            if gone and free and tablet.is_creating:
                moved = tuple(Member(one.number, free[0]) if one in gone else one for one in tablet.record.members)
                _write(self, tablet, members=moved)


def _any_configuration(region: RegionRecord, facts: Facts, actions: list[ReportAction]) -> RegionRecord:
    """Do as `updated`, but also take a configuration with a lower config id."""
    report = facts.report
    written = updated(region, facts, actions)
    if report.leader is None or not report.leads or report.config_id == written.config_id:
        return written
    fields = {"config_term": report.config_id.term, "config_index": report.config_id.index}
    return msgspec.structs.replace(written, members=report.leader.members, **fields)


@contextmanager
def _stale_report() -> Iterator[type[Keeper]]:
    """A report replaces a newer one."""
    with mock.patch.object(keeper, "updated", _any_configuration):
        yield Keeper


@contextmanager
def _makes_twice() -> Iterator[type[Keeper]]:
    """The order does not say that a server has begun to make the replica before."""
    with mock.patch.object(member_orders, "TabletOpening", lambda initial, must_exist: TabletOpening(initial)):
        yield Keeper


@contextmanager
def _plan_is_believed() -> Iterator[type[Keeper]]:
    """A bulk plan's servers are used unchecked if all of them are live."""

    def believed(planned: Sequence[str], candidates: Sequence[Site], count: int) -> list[str]:
        known = {one.uuid for one in candidates}
        return list(planned) if len(planned) == count and known.issuperset(planned) else []

    with mock.patch.object(effects, "planned_members", believed):
        yield Keeper


@contextmanager
def _forgets_first() -> Iterator[type[Keeper]]:
    """The transition of a first replica that nobody has begun to make ends when its table is disabled."""
    deletes = recovery._INDEX[recovery.Goal.REST][RegionState.OFFLINE, recovery.ServerFate.ALIVE]
    with mock.patch.object(recovery, "_NOT_BEGUN", deletes):
        yield Keeper


def _as(found: type[Keeper]) -> Callable[[], AbstractContextManager[type[Keeper]]]:
    @contextmanager
    def planted() -> Iterator[type[Keeper]]:
        yield found

    return planted


Planted = tuple[Callable[[], AbstractContextManager[type[Keeper]]], str]

#: Name, way to plant the bug, text of the broken invariant.
PLANTED: Final[dict[str, Planted]] = {
    "stale report replaces a newer one": (_stale_report, "configuration fell"),
    "RUNNING on first OPENED": (_as(RunningOnFirstOpened), "RUNNING without a leader"),
    "cluster startup re-plans tablets": (_as(StartupPlansAnew), "numbers fell|a region that clients use went"),
    "death of a server moves a member": (_as(DeadServersAreReplaced), "number . was on|was moved from"),
    "a voter is made twice": (_makes_twice, "made from nothing twice"),
    "a plan is believed": (_plan_is_believed, "two members on one server"),
    "a first replica is forgotten while its table is disabled": (_forgets_first, "was never made"),
}


def with_keeper(found: type[Keeper]) -> Callable[[int], World]:
    """Return the worlds with that keeper, by seed."""

    def made(seed: int) -> World:
        world = World(seed)
        world.keeper_type = found
        return world

    return made
