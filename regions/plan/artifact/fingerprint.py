"""The identity of a planner's input, as far as a running cluster can be asked for it again.

    fingerprint := SHA-256 ("regions" row* "servers" row* "last" row*)      rows sorted, cells by TAB, LF after each

It covers which regions there are with their replicas and groups; which servers with hosts, racks, weights,
groups and whether they are being emptied; and where the replicas are. Load and sizes are left out, as they change by
the second, and so are blocks, which the cluster does not know: a plan's own copy of them is guarded by the manifest's
checksums.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from regions.plan.problem.model import Snapshot


def fingerprint(snapshot: Snapshot) -> str:
    """Return the SHA-256 of a snapshot in hex, independent of the order of its rows."""
    regions, servers, last = snapshot.regions, snapshot.servers, snapshot.last
    tables: tuple[tuple[str, Iterable[tuple[object, ...]]], ...] = (
        (
            "regions",
            zip(
                regions.region_id.tolist(),
                regions.table_id.tolist(),
                regions.replicas.tolist(),
                regions.grp.tolist(),
                strict=True,
            ),
        ),
        (
            "servers",
            zip(
                servers.server_id.tolist(),
                servers.host.tolist(),
                servers.rack.tolist(),
                servers.weight.tolist(),
                servers.grp.tolist(),
                servers.draining.tolist(),
                strict=True,
            ),
        ),
        ("last", zip(last.region_id.tolist(), last.replica.tolist(), last.server_id.tolist(), strict=True)),
    )
    digest = hashlib.sha256()
    for name, rows in tables:
        digest.update(f"{name}\n".encode())
        lines = sorted("\t".join(map(repr, row)) for row in rows)
        digest.update("".join(f"{line}\n" for line in lines).encode())
    return digest.hexdigest()
