"""What can go wrong in the store and between it and its clients, as one tree of exceptions.

    CoordError
      ProtocolError        LocalProtocolError (we misused a protocol object), RemoteProtocolError (the peer did)
      OperationError       a request was refused: one class per ZooKeeper error code, `code` on the class
      RetryableError       nothing was decided; the same request may succeed elsewhere or later
      StorageError         the disk holds something else than was written there
      InvalidTransition    a state machine was asked for a step that its table does not have
      ConfigError          settings that contradict each other or the machine

In the pure cores expected outcomes are values (the `int` codes below); they become exceptions at the edge, through
`error_for(code)`. Names follow ZooKeeper's KeeperException codes, so they carry no `Error` suffix.
"""
# ruff: noqa: N818

from __future__ import annotations

from typing import ClassVar, Final

OK: Final = 0
SYSTEM_ERROR: Final = -1
RUNTIME_INCONSISTENCY: Final = -2
DATA_INCONSISTENCY: Final = -3
CONNECTION_LOSS: Final = -4
MARSHALLING_ERROR: Final = -5
UNIMPLEMENTED: Final = -6
OPERATION_TIMEOUT: Final = -7
BAD_ARGUMENTS: Final = -8
NEW_CONFIG_NO_QUORUM: Final = -13
RECONFIG_IN_PROGRESS: Final = -14
API_ERROR: Final = -100
NO_NODE: Final = -101
NO_AUTH: Final = -102
BAD_VERSION: Final = -103
NO_CHILDREN_FOR_EPHEMERALS: Final = -108
NODE_EXISTS: Final = -110
NOT_EMPTY: Final = -111
SESSION_EXPIRED: Final = -112
INVALID_CALLBACK: Final = -113
INVALID_ACL: Final = -114
AUTH_FAILED: Final = -115
SESSION_MOVED: Final = -118
NOT_READ_ONLY: Final = -119
EPHEMERAL_ON_LOCAL_SESSION: Final = -120
NO_WATCHER: Final = -121
REQUEST_TIMEOUT: Final = -122
RECONFIG_DISABLED: Final = -123
SESSION_CLOSED_REQUIRE_SASL_AUTH: Final = -124
QUOTA_EXCEEDED: Final = -125
THROTTLED_OP: Final = -127


class CoordError(Exception):
    """Root of everything that the store and its client raise on purpose."""


# --- protocols ------------------------------------------------------------------------------------------------------


class ProtocolError(CoordError):
    """Bytes or calls that a protocol does not allow."""


class LocalProtocolError(ProtocolError):
    """Our own code called a protocol object in a state that does not allow it: a bug on this side."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that are no valid record or frame.

    `code` is what the reply says when the connection can go on (a readable frame with an unreadable body).
    """

    code: ClassVar[int] = MARSHALLING_ERROR


class InvalidMessage(RemoteProtocolError):
    """A node of the ensemble sent a Raft message that no correct node sends: it breaks a bound, contradicts itself, or
    contradicts what the receiver knows for certain. The receiver has changed nothing; it breaks the link."""


# --- nothing decided ------------------------------------------------------------------------------------------------


class RetryableError(CoordError):
    """Nothing was decided, or it is not known what was: ask again, perhaps elsewhere."""


class NotLeader(RetryableError):
    """This node does not lead. `hint` is the id of the node believed to lead, 0 if unknown."""

    def __init__(self, hint: int = 0) -> None:
        super().__init__(f"not the leader; leader is {hint or 'unknown'}")
        self.hint = hint


class ProposalDropped(RetryableError):
    """The Raft core took no proposal: leadership is being handed over or the in-flight bound is reached."""


class TooManyOutstanding(RetryableError):
    """A bounded queue of requests is full: the request was not sent. `limit` is that bound."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} requests are already outstanding")
        self.limit = limit


# --- refused requests -----------------------------------------------------------------------------------------------


class OperationError(CoordError):
    """A request was refused. `code` is ZooKeeper's number; `path` the znode asked for, where known."""

    code: ClassVar[int] = SYSTEM_ERROR

    def __init__(self, path: str = "", detail: str = "") -> None:
        super().__init__(path, detail)
        self.path = path
        self.detail = detail

    def __str__(self) -> str:
        """`NoNode /a/b`, with the detail behind where there is one."""
        return " ".join(part for part in (type(self).__name__, self.path, self.detail) if part)


