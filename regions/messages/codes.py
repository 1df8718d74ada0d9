"""Codes of `RpcError` in replies of masters and region servers, and the check of the cluster id (FN-08)."""

from __future__ import annotations

from typing import Final

from coord.rpc.wire import RpcError

NOT_LEADER: Final = "not_leader"
STALE_EPOCH: Final = "stale_epoch"
UNKNOWN_EPOCH: Final = "unknown_epoch"  #: the sender's epoch is above the store's: retry
WRONG_SERVER: Final = "wrong_server"
WRONG_MASTER: Final = "wrong_master"
WRONG_CLUSTER: Final = "wrong_cluster"  #: the sender belongs to another cluster; nothing was done (FN-04)
NO_LEASE: Final = "no_lease"  #: The server has lost its session. It serves nothing until it has registered again.
BAD_REQUEST: Final = "bad_request"
NOT_FOUND: Final = "not_found"
ALREADY_EXISTS: Final = "already_exists"
BUSY: Final = "busy"  #: in transition, or the master is still loading: retry
TOO_STALE: Final = "too_stale"  #: the standby cannot prove that its state is within the caller's bound
FORBIDDEN: Final = "forbidden"  #: The identity of the caller has no grant for the request. Nothing was done.
TIMED_OUT: Final = "timed_out"  #: accepted, but not finished in time; the operation continues


def check_cluster(meant: str, mine: str, who: str) -> None:
    """Reject a request whose envelope names another cluster than `mine`. `who` is the receiver, "master" or "server".

    Addresses are mistyped and reused. So the envelope of every request (`coord.rpc.wire.Request`) carries the id of the
    addressed cluster, and the receiver checks the id before it decodes the rest. Both ids may be "": a caller may not
    know the cluster, and a receiver may not have connected to its store yet.

    Raises:
        RpcError: WRONG_CLUSTER, naming both clusters.
    """
    if meant and mine and meant != mine:
        raise RpcError(WRONG_CLUSTER, f"this {who} belongs to cluster {mine}, the request is meant for cluster {meant}")
