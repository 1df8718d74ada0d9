"""Constants of ZooKeeper's client protocol: operations, events, states, flags.

Error codes are in coord.errors. Every name here is also in coord.wire.records.
"""

from __future__ import annotations

from typing import Final

# Operations, as in a request header. Negative ones occur only in the log, except OP_CLOSE_SESSION and OP_ERROR.
OP_NOTIFICATION: Final = 0
OP_CREATE: Final = 1
OP_DELETE: Final = 2
OP_EXISTS: Final = 3
OP_GET_DATA: Final = 4
OP_SET_DATA: Final = 5
OP_GET_ACL: Final = 6
OP_SET_ACL: Final = 7
OP_GET_CHILDREN: Final = 8
OP_SYNC: Final = 9
OP_PING: Final = 11
OP_GET_CHILDREN2: Final = 12
OP_CHECK: Final = 13
OP_MULTI: Final = 14
OP_CREATE2: Final = 15
OP_RECONFIG: Final = 16
OP_CHECK_WATCHES: Final = 17
OP_REMOVE_WATCHES: Final = 18
OP_CREATE_CONTAINER: Final = 19
OP_DELETE_CONTAINER: Final = 20
OP_CREATE_TTL: Final = 21
OP_MULTI_READ: Final = 22
OP_AUTH: Final = 100
OP_SET_WATCHES: Final = 101
OP_SASL: Final = 102
OP_GET_EPHEMERALS: Final = 103
OP_GET_ALL_CHILDREN_NUMBER: Final = 104
OP_SET_WATCHES2: Final = 105
OP_ADD_WATCH: Final = 106
OP_WHO_AM_I: Final = 107
#: RegionKeeper's own: membership requests of `rk coord list|add|remove|transfer-leader`. JSON in a buffer, both ways.
OP_MEMBERSHIP: Final = 1001
#: Type of a failed part in the reply to a multi, and of the end marker in requests and replies.
OP_ERROR: Final = -1
OP_CREATE_SESSION: Final = -10
OP_CLOSE_SESSION: Final = -11
OP_ATTACH: Final = -13
OP_EXPIRE: Final = -14

#: Operations that change the tree or the session and therefore go through the log. OP_AUTH is not listed: the log
#: carries the proven identities, not the client's record.
WRITE_OPCODES: Final[frozenset[int]] = frozenset(
    {
        OP_CREATE,
        OP_DELETE,
        OP_SET_DATA,
        OP_SET_ACL,
        OP_CHECK,
        OP_MULTI,
        OP_CREATE2,
        OP_RECONFIG,
        OP_CREATE_CONTAINER,
        OP_DELETE_CONTAINER,
        OP_CREATE_TTL,
        OP_CLOSE_SESSION,
    }
)

#: opcode -> name in logs, metrics and traces.
OPCODE_NAMES: Final[dict[int, str]] = {
    OP_NOTIFICATION: "notification",
    OP_CREATE: "create",
    OP_DELETE: "delete",
    OP_EXISTS: "exists",
    OP_GET_DATA: "getData",
    OP_SET_DATA: "setData",
    OP_GET_ACL: "getACL",
    OP_SET_ACL: "setACL",
    OP_GET_CHILDREN: "getChildren",
    OP_SYNC: "sync",
    OP_PING: "ping",
    OP_GET_CHILDREN2: "getChildren2",
    OP_CHECK: "check",
    OP_MULTI: "multi",
    OP_CREATE2: "create2",
    OP_RECONFIG: "reconfig",
    OP_CHECK_WATCHES: "checkWatches",
    OP_REMOVE_WATCHES: "removeWatches",
    OP_CREATE_CONTAINER: "createContainer",
    OP_DELETE_CONTAINER: "deleteContainer",
    OP_CREATE_TTL: "createTTL",
    OP_MULTI_READ: "multiRead",
    OP_AUTH: "auth",
    OP_SET_WATCHES: "setWatches",
    OP_SASL: "sasl",
    OP_GET_EPHEMERALS: "getEphemerals",
    OP_GET_ALL_CHILDREN_NUMBER: "getAllChildrenNumber",
    OP_SET_WATCHES2: "setWatches2",
    OP_ADD_WATCH: "addWatch",
    OP_WHO_AM_I: "whoAmI",
    OP_MEMBERSHIP: "membership",
    OP_ERROR: "error",
    OP_CREATE_SESSION: "createSession",
    OP_CLOSE_SESSION: "closeSession",
    OP_ATTACH: "attach",
    OP_EXPIRE: "expire",
}

# Reserved request ids. The server replies to every ping with XID_PING.
XID_NOTIFICATION: Final = -1
XID_PING: Final = -2
XID_AUTH: Final = -4
XID_SET_WATCHES: Final = -8

#: Zxid of the events that setWatches fires for changes made while the client was disconnected.
ZXID_UNKNOWN: Final = -1

# Event types.
EVENT_NONE: Final = -1
EVENT_CREATED: Final = 1
EVENT_DELETED: Final = 2
EVENT_DATA_CHANGED: Final = 3
EVENT_CHILDREN_CHANGED: Final = 4
EVENT_DATA_WATCH_REMOVED: Final = 5
EVENT_CHILD_WATCH_REMOVED: Final = 6
EVENT_PERSISTENT_WATCH_REMOVED: Final = 7

EVENT_NAMES: Final[dict[int, str]] = {
    EVENT_NONE: "none",
    EVENT_CREATED: "created",
    EVENT_DELETED: "deleted",
    EVENT_DATA_CHANGED: "data changed",
    EVENT_CHILDREN_CHANGED: "children changed",
    EVENT_DATA_WATCH_REMOVED: "data watch removed",
    EVENT_CHILD_WATCH_REMOVED: "child watch removed",
    EVENT_PERSISTENT_WATCH_REMOVED: "persistent watch removed",
}

# Keeper states, the second field of a WatcherEvent.
STATE_DISCONNECTED: Final = 0
STATE_CONNECTED: Final = 3
STATE_AUTH_FAILED: Final = 4
STATE_CONNECTED_READ_ONLY: Final = 5
STATE_SASL_AUTHENTICATED: Final = 6
STATE_EXPIRED: Final = -112
STATE_CLOSED: Final = 7

# Permission bits of an ACL.
PERM_READ: Final = 1
PERM_WRITE: Final = 2
PERM_CREATE: Final = 4
PERM_DELETE: Final = 8
PERM_ADMIN: Final = 16
PERM_ALL: Final = 31

# Kinds of znode: the flags of a create.
CREATE_PERSISTENT: Final = 0
CREATE_EPHEMERAL: Final = 1
CREATE_SEQUENTIAL: Final = 2
CREATE_EPHEMERAL_SEQUENTIAL: Final = 3
CREATE_CONTAINER: Final = 4
CREATE_TTL: Final = 5
CREATE_SEQUENTIAL_TTL: Final = 6

# Modes of addWatch.
WATCH_PERSISTENT: Final = 0
WATCH_PERSISTENT_RECURSIVE: Final = 1

# Watch types of checkWatches and removeWatches.
WATCHER_CHILDREN: Final = 1
WATCHER_DATA: Final = 2
WATCHER_ANY: Final = 3
WATCHER_PERSISTENT: Final = 4
WATCHER_PERSISTENT_RECURSIVE: Final = 5

#: A version argument that matches every version.
ANY_VERSION: Final = -1
