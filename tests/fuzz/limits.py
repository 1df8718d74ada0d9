"""Bounds of one case: time and memory."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable

#: Time limit of a case: a leader that pauses for a tenth of its election timeout is as good as slow.
CASE_MS_MAX = 50
#: Bytes by which one case may raise the high-water mark of this process's memory: frames are limited to less.
CASE_BYTES_MAX = 32 << 20


class TooSlowError(AssertionError):
    """Raised when a case took longer than CASE_MS_MAX three times in a row."""


class TooLargeError(AssertionError):
    """Raised when a case took more memory than CASE_BYTES_MAX."""


def bounded(target: Callable[[bytes], None], data: bytes, *, slowdown: float = 1.0) -> None:
    """Run one case. `slowdown` is the factor of the instruments. Time is that of this thread, because the machine may
    be busy."""
    before = _high_water()
    limit_ms = CASE_MS_MAX * slowdown
    took_ms = _timed(target, data)
    if took_ms > limit_ms:
        took_ms = min(took_ms, _timed(target, data), _timed(target, data))
        if took_ms > limit_ms:
            raise TooSlowError(f"{took_ms:.0f} ms for {len(data)} bytes, allowed are {limit_ms:.0f}")
    grown = _high_water() - before
    if grown > CASE_BYTES_MAX:
        raise TooLargeError(f"{grown} bytes more memory for {len(data)} bytes of input, allowed are {CASE_BYTES_MAX}")


def _timed(target: Callable[[bytes], None], data: bytes) -> float:
    start = time.thread_time()
    target(data)
    return (time.thread_time() - start) * 1000


def _high_water() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
