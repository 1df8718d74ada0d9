"""How long a thread has waited for anything but a processor: a disk, a lock, the interpreter.

A round that takes long has either waited for the disk, or the processors were busy. The clock on the wall cannot
distinguish the two. On a busy machine it would take each loss of the processor for a slow disk.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Final

_NS: Final = 1e9
#: Statistics of the thread that opens it: nanoseconds on a processor, nanoseconds in the queue for one, times run.
_STATISTICS: Final = "/proc/thread-self/schedstat"
_BYTES_MAX: Final = 64

_thread = threading.local()


def waited_s() -> float:
    """Return the seconds that this thread has spent neither on a processor nor in the queue for one, plus a constant.

    Where the system has no statistics of threads, the queue for a processor counts as well.
    """
    try:
        statistics: int = _thread.statistics
    except AttributeError:
        statistics = _thread.statistics = _opened()
    queued_s = int(os.pread(statistics, _BYTES_MAX, 0).split()[1]) / _NS if statistics >= 0 else 0.0
    return time.monotonic() - time.thread_time() - queued_s


def _opened() -> int:
    """Return a descriptor of this thread's statistics, -1 without them. It stays open as long as the process."""
    try:
        return os.open(_STATISTICS, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
