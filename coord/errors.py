"""Exceptions of the store and its client, in one tree.

    CoordError
      ProtocolError        RemoteProtocolError (the peer sent what the protocol does not allow)
      OperationError       a rejected request: one class per ZooKeeper error code, `code` on the class
      RetryableError       the outcome is unknown or nothing happened; a retry may succeed elsewhere or later
      StorageError         the disk does not hold what was written
      InvalidTransition    a state machine's table has no row for the state and event
      ConfigError          settings that contradict each other or the machine

In the pure cores expected outcomes are values (the `int` codes below). They become exceptions at the edge, through
`error_for(code)`. Names follow ZooKeeper's KeeperException codes, so they have no `Error` suffix.
"""
# ruff: noqa: N818

from __future__ import annotations

import enum
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
    """Root of all exceptions that the store and its client raise on purpose."""


# --- protocols ------------------------------------------------------------------------------------------------------


class ProtocolError(CoordError):
    """Bytes or calls that violate a protocol."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that are not a valid record or frame.

    `code` is the error code of the reply if the connection can continue (a well-framed request with a malformed body).
    """

    code: ClassVar[int] = MARSHALLING_ERROR


class InvalidMessage(RemoteProtocolError):
    """A node sent a Raft message that no correct node sends: it exceeds a bound, contradicts itself, or contradicts
    facts that the receiver knows. The receiver has changed nothing and closes the link."""


# --- retryable ------------------------------------------------------------------------------------------------------


class RetryableError(CoordError):
    """Nothing was decided, or the outcome is unknown: retry, perhaps at another node."""


class NotLeader(RetryableError):
    """This node is not the leader. `hint` is the id of the presumed leader, 0 if unknown."""

    def __init__(self, hint: int = 0) -> None:
        super().__init__(f"not the leader; leader is {hint or 'unknown'}")
        self.hint = hint


class ProposalDropped(RetryableError):
    """The Raft core rejected a proposal: leadership is being transferred or the in-flight limit is reached."""


class ChangeRefusal(enum.Enum):
    """Why a Raft leader does not append a configuration. Nothing has changed."""

    ALREADY_SO = enum.auto()  #: the configuration in force is the wanted one
    PENDING = enum.auto()  #: the newest configuration is not committed
    NOT_SETTLED = enum.auto()  #: no entry of the leader's term is committed
    TRANSFERRING = enum.auto()  #: leadership is being transferred
    NOT_ONE_STEP = enum.auto()  #: more than one voter would change, or no voter would be left
    UNSAFE = enum.auto()  #: the leader does not receive messages from a majority of the new voters


class ConfigRefused(ProposalDropped):
    """A Raft leader rejected a configuration. `refusal` is the reason; the message describes it."""

    def __init__(self, refusal: ChangeRefusal, detail: str) -> None:
        super().__init__(detail)
        self.refusal = refusal


class TooManyOutstanding(RetryableError):
    """A bounded queue of requests is full: the request was not sent. `limit` is the bound."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} requests are already outstanding")
        self.limit = limit


# --- rejected requests ----------------------------------------------------------------------------------------------


class OperationError(CoordError):
    """A rejected request. `code` is ZooKeeper's error code; `path` is the znode of the request, where known."""

    code: ClassVar[int] = SYSTEM_ERROR

    def __init__(self, path: str = "", detail: str = "") -> None:
        super().__init__(path, detail)
        self.path = path
        self.detail = detail

    def __str__(self) -> str:
        """Return `NoNode /a/b`, followed by the detail if there is one."""
        return " ".join(part for part in (type(self).__name__, self.path, self.detail) if part)


class UnknownCode(OperationError):
    """The server sent an unknown error code; the number is in `detail`."""


class SystemFault(OperationError):
    """The server failed internally."""

    code = SYSTEM_ERROR


class RuntimeInconsistency(OperationError):
    """Another part of the same multi failed, so this part was not performed."""

    code = RUNTIME_INCONSISTENCY


class DataInconsistency(OperationError):
    """The server found its data inconsistent."""

    code = DATA_INCONSISTENCY


class ConnectionLoss(OperationError, RetryableError):
    """The connection broke before the reply: the request may or may not have been performed."""

    code = CONNECTION_LOSS


class MarshallingError(OperationError):
    """The server could not decode the request."""

    code = MARSHALLING_ERROR


class Unimplemented(OperationError):
    """The server does not support the operation."""

    code = UNIMPLEMENTED


class OperationTimeout(OperationError, RetryableError):
    """No reply within the time limit of the caller."""

    code = OPERATION_TIMEOUT


class BadArguments(OperationError):
    """The request has an invalid path, flag or combination."""

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
    """The session's identities do not grant this permission."""

    code = NO_AUTH


class BadVersion(OperationError):
    """The expected version differs from the znode's version: another client changed the znode."""

    code = BAD_VERSION


class NoChildrenForEphemerals(OperationError):
    """An ephemeral znode cannot be a parent."""

    code = NO_CHILDREN_FOR_EPHEMERALS


