"""Common parts of soaks of real clusters: their beginning, threads, kills, and the choice of splits and merges."""

from __future__ import annotations

import logging
import random
import signal
import time
from collections import Counter
from collections.abc import Iterable

from tests.e2e.masters import Process
from tests.support.background import Background


def begin(seed: int | None) -> int:
    """Prepare this process for a soak. Return the seed, or a random one for None.

    SIGTERM raises KeyboardInterrupt, so that every signal which ends this process also ends the cluster. Lost sessions
    are expected, so kazoo does not log them.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    return random.SystemRandom().randrange(1 << 30) if seed is None else seed


class Worker(Background):
    """A thread of a soak that counts its work and notes faults."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []


def kill_for(processes: Iterable[Process], down_s: float) -> None:
    """Kill the processes. Start them again after `down_s` seconds, or at once if the soak is interrupted."""
    killed = list(processes)
    for one in killed:
        one.kill()
    try:
        time.sleep(down_s)
    finally:
        for one in killed:
            one.start()


def wants_split(regions: int, bounds: tuple[int, int], chance: random.Random) -> bool:
    """Return True to split a region next, False to merge two, so that the number of regions stays within the bounds."""
    return regions <= bounds[0] or (regions < bounds[1] and chance.random() < 0.5)
