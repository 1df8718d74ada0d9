"""`rk plan` and the running cluster: the census that a plan is made from."""

from __future__ import annotations

from typing import NamedTuple

from cli.connect import Cluster, open_cluster
from cli.names import Names
from cli.options import Globals
from cli.tables import every_region
from regions import messages
from regions.census import census
from regions.layout import decode_cluster
from regions.plan import Snapshot


class Now(NamedTuple):
    """The cluster as it is."""

    snapshot: Snapshot
    cluster_id: str
    epoch: int
    #: What people call servers and tables, by id.
    names: dict[str, str]


def census_of(cluster: Cluster) -> Now:
    """All that the active master knows of regions and servers. Raises CliError."""
    status = cluster.ask_master(messages.GetMasterStatus(), messages.MasterStatus)
    servers = cluster.ask_master(messages.ListServers(), messages.Servers).servers
    tables = every_region(cluster)
    names = Names([one.server for one in servers], cluster.local)
    called = {one.server.uuid: names.of_uuid(one.server.uuid) for one in servers}
    called |= {one.table.table_id: one.table.name for one in tables}
    data = cluster.get(cluster.layout.cluster) or b""
    return Now(census(servers, tables), decode_cluster(data).cluster_id, status.epoch, called)


def census_now(given: Globals) -> Now:
    """`census_of` the cluster that the options name. Raises CliError."""
    with open_cluster(given) as cluster:
        return census_of(cluster)
