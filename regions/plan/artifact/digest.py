"""Identities of a plan and of a planner's input, as SHA-256 in hex.

    digest      := SHA-256 (row*)       rows sorted by (region_id, replica), ids as UTF-8
    row         := region_id TAB replica TAB server_id LF
    fingerprint := SHA-256 ("regions" row* "servers" row* "last" row*)      rows sorted, cells by TAB, LF after each

A digest depends only on the placements, not on the engine, the row order or the number of partitions.

A fingerprint covers the facts that a running cluster can report again: the regions with their replicas and groups; the
servers with hosts, racks, weights and groups, and whether they are being emptied; and the places of the replicas. Load
and sizes are left out, because they change by the second. Blocks are left out, because the cluster does not know them;
the checksums of the manifest guard the plan's own copy of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from regions.plan.problem.model import PlanRows, Snapshot

#: Rows hashed at a time.
CHUNK = 65536


def plan_digest(rows: PlanRows) -> str:
    """Return the SHA-256 of the rows in hex. `PlanRows` are sorted."""
    digest = hashlib.sha256()
    for start in range(0, len(rows), CHUNK):
        part = slice(start, start + CHUNK)
        lines = [
            f"{region}\t{replica}\t{server}\n"
            for region, replica, server in zip(
                rows.region_id[part].tolist(), rows.replica[part].tolist(), rows.server_id[part].tolist(), strict=True
            )
        ]
        digest.update("".join(lines).encode())
    return digest.hexdigest()


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
