"""`rk table alter --replicas`: another number of copies of each tablet of a table."""

from __future__ import annotations

from cli.common import output
from cli.common.connect import new_request_id, open_cluster
from cli.common.errors import UsageFaultError
from cli.common.options import Globals
from cli.tablets.waiting import Look, follow, not_over
from regions import messages


def check_alone(*others: object) -> None:
    """Raise UsageFaultError if other options of `rk table alter` are given as well."""
    if any(others):
        raise UsageFaultError(
            "--replicas is a change of its own", "Change columns or kind with another `rk table alter`."
        )


def alter_replicas(
    given: Globals, name: str, replicas: int, *, wait_s: float, dry_run: bool, request_id: str | None
) -> None:
    """Have the table's record changed, and show how many tablets follow. Raise CliError."""
    with open_cluster(given) as cluster:
        request = messages.AlterTable(
            name, replicas=replicas, request_id=request_id or new_request_id(), dry_run=dry_run
        )
        before = cluster.ask_master(messages.DescribeTable(name, limit=1), messages.Regions).table.replication
        made = cluster.ask_master(request, messages.Tables).tables[0]
        table = made.table.name
        if wait_s and not dry_run:

            def look() -> Look:
                left = cluster.ask_master(messages.ListIntents(table), messages.IntentList).counts.get(table, 0)
                done = made.regions - left
                return Look(
                    f"{done} of {output.count(made.regions, 'tablet')} have {output.count(replicas, 'replica')}",
                    not left,
                )

            last = follow(look, wait_s, is_quiet=given.json)
            if not last.is_over:
                raise not_over(
                    f"the change of table {table}", last, wait_s, f"`rk tablet list --table {table}` says why."
                )
    change = f"{before} -> {output.count(replicas, 'replica')}"
    if dry_run:
        text = f"would change table {table}: {change}, of {output.count(made.regions, 'tablet')}"
    elif wait_s:
        text = f"table {table}: {change}, all of {output.count(made.regions, 'tablet')}"
    else:
        text = f"table {table}: {change}; the masters change {output.count(made.regions, 'tablet')}"
    output.report({"table": made, "before": before, "dry_run": dry_run}, text, as_json=given.json)
