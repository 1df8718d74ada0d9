"""Makes the copies of a host that has started."""

from __future__ import annotations

from typing import Any

from coord.env import Clock
from regionserver.tablets.copying.reactor_calls import ReactorCalls
from regionserver.tablets.copying.sessions import RATE_BYTES
from regionserver.tablets.copying.source import CopySources
from regionserver.tablets.copying.work import CopyLinks, CopyWork
from regionserver.tablets.process.host import TabletHost
from regionserver.tablets.upkeep.space import DiskSpace


def copies_of(
    reactor: Any,
    clock: Clock,
    server: str,
    space: DiskSpace,
    host: TabletHost,
    links: CopyLinks,
    rate_bytes: int = RATE_BYTES,
) -> CopyWork:
    """Return the copies of a host, and serve those that other servers dial."""
    parts = host.life.parts()
    calls = ReactorCalls(reactor)
    sources = CopySources(calls, host.turn, parts.replicas, parts.shared, rate_bytes)
    links.serve_copies(sources.serve)
    return CopyWork(
        reactor, clock, server, space, parts.boot, host.turn, parts.replicas, host.life, parts.files,
        parts.files_pool, links, sources, calls, lambda: host.handled,
    )  # fmt: skip
