"""A ZooKeeper client for processes that run a Twisted reactor."""

from coord.client.ops import Check, Create, Delete, GetChildren, GetData, SetData, digest_acl
from coord.client.session import EVENT_GAP, SessionState, ZkClient

__all__ = [
    "EVENT_GAP",
    "Check",
    "Create",
    "Delete",
    "GetChildren",
    "GetData",
    "SessionState",
    "SetData",
    "ZkClient",
    "digest_acl",
]
