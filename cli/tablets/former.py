"""Names of servers that are not registered any more, from the history in the store.

The history has an entry with the address for each server that registered or ended. So a dead server of a local cluster
keeps its name (`server-2`), and any other server its `host:port`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Final

from cli.common.connect import Cluster, MastersAlone
from cli.common.names import Names
from regions.cluster.history import (
    SERVER_DOWN,
    SERVER_UP,
    CorruptSegment,
    parse_segment,
    unpack,
)

#: Number of segments that are read at once, the latest first. A server that died recently is in the first of them.
_AT_ONCE: Final = 16


def name_former(cluster: Cluster, names: Names, uuids: Iterable[str]) -> None:
    """Add the names of those servers of `uuids` that are not registered and that the store still knows.

    Servers that no entry of the history names keep a prefix of their uuid. A damaged segment is skipped: `rk history`
    reports it.
    """
    unknown = {uuid for uuid in uuids if uuid and not names.knows(uuid)}
    if not unknown or isinstance(cluster, MastersAlone):
        return
    layout = cluster.layout
    segments = sorted(one for name in cluster.children(layout.history) if (one := parse_segment(name)) is not None)
    while segments and unknown:
        part, segments = segments[-_AT_ONCE:], segments[:-_AT_ONCE]
        values = cluster.get_many({one.name: layout.segment(one.name) for one in part})
        for one in reversed(part):
            with contextlib.suppress(CorruptSegment, KeyError):
                for entry in reversed(unpack(values[one.name])):
                    if entry.server in unknown and entry.cause in (SERVER_UP, SERVER_DOWN) and entry.detail:
                        names.remember(entry.server, entry.detail)
                        unknown.discard(entry.server)
