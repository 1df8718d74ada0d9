"""`--target TABLE|SERVER`: the part of a plan's moves that touches a table or a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from cli.common.errors import NotFoundError
from cli.plan.files import Artefact
from regions.plan.artifact.compare import Difference, Shift


def target_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --target to a command, which gets `targets`."""
    decorate = click.option("--target", "targets", multiple=True, metavar="TABLE|SERVER",
                            help="Only moves of this table, or from or to this server; may be repeated.")  # fmt: skip
    return decorate(command)


def of_targets(targets: Sequence[str]) -> str:
    """Return the end of a sentence about moves: whose moves they are; "" without targets."""
    return f"; moves of {', '.join(targets)} alone" if targets else ""


def targeted(found: Artefact, difference: Difference, targets: Sequence[str], names: Mapping[str, str]) -> Difference:
    """Return the moves of a plan that touch the targets, all of them without targets. `names` are by id. Raise
    NotFoundError for a target that the plan does not have."""
    if not targets:
        return difference
    regions = found.snapshot.regions
    tables = dict(zip(regions.region_id.tolist(), regions.table_id.tolist(), strict=True))
    known = {*tables.values(), *found.snapshot.servers.server_id.tolist(), *names}
    wanted: set[str] = set()
    for target in targets:
        ids = {one for one in known if target in (one, names.get(one))}
        if not ids:
            raise NotFoundError(
                f"--target {target}: the plan has no such table or server", "`rk plan show` names the servers."
            )
        wanted |= ids

    def touches(one: Shift) -> bool:
        return not wanted.isdisjoint((tables.get(one.region_id, ""), one.source, one.destination))

    return Difference(
        same=difference.same,
        moves=[one for one in difference.moves if touches(one)],
        added=[one for one in difference.added if touches(one)],
        removed=[one for one in difference.removed if touches(one)],
    )
