"""The identity of a plan: SHA-256 over its sorted rows.

    digest := SHA-256 (row*)         rows sorted by (region_id, replica), ids as UTF-8
    row    := region_id TAB replica TAB server_id LF

The digest depends only on the placements, not on the engine, the row order or the number of partitions.
"""

from __future__ import annotations

import hashlib

from regions.plan.problem.model import PlanRows

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
