"""Makes the upkeep of a host that has started."""

from __future__ import annotations

from typing import Any

from coord.env import Clock
from regionserver.tablets.process.host import TabletHost
from regionserver.tablets.upkeep.space import DiskSpace
from regionserver.tablets.upkeep.work import Upkeep


def upkeep_of(reactor: Any, clock: Clock, server: str, host: TabletHost, space: DiskSpace, keep_ms: int) -> Upkeep:
    """Return the upkeep of a host, which has begun to look at the disk."""
    parts = host.life.parts()
    upkeep = Upkeep(reactor, clock, server, host, space, keep_ms, parts.files_pool, parts.slow_pool)
    upkeep.start()
    return upkeep
