"""A ZooKeeper client for processes that run a Twisted reactor.

session.py        one session: connects, reconnects, expires
connection.py     one connection, and the replies to its requests
requests.py       one function for each request
ops.py            the parts of a multi
watches.py        watches that are set again after a reconnect
version_watch.py  a watch that counts the changes that were missed
versions.py, kazoo_watch.py, hosts.py, access.py, access_lists.py, secured.py
following/        the latest value of a znode, with a bound on its age
"""

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
