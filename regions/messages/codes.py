"""Codes of `RpcError` in replies of masters and region servers."""

from __future__ import annotations

from typing import Final

from regions.messages.ddl import AlterTable as AlterTable
from regions.messages.ddl import CreateTable as CreateTable
from regions.messages.ddl import DeleteTable as DeleteTable
from regions.messages.ddl import SetTableIntent as SetTableIntent
from regions.messages.ddl import UndeleteTable as UndeleteTable
from regions.messages.staleness import Bound

#: The bound of a caller that allows no staleness: only the active master may answer.
NO_BOUND: Final = Bound()


# Codes of RpcError.
NOT_LEADER: Final = "not_leader"


STALE_EPOCH: Final = "stale_epoch"


UNKNOWN_EPOCH: Final = "unknown_epoch"  #: the sender's epoch is above the store's: retry


WRONG_SERVER: Final = "wrong_server"


WRONG_MASTER: Final = "wrong_master"


WRONG_CLUSTER: Final = "wrong_cluster"  #: the sender belongs to another cluster; nothing was done (FN-04)


NO_LEASE: Final = "no_lease"  #: the server has lost its session and serves nothing until it has registered again


BAD_REQUEST: Final = "bad_request"


NOT_FOUND: Final = "not_found"


ALREADY_EXISTS: Final = "already_exists"


BUSY: Final = "busy"  #: in transition, or the master is still loading: retry


TOO_STALE: Final = "too_stale"  #: the standby cannot prove that its state is within the caller's bound


FORBIDDEN: Final = "forbidden"  #: the caller's identity has no grant for the request; nothing was done


TIMED_OUT: Final = "timed_out"  #: accepted, but not finished in time; the operation continues
