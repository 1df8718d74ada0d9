"""Which cluster a request is meant for (FN-08).

Addresses are typed by people and reused by machines. So every request to a master carries the id of the cluster that
its sender means, in the envelope (`coord.rpc.wire.Request`), and a master or region server of another cluster refuses
it before it reads any more of it.
"""

from __future__ import annotations

from coord.rpc.wire import RpcError
from regions.messages import WRONG_CLUSTER


def check_cluster(meant: str, mine: str, who: str) -> None:
    """Refuse a request whose envelope names another cluster than `mine`; `who` is the receiver: "master" or "server".

    A caller that knows of no cluster names none; a receiver that has not been in its store yet knows of none.

    Raises:
        RpcError: WRONG_CLUSTER, naming both.
    """
    if meant and mine and meant != mine:
        raise RpcError(WRONG_CLUSTER, f"this {who} belongs to cluster {mine}, the request is meant for cluster {meant}")
