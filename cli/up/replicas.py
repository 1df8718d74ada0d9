"""Number of copies of the table of the first start.

With enough servers the table has three copies, so a first cluster survives the death of a server. Otherwise it has one
copy, in the directory that all servers share.
"""

from __future__ import annotations

from typing import Final

from cli.common.errors import UsageFaultError
from cli.common.local import Shape
from regions.records.kinds import KV, kind_name
from regions.replication.config import objection_to_count

#: Copies of each row if there are at least this many servers and --replicas does not say otherwise.
REPLICAS_USUAL: Final = 3
_KV_OPENER: Final = kind_name(KV)


def copies(wanted: int | None, shape: Shape) -> tuple[int, str]:
    """Return the number of copies, and the reason for a single copy that the operator did not ask for (else "").
    `wanted` is the value of --replicas, or None."""
    if wanted is not None:
        return wanted, ""
    if shape.opener != _KV_OPENER:
        return 1, f"a region of --opener {shape.opener} has one copy"
    if shape.servers < REPLICAS_USUAL:
        return 1, f"{REPLICAS_USUAL} replicas need {REPLICAS_USUAL} servers"
    return REPLICAS_USUAL, ""


def check_replicas(replicas: int, shape: Shape) -> None:
    """Raise UsageFaultError if the table of this start cannot have `replicas` replicas."""
    if replicas > shape.servers:
        raise UsageFaultError(
            f"--replicas {replicas}: each replica needs a server of its own, and --servers is {shape.servers}",
            f"Start at least {replicas} servers, or give --replicas 1.",
        )
    if replicas > 1 and shape.opener != _KV_OPENER:
        raise UsageFaultError(
            f"--replicas {replicas}: regions of --opener {shape.opener} have one replica", "Give --opener kv."
        )
    objection = objection_to_count(replicas)
    if objection:
        raise UsageFaultError(f"--replicas {replicas}: {objection}", "Give --replicas 1 or 3.")