class NodeExists(OperationError):
    """The znode to create already exists."""

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
    """The access list is empty or has an unknown scheme or id."""

    code = INVALID_ACL


class AuthFailed(OperationError):
    """The server rejected the credential and closes the connection."""

    code = AUTH_FAILED


class SessionMoved(OperationError, RetryableError):
    """The session has moved to another server."""

    code = SESSION_MOVED


class NotReadOnly(OperationError):
    """A write was sent to a server that serves reads only."""

    code = NOT_READ_ONLY


class EphemeralOnLocalSession(OperationError):
    """A local session cannot own ephemeral znodes."""

    code = EPHEMERAL_ON_LOCAL_SESSION


class NoWatcher(OperationError):
    """The server has no such watch."""

    code = NO_WATCHER


class RequestTimeout(OperationError, RetryableError):
    """The server could not complete the request within its own time limit."""

    code = REQUEST_TIMEOUT


class ReconfigDisabled(OperationError):
    """Membership changes are disabled."""

    code = RECONFIG_DISABLED


class SaslRequired(OperationError):
    """The server accepts only sessions authenticated by SASL."""

    code = SESSION_CLOSED_REQUIRE_SASL_AUTH


class QuotaExceeded(OperationError):
    """The write would exceed an enforced quota."""

    code = QUOTA_EXCEEDED


class ThrottledOp(OperationError, RetryableError):
    """The server is overloaded and did not perform the request."""

    code = THROTTLED_OP


class MultiFailed(OperationError):
    """A multi was rejected as a whole.

    `index` is the position of the failed operation and `error` its error. `errors` has one item per operation: None
    before the failed one, RuntimeInconsistency after it.
    """

    def __init__(self, index: int, error: OperationError, errors: list[OperationError | None]) -> None:
        super().__init__(error.path, f"operation {index} of {len(errors)}: {error}")
        self.index = index
        self.error = error
        self.errors = errors


#: ZooKeeper code -> exception class; use `error_for`.
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
    """Return the exception for the error `code` (never OK) of a request on `path`."""
    cls = ERROR_CLASSES.get(code)
    if cls is None:
        return UnknownCode(path, f"code {code} {detail}".rstrip())
    return cls(path, detail)


# --- disk, states, settings -----------------------------------------------------------------------------------------


class StorageError(CoordError):
    """The disk failed, or its content differs from what was written."""


class CorruptRecord(StorageError):
    """A record in the middle of a file is damaged. Such a record is never skipped.

    `path` and `offset` (bytes from the start of the file) locate it; `expected` and `actual` were compared.
    """

    def __init__(self, path: str, offset: int, expected: object, actual: object) -> None:
        super().__init__(f"{path}: record at byte {offset} is damaged: expected {expected}, found {actual}")
        self.path = path
        self.offset = offset
        self.expected = expected
        self.actual = actual


class StateDiverged(StorageError):
    """This node's state differs from the state of a majority after the same entry of the log.

    `own` and `theirs` are (zxid, digest) after the entry at `index`; `nodes` are the nodes that agree on `theirs`.
    """

    def __init__(self, index: int, own: tuple[int, int], theirs: tuple[int, int], nodes: list[int]) -> None:
        super().__init__(
            f"the state of this node differs from the others: after entry {index} it has zxid {own[0]:#x} digest"
            f" {own[1]:016x}, nodes {', '.join(map(str, nodes))} have zxid {theirs[0]:#x} digest {theirs[1]:016x}. Copy"
            " its directory (`rk coord verify DIR DIR` shows the difference), empty it and start: the others send it"
        )
        self.index = index
        self.own = own
        self.theirs = theirs
        self.nodes = nodes


class StateDamaged(StorageError):
    """A part of the state in memory has changed although no command changed it; `what` is the first place found."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} has changed in memory without a command. Nothing was written. Test the memory, then start again:"
            " the state is read from the disk"
        )
        self.what = what


class ForeignDirectory(StorageError):
    """A data directory belongs to another node or cluster, or another process holds it."""


class UnsupportedLevel(CoordError):
    """The store's feature level is above the highest level of this build. `where` begins the sentence."""

    def __init__(self, where: str, level: int, supported: int) -> None:
        super().__init__(
            f"{where} feature level {level}, this build supports levels up to {supported}: start a build that supports"
            f" level {level} (docs/compatibility.md)"
        )
        self.level = level
        self.supported = supported


class InvalidTransition(CoordError):
    """A state machine has no row for (state, event). `story` lists what happened before, oldest first."""

    def __init__(self, subject: str, state: str, event: str, story: list[str] | None = None) -> None:
        lines = "".join(f"\n  {line}" for line in story or [])
        super().__init__(f"{subject}: no transition from {state} on {event}{lines}")
        self.subject = subject
        self.state = state
        self.event = event
        self.story = story or []


class ConfigError(CoordError):
    """Settings contradict each other or the machine; nothing was started."""


def shown_s(seconds: float) -> str:
    """Return a time limit as text for a message: in tenths of a second, below one second with two digits."""
    return f"{seconds:.2g}" if seconds < 1 else f"{round(seconds, 1):.12g}"
