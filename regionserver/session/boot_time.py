"""The clock of the lease."""

from __future__ import annotations

import time


def boot_time_s() -> float:
    """Return the lease's clock: monotonic, and unlike CLOCK_MONOTONIC it also runs while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
