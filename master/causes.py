"""The cause that the current coroutine acts for (`regions/cluster/causes.py` defines causes).

A request to the active master begins a cause. All work of the request's coroutine belongs to the cause: the events that
it passes to the assigner, the moves that it persists, and the coroutines that it starts. A context variable carries the
origin, because Twisted runs every coroutine in its own context.
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
#: Fields that name the subject of a request. The first field that a request has is shown.
_SUBJECTS: Final = ("table", "name", "region_id", "uuid", "plan_id")
_SUBJECT_MAX: Final = 80


def acting() -> WorkOrigin | None:
    """Return the origin that the current coroutine acts for; None outside of a request."""
    return _ACTING.get()


@contextmanager
def acting_for(origin: WorkOrigin) -> Iterator[None]:
    """Make the current coroutine, and the coroutines that it starts, act for `origin`."""
    token = _ACTING.set(origin)
    try:
        yield
    finally:
        # The garbage collector closes a coroutine that is never resumed, in a context where the variable was never set.
        with suppress(ValueError):
            _ACTING.reset(token)


def log_begun(causes: Causes) -> None:
    """Log the causes that have begun since the last call, so that a cause id in the history is found in the log."""
    begun, causes.begun = causes.begun, []
    for origin in begun:
        log.info("cause {cause} begins: {text}", cause=origin.cause_id, text=origin.text)


def text_of(request: msgspec.Struct, caller: str) -> str:
    """Return the text of a request's origin: the request's type, its subject, and the caller's address."""
    subject = next((str(getattr(request, name)) for name in _SUBJECTS if getattr(request, name, "")), "")
    words = ["request:", type(request).__name__, subject[:_SUBJECT_MAX], f"from {caller}" if caller else ""]
    return " ".join(filter(None, words))