class UnknownCode(OperationError):
    """The server answered with a code that this version does not know; the number is in `detail`."""


class SystemFault(OperationError):
    """The server met a fault of its own."""

    code = SYSTEM_ERROR


class RuntimeInconsistency(OperationError):
    """An earlier part of the same multi failed, so this part was not tried."""

    code = RUNTIME_INCONSISTENCY


class DataInconsistency(OperationError):
    """The server found its data inconsistent."""

    code = DATA_INCONSISTENCY


class ConnectionLoss(OperationError, RetryableError):
    """The connection broke before the answer came: the request may or may not have been performed."""

    code = CONNECTION_LOSS


class MarshallingError(OperationError):
    """The server could not read the request."""

    code = MARSHALLING_ERROR


class Unimplemented(OperationError):
    """The server does not know the operation."""

    code = UNIMPLEMENTED


class OperationTimeout(OperationError, RetryableError):
    """No answer within the time the caller allows."""

    code = OPERATION_TIMEOUT


class BadArguments(OperationError):
    """The request makes no sense: an invalid path, flag or combination."""

    code = BAD_ARGUMENTS


class NewConfigNoQuorum(OperationError):
    """Too few of the proposed members are connected and caught up."""

    code = NEW_CONFIG_NO_QUORUM


class ReconfigInProgress(OperationError, RetryableError):
    """Another membership change is not finished."""

    code = RECONFIG_IN_PROGRESS


class ApiError(OperationError):
    """Start of the range of codes that are the caller's fault; servers do not send it."""

    code = API_ERROR


class NoNode(OperationError):
    """The znode, or the parent of the one to create, does not exist."""

    code = NO_NODE


class NoAuth(OperationError):
    """The session's identities give no permission for this."""

    code = NO_AUTH


class BadVersion(OperationError):
    """The version named is not the znode's: somebody else changed it."""

    code = BAD_VERSION


class NoChildrenForEphemerals(OperationError):
    """An ephemeral znode cannot be a parent."""

    code = NO_CHILDREN_FOR_EPHEMERALS


class NodeExists(OperationError):
    """The znode to create is there already."""

    code = NODE_EXISTS


class NotEmpty(OperationError):
    """The znode to delete has children."""

    code = NOT_EMPTY


class SessionExpired(OperationError):
    """The session has ended; its ephemeral znodes are gone."""

    code = SESSION_EXPIRED


class InvalidCallback(OperationError):
    """A callback of the wrong kind; clients only."""

    code = INVALID_CALLBACK


class InvalidAcl(OperationError):
    """The access list is empty or names an unknown scheme or id."""

    code = INVALID_ACL


class AuthFailed(OperationError):
    """The authentication was refused; the server closes the connection."""

    code = AUTH_FAILED


class SessionMoved(OperationError, RetryableError):
    """The session is attached to another server by now."""

    code = SESSION_MOVED


class NotReadOnly(OperationError):
    """A write was sent to a server that serves reads only."""

    code = NOT_READ_ONLY


class EphemeralOnLocalSession(OperationError):
    """Local sessions own no ephemeral znodes."""

    code = EPHEMERAL_ON_LOCAL_SESSION


class NoWatcher(OperationError):
    """There is no watch of that type to remove."""

    code = NO_WATCHER


class RequestTimeout(OperationError, RetryableError):
    """The server could not complete the request within its own bound."""

    code = REQUEST_TIMEOUT


class ReconfigDisabled(OperationError):
    """Membership changes are switched off."""

    code = RECONFIG_DISABLED


class SaslRequired(OperationError):
    """The server takes only sessions authenticated by SASL."""

    code = SESSION_CLOSED_REQUIRE_SASL_AUTH


class QuotaExceeded(OperationError):
    """The write would pass an enforced quota."""

    code = QUOTA_EXCEEDED


class ThrottledOp(OperationError, RetryableError):
    """The server is overloaded and did not perform the request."""

    code = THROTTLED_OP


class MultiFailed(OperationError):
    """A multi was refused as a whole.

    `index` is the position of the operation that failed, `error` why, and `errors` holds one error per operation:
    OK (None) before the failing one, RuntimeInconsistency behind it.
    """

    def __init__(self, index: int, error: OperationError, errors: list[OperationError | None]) -> None:
        super().__init__(error.path, f"operation {index} of {len(errors)}: {error}")
        self.index = index
        self.error = error
        self.errors = errors


