"""The tree of znodes: looks up znodes and applies planned changes. It makes no decisions.

All znodes are in one dict by path. Besides the znode a change updates the indexes (ephemerals by session, containers,
TTL znodes, quotas, shared access lists) and the digest.

The digest is the sum of one 32-bit checksum per znode over its Stat, path, kind, access list and data. A sum does not
depend on the order of the znodes, and a change of a znode changes it by a difference. So two replicas at one zxid are
compared by one number. The checksums of changed znodes are computed when the digest is needed, or when STALE_MAX of
them are stale. A znode that changes often, such as the parent of many new znodes, then costs one checksum for all its
changes.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from coord.tree.acl import OPEN, READ_ONLY, AccessList
from coord.tree.node import (
    KIND_CONTAINER,
    KIND_EPHEMERAL,
    KIND_PERSISTENT,
    KIND_TTL,
    ROOT,
    CreateDelta,
    DeleteDelta,
    Delta,
    SetAclDelta,
    SetDataDelta,
    Znode,
    ZnodeExtra,
    parent_of,
)
from coord.tree.quota import QUOTA_PREFIX, QuotaBook
from coord.wire.jute import I32
from coord.wire.opcodes import (
    EVENT_CHILDREN_CHANGED,
    EVENT_CREATED,
    EVENT_DATA_CHANGED,
    EVENT_DELETED,
)

#: (event type, path, access list that decides which sessions may get the event)
Event = tuple[int, bytes, AccessList]

ZOOKEEPER: Final = b"/zookeeper"
QUOTA: Final = b"/zookeeper/quota"
CONFIG: Final = b"/zookeeper/config"

#: Znodes that exist from the beginning and cannot be deleted.
SPECIAL_PATHS: Final = (ROOT, ZOOKEEPER, QUOTA, CONFIG)

#: Listings of at least this many children are cached until the children change: many clients that list one large znode
#: then cost one encoding.
CACHED_LISTING_MIN: Final = 16
CACHED_LISTINGS_BYTES_MAX: Final = 64 << 20

#: A list of children has at most as many empty slots as it has children, plus this number.
EMPTY_PLACES_MAX: Final = 16

#: Limit of znodes with a stale checksum: about two milliseconds of work.
STALE_MAX: Final = 2048


class TreeView:
    """The tree as planning reads it: the tree itself, or the tree after the earlier parts of a multi."""

    #: Whether hard quota limits reject commands that would exceed them.
    enforces_quotas: bool

    def is_over_quota(self, path: bytes, count: int, size: int) -> bool:
        """Return True if this growth at `path` would exceed a hard limit. Called only if `enforces_quotas`."""
        raise NotImplementedError

    def size_at(self, path: bytes) -> int:
        """Return the bytes of data of the znode at `path`, which exists."""
        raise NotImplementedError

    def find(self, path: bytes) -> Znode | None:
        """Return the znode at `path`, or None. The caller must not change it."""
        raise NotImplementedError


class DataTree(TreeView):
    """All znodes. Read `nodes` directly; change them only by `apply`."""

    def __init__(self, empty: bool = False) -> None:
        self.nodes: dict[bytes, Znode] = {}
        #: Sum of the `digest_part` of all znodes except those in `_stale`.
        self._digest_sum: int = 0
        #: Znodes changed since their checksum was computed, with their paths; some of them are deleted.
        self._stale: list[Znode] = []
        self._stale_paths: list[bytes] = []
        #: Bytes of all paths and data.
        self.data_bytes: int = 0
        self.acls: dict[bytes, AccessList] = {OPEN.encoded: OPEN, READ_ONLY.encoded: READ_ONLY}
        self.ephemerals: dict[int, dict[bytes, None]] = {}
        self.ephemeral_count: int = 0
        self.containers: dict[bytes, None] = {}
        self.ttls: dict[bytes, None] = {}
        self.quotas = QuotaBook()
        self.enforces_quotas: bool = False
        #: With or without a quota no znode may grow. `enforces_quotas` is set as well then.
        self.is_full: bool = False
        #: Sorted ephemeral znodes of the session that last requested its ephemerals; session 0: none.
        self._sorted: list[bytes] = []
        self._sorted_owner: int = 0
        self._listings: dict[bytes, bytes] = {}
        self._listings_bytes: int = 0
        if not empty:
            self._insert_roots()

    def _insert_roots(self) -> None:
        """Insert the znodes of a new tree. As in ZooKeeper, the counters of their parents do not include these
        creations."""
        for path, children in zip(SPECIAL_PATHS, (1, 2, 0, 0), strict=True):
            node = Znode(b"", READ_ONLY if path == CONFIG else OPEN, KIND_PERSISTENT, 0, 0)
            extra = node.ensure_extra()
            extra.num_children = children
            if path == CONFIG:
                extra.aversion = -1
            self.insert(path, node, self.nodes[parent_of(path)] if path != ROOT else None, node.stat())

    def insert(self, path: bytes, node: Znode, parent: Znode | None, stat: bytes) -> bool:
        """Insert a complete znode with the Stat `stat` below its parent, whose counters include the znode already.

        For a new tree and for a tree read from a snapshot; every other change is a delta. Only the root has no parent.
        Return False if the path exists already; then the tree is unusable.
        """
        nodes = self.nodes
        count = len(nodes)
        nodes[path] = node
        if len(nodes) == count:
            return False
        self._index(path, node)
        if parent is None:
            node.slot = 0
        else:
            extra = parent.ensure_extra()
            _append_child(extra, path, node)
            self._count_below(parent_of(path), extra, 1)
            if path.startswith(QUOTA_PREFIX):
                self.quotas.created(path)
        self._digest_sum += node.update_digest(path, stat)
        return True

    def digest_sum(self) -> int:
        """Return the sum of the `digest_part` of all znodes, after updating the stale ones: the tree's part of the
        digest."""
        added = 0
        paths = self._stale_paths
        for i, node in enumerate(self._stale):
            if node.is_digest_stale:
                node.is_digest_stale = False
                added += node.update_digest(paths[i])
        self._stale.clear()
        paths.clear()
        self._digest_sum += added
        return self._digest_sum

    def _touch(self, path: bytes, node: Znode) -> None:
        """Mark the checksum of a znode as stale. Called directly before or after the change."""
        if not node.is_digest_stale:
            node.is_digest_stale = True
            self._digest_sum -= node.digest_part
            self._stale.append(node)
            self._stale_paths.append(path)

    def find(self, path: bytes) -> Znode | None:
        """Return the znode at `path`, or None."""
        return self.nodes.get(path)

    def size_at(self, path: bytes) -> int:
        """Return the bytes of data of the znode at `path`."""
        return size_of(self.nodes[path].data)

    # --- changes -----------------------------------------------------------------------------------------------------

    def apply(self, delta: Delta, zxid: int, time_ms: int, events: list[Event] | None) -> Znode | None:
        """Apply a planned change. Append the events for watchers to `events`, in ZooKeeper's order.

        `events` is None if no session watches anything. Return the changed znode, or None if it is deleted.
        """
        if len(self._stale) >= STALE_MAX:
            self.digest_sum()
        if isinstance(delta, SetDataDelta):
            return self._set_data(delta, zxid, time_ms, events)
        if isinstance(delta, CreateDelta):
            return self._create(delta, zxid, time_ms, events)
        if isinstance(delta, DeleteDelta):
            self._delete(delta, zxid, events)
            return None
        assert isinstance(delta, SetAclDelta), delta
        return self._set_acl(delta)

    def _set_data(self, delta: SetDataDelta, zxid: int, time_ms: int, events: list[Event] | None) -> Znode:
        path = delta.path
        node = delta.node if delta.node is not None else self.nodes[path]
        grown = size_of(delta.data) - size_of(node.data)
        node.data = delta.data
        node.version = delta.version
        node.mzxid = zxid
        node.mtime = time_ms
        self._touch(path, node)
        self.data_bytes += grown
        if self.quotas.active:
            self._charge(path, 0, grown)
        if events is not None:
            events.append((EVENT_DATA_CHANGED, path, node.acl))
        return node

    def _create(self, delta: CreateDelta, zxid: int, time_ms: int, events: list[Event] | None) -> Znode:
        path = delta.path
        data = delta.data
        node = Znode(data, self.share(delta.acl), delta.kind, delta.ephemeral_owner, delta.ttl_ms)
        node.czxid = node.mzxid = zxid
        if node.extra is not None:
            node.extra.pzxid = zxid
        node.ctime = node.mtime = time_ms
        self.nodes[path] = node
        self._index(path, node)
        # At once, because most znodes stay for a while as they were created.
        self._digest_sum += node.update_digest(path)
        parent_path = delta.parent
        parent = delta.parent_node if delta.parent_node is not None else self.nodes[parent_path]
        extra = parent.ensure_extra()
        _append_child(extra, path, node)
        extra.num_children += 1
        extra.creates += 1
        extra.pzxid = zxid
        self._count_below(parent_path, extra, 1)
        self._touch(parent_path, parent)
        if self._listings:
            self._forget_listing(parent_path)
        if self.quotas.active:
            self._charge(path, 1, size_of(data))
        if path.startswith(QUOTA_PREFIX):
            self._quota_created(path)
        if events is not None:
            events.append((EVENT_CREATED, path, node.acl))
            events.append((EVENT_CHILDREN_CHANGED, parent_path, parent.acl))
        return node

    def _delete(self, delta: DeleteDelta, zxid: int, events: list[Event] | None) -> None:
        path = delta.path
        node = delta.node if delta.node is not None else self.nodes[path]
        del self.nodes[path]
        parent_path = delta.parent
        parent = delta.parent_node if delta.parent_node is not None else self.nodes[parent_path]
        extra = parent.extra
        assert extra is not None, path
        self._remove_child(extra, node)
        self._count_below(parent_path, extra, -1)
        extra.pzxid = zxid
        self._touch(parent_path, parent)
        self._unindex(path, node)
        if self._listings:
            self._forget_listing(parent_path)
        if self.quotas.active:
            self._charge(path, -1, -size_of(node.data))
            self.quotas.deleted(path)
        if node.is_digest_stale:
            # The znode stays on the list until the next digest, but its data is not needed.
            node.is_digest_stale = False
            node.data = None
        else:
            self._digest_sum -= node.digest_part
        if events is not None:
            events.append((EVENT_DELETED, path, node.acl))
            events.append((EVENT_CHILDREN_CHANGED, parent_path, parent.acl))

    def _remove_child(self, extra: ZnodeExtra, node: Znode) -> None:
        """Remove a child from its parent's list. Compact the list when more than half of its slots are empty."""
        children = extra.children
        assert children is not None, node.slot
        children[node.slot] = None
        extra.num_children -= 1
        if not extra.num_children:
            extra.children = None
        elif len(children) > 2 * extra.num_children + EMPTY_PLACES_MAX:
            compacted: list[bytes | None] = []
            for child in children:
                if child is not None:
                    self.nodes[child].slot = len(compacted)
                    compacted.append(child)
            extra.children = compacted

    def _set_acl(self, delta: SetAclDelta) -> Znode:
        node = self.nodes[delta.path]
        old = node.acl
        node.acl = self.share(delta.acl)
        self._release(old)
        node.ensure_extra().aversion = delta.aversion
        self._touch(delta.path, node)
        return node

    def _count_below(self, path: bytes, extra: ZnodeExtra, change: i64) -> None:
        """Count a znode that was created or deleted below `path`, whose `extra` is given, in all znodes above it.

        Each znode points to the one above it, so the way up needs no paths.
        """
        if extra.above is None and path != ROOT:
            extra.above = self.nodes[parent_of(path)]
        extra.below += change
        node = extra.above
        while node is not None:
            up = node.extra
            assert up is not None, "a parent without its list of children"
            up.below += change
            node = up.above

    # --- indexes -----------------------------------------------------------------------------------------------------

    def _index(self, path: bytes, node: Znode) -> None:
        self.data_bytes += len(path) + size_of(node.data)
        kind = node.kind
        if not kind:
            return
        if kind == KIND_EPHEMERAL:
            owned = self.ephemerals.get(node.ephemeral_owner)
            if owned is None:
                owned = self.ephemerals[node.ephemeral_owner] = {}
            owned[path] = None
            self.ephemeral_count += 1
            self._forget_sorted(node)
        elif kind == KIND_CONTAINER:
            self.containers[path] = None
        elif kind == KIND_TTL:
            self.ttls[path] = None

    def _unindex(self, path: bytes, node: Znode) -> None:
        self.data_bytes -= len(path) + size_of(node.data)
        self._release(node.acl)
        kind = node.kind
        if not kind:
            return
        if kind == KIND_EPHEMERAL:
            owned = self.ephemerals[node.ephemeral_owner]
            del owned[path]
            self.ephemeral_count -= 1
            self._forget_sorted(node)
            if not owned:
                del self.ephemerals[node.ephemeral_owner]
        elif kind == KIND_CONTAINER:
            del self.containers[path]
        elif kind == KIND_TTL:
            del self.ttls[path]

    def _forget_sorted(self, node: Znode) -> None:
        """Forget the sorted list of the owner of an ephemeral znode that was created or deleted."""
        if node.ephemeral_owner == self._sorted_owner:
            self._sorted_owner = 0
            self._sorted = []

    def share(self, acl: AccessList) -> AccessList:
        """Return the shared object of this access list, with one more reference."""
        if acl is OPEN:
            return acl
        known = self.acls.setdefault(acl.encoded, acl)
        if known is not OPEN and known is not READ_ONLY:
            known.refs += 1
        return known

    def _release(self, acl: AccessList) -> None:
        if acl is OPEN or acl is READ_ONLY:
            return
        acl.refs -= 1
        if not acl.refs:
            del self.acls[acl.encoded]

    def ephemerals_of(self, session_id: int) -> list[bytes]:
        """Return the ephemeral znodes of a session, sorted. The caller must not change the list."""
        owned = self.ephemerals.get(session_id)
        if owned is None:
            return []
        if self._sorted_owner != session_id:
            self._sorted = sorted(owned)
            self._sorted_owner = session_id
        return self._sorted

    # --- quotas ------------------------------------------------------------------------------------------------------

    def _charge(self, path: bytes, count: int, size: int) -> None:
        """Add a change below a quota to its statistics znode. The versions of that znode do not change."""
        limited = self.quotas.limited(path)
        quotas = self.quotas
        stats = self.nodes.get(quotas.stats_path(limited)) if limited else None
        if stats is not None:
            usage = quotas.added(stats.data, count, size)
            limits = self.nodes.get(quotas.limits_path(limited))
            if limits is not None:
                quotas.note(limited, limits.data, stats.data, usage)
            self._write_stats(quotas.stats_path(limited), stats, usage)

    def is_over_quota(self, path: bytes, count: int, size: int) -> bool:
        """Return True if adding this many znodes and bytes at `path` would exceed a hard limit."""
        if self.is_full and (count > 0 or size > 0):
            return True
        limited = self.quotas.limited(path)
        return bool(limited) and self.is_over_limit(limited, count, size)

    def is_over_limit(self, limited: bytes, count: int, size: int) -> bool:
        """Return True if this growth would exceed a hard limit of the znode `limited`, which has the quota."""
        limits = self.nodes.get(self.quotas.limits_path(limited))
        stats = self.nodes.get(self.quotas.stats_path(limited))
        return limits is not None and stats is not None and self.quotas.refuses(limits.data, stats.data, count, size)

    def _quota_created(self, path: bytes) -> None:
        """Count the znodes below a limited znode whose limits or statistics znode was created."""
        limited = self.quotas.created(path)
        if not limited:
            return
        stats_path = self.quotas.stats_path(limited)
        stats = self.nodes.get(stats_path)
        if stats is not None:
            count = 0
            size = 0
            for each in self.subtree(limited):
                count += 1
                size += size_of(self.nodes[each].data)
            self._write_stats(stats_path, stats, self.quotas.encode(count, size))

    def _write_stats(self, path: bytes, stats: Znode, data: bytes) -> None:
        self.data_bytes += len(data) - size_of(stats.data)
        stats.data = data
        self._touch(path, stats)

    # --- reads -------------------------------------------------------------------------------------------------------

    def subtree(self, path: bytes) -> list[bytes]:
        """Return `path` and everything below it, parents first; empty if it does not exist."""
        if path not in self.nodes:
            return []
        paths = [path]
        for each in paths:
            paths += self.nodes[each].children()
        return paths

    def count_below(self, path: bytes) -> int:
        """Return the number of znodes below `path`, which exists."""
        extra = self.nodes[path].extra
        return extra.below if extra is not None else 0

    def listing(self, path: bytes, node: Znode) -> bytes:
        """Return the names of the children as a jute vector, in the order of creation."""
        known = self._listings.get(path)
        if known is not None:
            return known
        cut = len(path) + 1 if path != ROOT else 1
        pack = I32.pack
        count = node.num_children
        parts = [pack(count)]
        for child in node.children():
            parts.append(pack(len(child) - cut))
            parts.append(child[cut:])
        encoded = b"".join(parts)
        if count >= CACHED_LISTING_MIN:
            if self._listings_bytes + len(encoded) > CACHED_LISTINGS_BYTES_MAX:
                self._listings.clear()
                self._listings_bytes = 0
            self._listings[path] = encoded
            self._listings_bytes += len(encoded)
        return encoded

    def _forget_listing(self, path: bytes) -> None:
        encoded = self._listings.pop(path, None)
        if encoded is not None:
            self._listings_bytes -= len(encoded)

    def reap_candidates(self, time_ms: int) -> list[bytes]:
        """Return the container and TTL znodes that may be deleted at `time_ms`, sorted."""
        due: list[bytes] = []
        for path in self.containers:
            if is_reapable(self.nodes[path], time_ms):
                due.append(path)
        for path in self.ttls:
            if is_reapable(self.nodes[path], time_ms):
                due.append(path)
        due.sort()
        return due

    # --- invariants --------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Raise AssertionError if an index, a count or the digest does not match the znodes. Changes nothing.

        For tests: reads every znode.
        """
        for path, node in self.nodes.items():
            self._validate_place(path, node)
        self._validate_indexes()
        self._validate_lists()
        self._validate_digest()

    def _validate_place(self, path: bytes, node: Znode) -> None:
        """Check the links between a znode, its parent and its children."""
        if path == ROOT:
            assert node.slot == 0, f"the root has the slot {node.slot}"
        else:
            parent = self.nodes.get(parent_of(path))
            assert parent is not None, f"{path!r} has no parent"
            assert parent.kind != KIND_EPHEMERAL, f"{path!r} is below an ephemeral znode"
            extra = parent.extra
            known = extra.children if extra is not None else None
            assert known is not None and node.slot < len(known) and known[node.slot] == path, (  # noqa: PT018
                f"{path!r} is not in slot {node.slot} of its parent"
            )
        children = node.children()
        assert node.num_children == len(children), f"{path!r} counts {node.num_children} of {len(children)} children"
        for child in children:
            assert child in self.nodes, f"{path!r} lists {child!r}, which does not exist"
        if node.extra is not None and node.extra.children is not None:
            slots = len(node.extra.children)
            assert slots <= 2 * len(children) + EMPTY_PLACES_MAX, f"{path!r} has {slots} slots for its children"
            assert children, f"{path!r} keeps an empty list of children"
        below = sum([self.count_below(child) + 1 for child in children])
        assert self.count_below(path) == below, f"{path!r} counts {self.count_below(path)} znodes below it, not {below}"
        assert node.mzxid >= node.czxid, f"{path!r} was written at {node.mzxid}, before it was created"
        assert (node.ephemeral_owner != 0) == (node.kind == KIND_EPHEMERAL), f"{path!r} has the wrong owner or kind"

    def _validate_indexes(self) -> None:
        """Check the indexes: sizes, owners, containers, TTLs, listings, quotas."""
        size = 0
        ephemerals: dict[int, set[bytes]] = {}
        for path, node in self.nodes.items():
            size += len(path) + size_of(node.data)
            if node.kind == KIND_EPHEMERAL:
                ephemerals.setdefault(node.ephemeral_owner, set()).add(path)
        assert self.data_bytes == size, f"data_bytes is {self.data_bytes}, paths and data have {size}"
        owned = {owner: set(paths) for owner, paths in self.ephemerals.items()}
        assert owned == ephemerals, f"ephemerals by session are {owned}, the znodes have {ephemerals}"
        count = sum([len(paths) for paths in ephemerals.values()])
        assert self.ephemeral_count == count, f"ephemeral_count is {self.ephemeral_count}, there are {count}"
        for kind, index in ((KIND_CONTAINER, self.containers), (KIND_TTL, self.ttls)):
            paths = {path for path, node in self.nodes.items() if node.kind == kind}
            assert set(index) == paths, f"the index of kind {kind} has {sorted(index)}, there are {sorted(paths)}"
        cached = sum([len(encoded) for encoded in self._listings.values()])
        assert self._listings_bytes == cached, f"{self._listings_bytes} bytes of listings cached, not {cached}"
        for path in self._listings:
            assert path in self.nodes, f"the listing of {path!r} is cached, but the znode does not exist"
        self.quotas.validate(list(self.nodes))

    def _validate_lists(self) -> None:
        """Check that znodes share one object per access list, with a correct reference count."""
        refs: dict[bytes, int] = {}
        for path, node in self.nodes.items():
            encoded = node.acl.encoded
            assert self.acls.get(encoded) is node.acl, f"{path!r} does not share its access list"
            refs[encoded] = refs.get(encoded, 0) + 1
        for encoded, acl in self.acls.items():
            if acl is not OPEN and acl is not READ_ONLY:
                used = refs.get(encoded, 0)
                assert acl.refs == used, f"the access list {acl.lines} counts {acl.refs} znodes, {used} have it"
                assert used, f"the access list {acl.lines} is kept without a znode"

    def _validate_digest(self) -> None:
        """Check that the digest is the sum over the znodes that are not stale."""
        waiting = set(self._stale_paths)
        total = 0
        for path, node in self.nodes.items():
            if node.is_digest_stale:
                assert path in waiting, f"{path!r} is stale, but not on the list"
            else:
                assert node.digest_part == node.checksum(path, node.stat()), f"the digest of {path!r} is out of date"
                total += node.digest_part
        assert self._digest_sum == total, f"the digest is {self._digest_sum:#x}, the znodes add up to {total:#x}"


def is_reapable(node: Znode, time_ms: int) -> bool:
    """Return True if the store itself may delete `node`, which must have no children.

    A container must have had a child. A TTL znode must not have been written for longer than its TTL.
    """
    if node.num_children:
        return False
    if node.kind == KIND_CONTAINER:
        return node.creates > 0
    return node.kind == KIND_TTL and time_ms - node.mtime > node.ttl_ms


def size_of(data: bytes | None) -> int:
    """Return the bytes of a znode's data."""
    return len(data) if data is not None else 0


def _append_child(extra: ZnodeExtra, path: bytes, node: Znode) -> None:
    """Append a znode to its parent's list of children."""
    children = extra.children
    if children is None:
        node.slot = 0
        extra.children = [path]
    else:
        node.slot = len(children)
        children.append(path)
