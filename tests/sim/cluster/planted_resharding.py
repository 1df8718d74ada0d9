"""Planted bugs of splits and merges (see planted.py)."""

from __future__ import annotations

from typing import Any

import msgspec

from master.api.resharding import requests
from master.resharding import work as resharding_work
from regions.assign.resharding import book as resharding_book
from regions.assign.resharding import parents as resharding_parents
from regions.cluster import effects as fx
from regionserver.storage.resharding import ReshardingService
from simulation.cluster.cluster import SimulatedCluster
from simulation.drills import DRILLS
from tests.sim.cluster.planted import Bug
from tests.support.planted import Patch, instead


class _Resharding(Bug):
    """A bug of splits and merges; this base class plants none."""

    def patches(self) -> list[Patch]:
        return []

    def script(self, cluster: SimulatedCluster) -> None:
        DRILLS["resharding"](cluster)


class ReplacedBeforeClosed(_Resharding):
    """Daughters replace a region that its server is still closing (X11)."""

    def patches(self) -> list[Patch]:
        def is_put_down(region: Any) -> bool:
            return all(one.transition is not None and not one.is_writing for one in region.replicas)

        return [
            instead(resharding_book, "is_put_down", is_put_down),
            instead(resharding_parents, "is_put_down", is_put_down),
            instead(resharding_work, "check", _any_step),
        ]


class HoleBetweenDaughters(_Resharding):
    """The first daughter of a split ends before its key: the table loses a range of keys (X11)."""

    def patches(self) -> list[Patch]:
        real = requests.split_at

        def split_at(record: Any, key: str) -> Any:
            first, second = real(record, key)
            return msgspec.structs.replace(first, end_key=key[:-1]), second

        return [instead(requests, "split_at", split_at), instead(resharding_book, "covers", lambda *_: True)]


class FilesRemovedTooSoon(_Resharding):
    """The parents' files are removed before all daughters have taken over their rows (X11)."""

    def patches(self) -> list[Patch]:
        def clean(self: Any, work: Any, table: Any, now_ms: int) -> None:
            server = next(iter(self._world.servers.values()), None)
            if server is not None and not work.is_cleaning and now_ms >= work.next_ms:
                work.is_cleaning = True
                self._emit(fx.RemoveParents(work.record, server.record, origin=work.record.origin))

        async def trusting(*_: object) -> None:
            return None

        return [
            instead(resharding_book.Reshardings, "_clean", clean),
            instead(ReshardingService, "_check", trusting),
        ]


def _any_step(*_: object, **__: object) -> None:
    """Allow any step."""


RESHARDING_BUGS = [ReplacedBeforeClosed, HoleBetweenDaughters, FilesRemovedTooSoon]