#: ZooKeeper code -> exception class; `error_for` is the door to it.
ERROR_CLASSES: Final[dict[int, type[OperationError]]] = {
    cls.code: cls
    for cls in (
        SystemFault,
        RuntimeInconsistency,
        DataInconsistency,
        ConnectionLoss,
        MarshallingError,
        Unimplemented,
        OperationTimeout,
        BadArguments,
        NewConfigNoQuorum,
        ReconfigInProgress,
        ApiError,
        NoNode,
        NoAuth,
        BadVersion,
        NoChildrenForEphemerals,
        NodeExists,
        NotEmpty,
        SessionExpired,
        InvalidCallback,
        InvalidAcl,
        AuthFailed,
        SessionMoved,
        NotReadOnly,
        EphemeralOnLocalSession,
        NoWatcher,
        RequestTimeout,
        ReconfigDisabled,
        SaslRequired,
        QuotaExceeded,
        ThrottledOp,
    )
}


def error_for(code: int, path: str = "", detail: str = "") -> OperationError:
    """The exception for a refusal `code` (never OK) of a request about `path`."""
    cls = ERROR_CLASSES.get(code)
    if cls is None:
        return UnknownCode(path, f"code {code} {detail}".rstrip())
    return cls(path, detail)


# --- disk, states, settings -----------------------------------------------------------------------------------------


class StorageError(CoordError):
    """The disk failed, or holds something else than was written there."""


class CorruptRecord(StorageError):
    """A record in the middle of a file is damaged: refused, never skipped.

    `path` and `offset` (bytes from the file's start) say where, `expected` and `actual` what was compared.
    """

    def __init__(self, path: str, offset: int, expected: object, actual: object) -> None:
        super().__init__(f"{path}: record at byte {offset} is damaged: expected {expected}, found {actual}")
        self.path = path
        self.offset = offset
        self.expected = expected
        self.actual = actual


class StateDiverged(StorageError):
    """A majority of the nodes has another state than this one behind the same entry of the log.

    `own` and `theirs` are (zxid, digest) behind the entry at `index`; `nodes` are those who agree on `theirs`.
    """

    def __init__(self, index: int, own: tuple[int, int], theirs: tuple[int, int], nodes: list[int]) -> None:
        super().__init__(
            f"its state is not that of the others: behind entry {index} it has zxid {own[0]:#x} digest {own[1]:016x},"
            f" nodes {', '.join(map(str, nodes))} have zxid {theirs[0]:#x} digest {theirs[1]:016x}. Keep a copy of its"
            " directory (rk coord verify DIR DIR names the difference), empty it and start: the others bring the state"
        )
        self.index = index
        self.own = own
        self.theirs = theirs
        self.nodes = nodes


class StateDamaged(StorageError):
    """What this process holds in memory is not what was put there: `what` names the first place found."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} has changed in memory without a command. Nothing was written of it. Test the memory, then start"
            " again: the state comes from the disk"
        )
        self.what = what


class Compacted(StorageError):
    """The log up to that index has been replaced by a snapshot. `first_index` is the oldest one still there."""

    def __init__(self, index: int, first_index: int) -> None:
        super().__init__(f"index {index} is compacted; the log begins at {first_index}")
        self.wanted_index = index
        self.first_index = first_index


class ForeignDirectory(StorageError):
    """A data directory belongs to another node or cluster, or another process holds it."""


class UnsupportedLevel(CoordError):
    """The store's feature level is above what this build supports. `where` begins the sentence."""

    def __init__(self, where: str, level: int, supported: int) -> None:
        super().__init__(
            f"{where} feature level {level}, this build supports levels up to {supported}: start a build that supports"
            f" level {level} (docs/compatibility.md)"
        )
        self.level = level
        self.supported = supported


class InvalidTransition(CoordError):
    """A state machine has no row for (state, event). `story` is what happened to the thing before, oldest first."""

    def __init__(self, subject: str, state: str, event: str, story: list[str] | None = None) -> None:
        lines = "".join(f"\n  {line}" for line in story or [])
        super().__init__(f"{subject}: no transition from {state} on {event}{lines}")
        self.subject = subject
        self.state = state
        self.event = event
        self.story = story or []


class ConfigError(CoordError):
    """Settings that contradict each other or the machine; nothing was started."""
