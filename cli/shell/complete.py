"""Names for the shell's completion: tables, regions, servers and plans of the cluster that the line names.

The shell waits while names are read, so there is a deadline, and every failure means no names.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import CompletionItem

from cli.common.options import globals_of

if TYPE_CHECKING:
    from cli.common.connect import Cluster

#: Seconds that a shell waits for names.
DEADLINE_S: Final = 1.0
#: Names that are offered; a longer list helps nobody.
OFFERED_MAX: Final = 200


def tables(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a table."""
    return _fitting(_of_cluster(context, _tables), incomplete)


def servers(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a live region server."""
    return _fitting(_of_cluster(context, _servers), incomplete)


def regions(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the id of a region, or `TABLE:`, to which a key can be added."""
    return _fitting(_of_cluster(context, lambda cluster: _regions(cluster, incomplete)), incomplete)


def anything(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a table or a server, or the id of a region."""
    return _fitting(
        _of_cluster(context, lambda cluster: [*_tables(cluster), *_servers(cluster), *_regions(cluster, incomplete)]),
        incomplete,
    )


def plans(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the id of a plan that the masters know."""
    return _fitting(_of_cluster(context, lambda cluster: cluster.children(cluster.layout.plans)), incomplete)


def _tables(cluster: Cluster) -> list[str]:
    from regions.records.model import TableState

    return [one.name for one in cluster.tables() if one.state is not TableState.REMOVED]


def _servers(cluster: Cluster) -> list[str]:
    from cli.common.names import Names

    found = cluster.servers()
    names = Names(found, cluster.local)
    return sorted(names.of_uuid(one.uuid) for one in found)


def _regions(cluster: Cluster, incomplete: str) -> list[str]:
    from cli.common.lookup import region_ids

    of_tables = [f"{name}:" for name in _tables(cluster)]
    return of_tables if not incomplete else of_tables + [one for _, one in region_ids(cluster, incomplete)]


def _fitting(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)][:OFFERED_MAX]


def _of_cluster(context: click.Context, read: Callable[[Cluster], list[str]]) -> list[str]:
    """Return the result of `read`; [] after the deadline or a failure."""
    found: list[str] = []

    def work() -> None:
        try:
            from cli.common.connect import open_cluster

            with open_cluster(globals_of(context)) as cluster:
                found.extend(read(cluster))
        except Exception:  # a shell that completes shows no errors
            found.clear()

    # A thread that still waits for a cluster must not delay the exit.
    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(DEADLINE_S)
    return [] if worker.is_alive() else found
