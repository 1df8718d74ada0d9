"""Quotas: how much is below a znode, kept where ZooKeeper's tools look for it.

`/zookeeper/quota<path>/zookeeper_limits` puts a quota on `path`; while it exists,
`/zookeeper/quota<path>/zookeeper_stats` (made by the same tool) holds `count=N,bytes=M` of what is at and below `path`.
Where quotas are nested, the innermost one counts. Limits are not enforced: as in ZooKeeper without `enforceQuota`, they
inform.
"""

from __future__ import annotations

import re
from typing import Final

QUOTA_PREFIX: Final = b"/zookeeper/quota/"
LIMITS_SUFFIX: Final = b"/zookeeper_limits"
STATS_SUFFIX: Final = b"/zookeeper_stats"

_PREFIX_BYTES: Final = len(QUOTA_PREFIX) - 1
# At most 18 digits: what somebody wrote there by hand must not overflow.
_stats: Final = re.compile(rb"count=(-?\d{1,18}),bytes=(-?\d{1,18})(?!\d)").match


class QuotaBook:
    """Which znodes have a quota. `active` is False while none has, so that others pay nothing."""

    def __init__(self) -> None:
        self.active: bool = False
        self._limited: dict[bytes, None] = {}

    def created(self, path: bytes) -> bytes:
        """Note that the quota znode `path` was made; returns the limited znode whose usage to count anew, or b""."""
        if path.endswith(LIMITS_SUFFIX):
            limited = path[_PREFIX_BYTES : -len(LIMITS_SUFFIX)]
            if limited:
                self._limited[limited] = None
                self.active = True
            return limited
        if path.endswith(STATS_SUFFIX):
            return path[_PREFIX_BYTES : -len(STATS_SUFFIX)]
        return b""

    def deleted(self, path: bytes) -> None:
        """Note that `path` is gone; if it was a quota's limits, so is the quota."""
        if path.startswith(QUOTA_PREFIX) and path.endswith(LIMITS_SUFFIX):
            self._limited.pop(path[_PREFIX_BYTES : -len(LIMITS_SUFFIX)], None)
            self.active = bool(self._limited)

    def limited(self, path: bytes) -> bytes:
        """The innermost znode with a quota at or above `path`; b"" if there is none."""
        while path and path not in self._limited:
            path = path[: path.rfind(b"/")]
        return path

    def stats_path(self, limited: bytes) -> bytes:
        """Where the usage of `limited` is kept."""
        return QUOTA_PREFIX[:-1] + limited + STATS_SUFFIX

    def added(self, data: bytes | None, count: int, size: int) -> bytes:
        """The statistics `data` with `count` znodes and `size` bytes more; unreadable ones begin at 0."""
        match = _stats(data or b"")
        if match is not None:
            count += int(match[1])
            size += int(match[2])
        return self.encode(count, size)

    def encode(self, count: int, size: int) -> bytes:
        """Statistics as ZooKeeper writes them."""
        return b"count=%d,bytes=%d" % (count, size)
