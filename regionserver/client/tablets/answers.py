"""Meanings of the answers to a request: whether the request may have been carried out, and the next step of the call.

Codes that are not in the table reject the request itself, and end the call.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from coord.rpc.wire import Code
from regions.messages.codes import FORBIDDEN, NO_LEASE, TOO_STALE, WRONG_CLUSTER, WRONG_SERVER
from regionserver.kv.messages import DAMAGED, SCHEMA_CHANGED, STORAGE
from regionserver.tablets.messages import NO_REPLICA, OUTCOME_UNKNOWN, REPLICA_FAILED, WRONG_REGION

#: Code of the reply LeaderElsewhere, in the table below and for observers.
NOT_LEADER: Final = "not_leader"
#: No address of the member's server is known; nothing was sent.
NO_ADDRESS: Final = "no_address"
#: Codes of a server that is gone, as far as the client knows: other calls ask the others about it first.
BROKEN: Final = (Code.UNREACHABLE, Code.CONNECTION_LOST)


class CallStep(enum.Enum):
    """Next step of a call after an answer."""

    FOLLOW = enum.auto()  #: ask the leader that the answer names, else the members who leads
    PAUSE = enum.auto()  #: ask the same server again after a pause
    SEARCH = enum.auto()  #: ask the members who leads; this server is asked again later
    LOCATE = enum.auto()  #: look for the key's region anew
    END = enum.auto()  #: the call ends with this error


class Meaning(NamedTuple):
    """Meaning of an answer. `is_unknown`: the request may have been carried out, or may still be."""

    is_unknown: bool
    step: CallStep


MEANINGS: Final[dict[str, Meaning]] = {
    NOT_LEADER: Meaning(False, CallStep.FOLLOW),
    Code.BUSY: Meaning(False, CallStep.PAUSE),
    OUTCOME_UNKNOWN: Meaning(True, CallStep.SEARCH),
    REPLICA_FAILED: Meaning(True, CallStep.SEARCH),
    NO_REPLICA: Meaning(False, CallStep.SEARCH),
    TOO_STALE: Meaning(False, CallStep.SEARCH),
    NO_ADDRESS: Meaning(False, CallStep.SEARCH),
    Code.UNREACHABLE: Meaning(False, CallStep.SEARCH),
    Code.CONNECTION_LOST: Meaning(True, CallStep.SEARCH),
    Code.TIMEOUT: Meaning(True, CallStep.SEARCH),
    # The server stops, or has lost its registration, or its address belongs to another server by now.
    Code.CLOSED: Meaning(True, CallStep.SEARCH),
    NO_LEASE: Meaning(False, CallStep.SEARCH),
    WRONG_SERVER: Meaning(False, CallStep.SEARCH),
    WRONG_CLUSTER: Meaning(False, CallStep.SEARCH),
    Code.UNSUPPORTED: Meaning(False, CallStep.SEARCH),
    Code.PROTOCOL: Meaning(True, CallStep.SEARCH),
    # The replica's rows are damaged: another member will lead.
    DAMAGED: Meaning(True, CallStep.SEARCH),
    STORAGE: Meaning(True, CallStep.SEARCH),
    # A fault of one server; the same write may be sent to another one.
    Code.INTERNAL: Meaning(True, CallStep.SEARCH),
    Code.BAD_REPLY: Meaning(True, CallStep.SEARCH),
    WRONG_REGION: Meaning(False, CallStep.LOCATE),
    SCHEMA_CHANGED: Meaning(False, CallStep.END),
    FORBIDDEN: Meaning(False, CallStep.END),
    Code.BAD_REQUEST: Meaning(False, CallStep.END),
    Code.TOO_LARGE: Meaning(False, CallStep.END),
}
#: Any other code: the server may have done something before it failed.
UNLISTED: Final = Meaning(True, CallStep.END)


def meaning_of(code: str) -> Meaning:
    """Return the meaning of an answer with this code."""
    return MEANINGS.get(code, UNLISTED)
