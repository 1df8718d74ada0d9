"""Quotas: how much is below a znode, kept where ZooKeeper's tools look for it.

`/zookeeper/quota<path>/zookeeper_limits` puts a quota on `path`; while it exists,
`/zookeeper/quota<path>/zookeeper_stats` (made by the same tool) holds `count=N,bytes=M` of what is at and below `path`.
Where quotas are nested, the innermost one counts. The limits, of which any may be missing or -1 for none:

    count=N,bytes=N=;byteHardLimit=N;countHardLimit=N

A soft limit is told when it is passed (`notes`, for the log); so is a hard one while quotas are not enforced. A hard
limit refuses what would pass it, in groups that say so (`coord.tree.command`).
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
_limits: Final = re.compile(rb"(?:^|[,;])(count|bytes|countHardLimit|byteHardLimit)=(-?\d{1,18})(?!\d)").findall

#: Lines for the log that wait to be taken: whoever applies takes them, and if nobody does, no more are kept.
NOTES_MAX: Final = 100


class QuotaBook:
    """Which znodes have a quota. `active` is False while none has, so that others pay nothing."""

    def __init__(self) -> None:
        #: For the log of this node: which limits were passed since it was last emptied. No part of the state.
        self.notes: list[str] = []
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

    def validate(self, paths: list[bytes]) -> None:
        """Raise AssertionError if the quotas are not those of the limits znodes among `paths`. For tests."""
        found = {
            path[_PREFIX_BYTES : -len(LIMITS_SUFFIX)]
            for path in paths
            if path.startswith(QUOTA_PREFIX) and path.endswith(LIMITS_SUFFIX)
        } - {b""}
        assert set(self._limited) == found, f"quotas on {sorted(self._limited)}, limits for {sorted(found)}"
        assert self.active == bool(found), f"quotas are active: {self.active}, there are {len(found)}"

    def limited(self, path: bytes) -> bytes:
        """The innermost znode with a quota at or above `path`; b"" if there is none."""
        while path and path not in self._limited:
            path = path[: path.rfind(b"/")]
        return path

    def limits_path(self, limited: bytes) -> bytes:
        """Return where the limits of `limited` are."""
        return QUOTA_PREFIX[:-1] + limited + LIMITS_SUFFIX

    def refuses(self, limits: bytes | None, stats: bytes | None, count: int, size: int) -> bool:
        """Return True if so many znodes and bytes more would pass a hard limit; what does not grow is never refused."""
        known = dict(_limits(limits or b""))
        match = _stats(stats or b"")
        used_count = int(match[1]) if match is not None else 0
        used_size = int(match[2]) if match is not None else 0
        count_max = int(known.get(b"countHardLimit", b"-1"))
        size_max = int(known.get(b"byteHardLimit", b"-1"))
        return (count > 0 and -1 < count_max < used_count + count) or (size > 0 and -1 < size_max < used_size + size)

    def note(self, limited: bytes, limits: bytes | None, before: bytes | None, after: bytes) -> None:
        """Remember for the log which limits the usage has just passed."""
        old = _stats(before or b"")
        new = _stats(after)
        if old is None or new is None or len(self.notes) >= NOTES_MAX:
            return
        known = dict(_limits(limits or b""))
        for at, name, hard in ((1, b"count", b"countHardLimit"), (2, b"bytes", b"byteHardLimit")):
            for key in (name, hard):
                most = int(known.get(key, b"-1"))
                if -1 < most < int(new[at]) and int(old[at]) <= most:
                    path = limited.decode(errors="replace")
                    self.notes.append(
                        f"quota of {path} exceeded: {name.decode()} {int(new[at])}, {key.decode()} {most}"
                    )

    def stats_path(self, limited: bytes) -> bytes:
        """Return where the usage of `limited` is kept."""
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
