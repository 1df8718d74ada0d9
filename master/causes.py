"""The cause that the current coroutine acts for (`regions/cluster/causes.py` has what a cause is).

A request to the active master begins a cause. What its coroutine does, now or after any await, belongs to that cause:
the events that it hands to the assigner, the moves that it persists, and the coroutines that it starts. A context
variable carries the origin, because Twisted runs every coroutine in a context of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Final

import msgspec
from twisted.logger import Logger

from regions.cluster.causes import Causes
from regions.records.model import WorkOrigin

log = Logger()

_ACTING: Final[ContextVar[WorkOrigin | None]] = ContextVar("acting", default=None)
#: Fields of requests that name what the request is about; the first that a request has is shown.
_SUBJECTS: Final = ("table", "name", "region_id", "uuid", "plan_id")
_SUBJECT_MAX: Final = 80


def acting() -> WorkOrigin | None:
    """Return the origin that the current coroutine acts for; None outside of a request."""
    return _ACTING.get()


@contextmanager
def acting_for(origin: WorkOrigin) -> Iterator[None]:
    """Let the current coroutine, and what it starts, act for `origin`."""
    token = _ACTING.set(origin)
    try:
        yield
    finally:
        # A coroutine that is never resumed is closed by the garbage collector, in a context of which nothing was set.
        with suppress(ValueError):
            _ACTING.reset(token)


def log_begun(causes: Causes) -> None:
    """Log what has begun since the last call, so that a cause id in the history can be found in the log."""
    for origin in causes.take_begun():
        log.info("cause {cause} begins: {text}", cause=origin.cause_id, text=origin.text)


def text_of(request: msgspec.Struct, caller: str) -> str:
    """Return what a request is, for the text of its origin: its type, its subject, and the address it came from."""
    subject = next((str(getattr(request, name)) for name in _SUBJECTS if getattr(request, name, "")), "")
    words = ["request:", type(request).__name__, subject[:_SUBJECT_MAX], f"from {caller}" if caller else ""]
    return " ".join(word for word in words if word)
