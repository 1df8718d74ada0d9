"""Check of the cluster id in requests (FN-08).

People mistype addresses, and machines reuse them. So the envelope of every request (`coord.rpc.wire.Request`) carries
the id of the cluster that the sender means. A master or region server of another cluster rejects the request before it
decodes the rest.
"""

from __future__ import annotations

from coord.rpc.wire import RpcError
from regions.messages import WRONG_CLUSTER


def check_cluster(meant: str, mine: str, who: str) -> None:
    """Reject a request whose envelope names another cluster than `mine`. `who` is the receiver, "master" or "server".

    Both ids may be "": a caller may not know the cluster, and a receiver may not have connected to its store yet.

    Raises:
        RpcError: WRONG_CLUSTER, naming both clusters.
    """
    if meant and mine and meant != mine:
        raise RpcError(WRONG_CLUSTER, f"this {who} belongs to cluster {mine}, the request is meant for cluster {meant}")
