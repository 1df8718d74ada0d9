"""Quotas: usage below a znode, stored where ZooKeeper's tools look for it.

`/zookeeper/quota<path>/zookeeper_limits` puts a quota on `path`. While it exists,
`/zookeeper/quota<path>/zookeeper_stats` (created by the same tool) has `count=N,bytes=M` of the znodes at and below
`path`. If quotas are nested, the innermost one applies. The limits, each of which may be missing, or -1 for none:

    count=N,bytes=N=;byteHardLimit=N;countHardLimit=N

Exceeding a soft limit is logged (`notes`), and a hard limit, too, while quotas are not enforced. A hard limit rejects
commands that would exceed it, in batches with the flag ENFORCE_QUOTAS (`coord.tree.command`).
"""

from __future__ import annotations

import re
from typing import Final

QUOTA_PREFIX: Final = b"/zookeeper/quota/"
LIMITS_SUFFIX: Final = b"/zookeeper_limits"
STATS_SUFFIX: Final = b"/zookeeper_stats"

_PREFIX_BYTES: Final = len(QUOTA_PREFIX) - 1
# At most 18 digits, so that a number written by hand cannot overflow.
_stats: Final = re.compile(rb"count=(-?\d{1,18}),bytes=(-?\d{1,18})(?!\d)").match
_limits: Final = re.compile(rb"(?:^|[,;])(count|bytes|countHardLimit|byteHardLimit)=(-?\d{1,18})(?!\d)").findall

#: Limit of lines that wait for the log. The node takes them after each entry.
NOTES_MAX: Final = 100


class QuotaBook:
    """The znodes with a quota. `active` is False while there is none, so that stores without quotas have no cost."""

    def __init__(self) -> None:
        #: Lines for this node's log: limits exceeded since the list was last cleared. Not part of the replicated state.
        self.notes: list[str] = []
        self.active: bool = False
        self._limited: dict[bytes, None] = {}

    def created(self, path: bytes) -> bytes:
        """Record a new quota znode `path`. Return the limited znode whose usage must be counted anew, or b""."""
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
        """Record that `path` is deleted, and with a limits znode its quota."""
        if path.startswith(QUOTA_PREFIX) and path.endswith(LIMITS_SUFFIX):
            self._limited.pop(path[_PREFIX_BYTES : -len(LIMITS_SUFFIX)], None)
            self.active = bool(self._limited)

    def validate(self, paths: list[bytes]) -> None:
        """Raise AssertionError if the quotas do not match the limits znodes among `paths`. For tests."""
        found = {
            path[_PREFIX_BYTES : -len(LIMITS_SUFFIX)]
            for path in paths
            if path.startswith(QUOTA_PREFIX) and path.endswith(LIMITS_SUFFIX)
        } - {b""}
        assert set(self._limited) == found, f"quotas on {sorted(self._limited)}, limits for {sorted(found)}"
        assert self.active == bool(found), f"quotas are active: {self.active}, there are {len(found)}"

    def limited(self, path: bytes) -> bytes:
        """Return the innermost znode with a quota at or above `path`, or b""."""
        while path and path not in self._limited:
            path = path[: path.rfind(b"/")]
        return path

    def limits_path(self, limited: bytes) -> bytes:
        """Return the path of the limits of `limited`."""
        assert limited, "limits of no znode"
        return QUOTA_PREFIX[:-1] + limited + LIMITS_SUFFIX

    def refuses(self, limits: bytes | None, stats: bytes | None, count: int, size: int) -> bool:
        """Return True if this growth would exceed a hard limit. A change without growth is never rejected."""
        known = dict(_limits(limits or b""))
        match = _stats(stats or b"")
        used_count = int(match[1]) if match is not None else 0
        used_size = int(match[2]) if match is not None else 0
        count_max = int(known.get(b"countHardLimit", b"-1"))
        size_max = int(known.get(b"byteHardLimit", b"-1"))
        return (count > 0 and -1 < count_max < used_count + count) or (size > 0 and -1 < size_max < used_size + size)

    def note(self, limited: bytes, limits: bytes | None, before: bytes | None, after: bytes) -> None:
        """Record for the log which limits the usage has just exceeded."""
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
        """Return the path of the statistics of `limited`."""
        assert limited, "statistics of no znode"
        return QUOTA_PREFIX[:-1] + limited + STATS_SUFFIX

    def added(self, data: bytes | None, count: int, size: int) -> bytes:
        """Return the statistics `data` plus `count` znodes and `size` bytes; malformed statistics begin at 0."""
        match = _stats(data or b"")
        if match is not None:
            count += int(match[1])
            size += int(match[2])
        return self.encode(count, size)

    def encode(self, count: int, size: int) -> bytes:
        """Encode statistics as ZooKeeper does."""
        return b"count=%d,bytes=%d" % (count, size)
