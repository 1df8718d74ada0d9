"""A small real cluster for the tests of a service: a store node, masters and region servers as processes.

    cluster.py    SmallCluster: starts, waits until ready, kills, restarts, ends everything; needs no pytest
    fixtures.py   a plugin for pytest: the fixtures `regionkeeper_cluster` and `regionkeeper_cluster_of`

docs/regionserver.md has an example.
"""

from regionserver.testing.cluster import ClusterFailedError, ServerPlace, SmallCluster, rk_server

__all__ = ["ClusterFailedError", "ServerPlace", "SmallCluster", "rk_server"]
