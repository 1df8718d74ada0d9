"""What a region server sets for its whole process: the reactor's clock and the limit of open files."""

from __future__ import annotations

import resource
import time
from typing import Any


def install_reactor() -> Any:
    """The process's reactor, its timers on the monotonic clock."""
    from twisted.internet import reactor

    # Twisted's timers follow the wall clock; a server whose clock is set back by an hour must not stop renewing.
    process_reactor: Any = reactor
    process_reactor.seconds = time.monotonic
    return process_reactor


def allow_many_files() -> None:
    """Every open region holds a descriptor: take as many as the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
