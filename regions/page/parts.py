"""Messages about rows in the page's stream: parts of a snapshot, and deltas."""

from __future__ import annotations

import msgspec


class PagePart(msgspec.Struct, frozen=True, omit_defaults=True):
    """Complete rows with consecutive numbers from `first` on.

    `key` to `server` have a value for each row; `table` and `server` are indices, -1 for no server. The other lists are
    empty if no row has anything but `since` 0, `size` -1, `load` 0.
    """

    first: int
    key: list[str]
    table: list[int]
    start: list[str]
    state: list[int]
    server: list[int]
    since: list[int] = []
    size: list[int] = []
    load: list[float] = []
    #: Tables and servers with their indices, as in a delta.
    tables: list[tuple[int, str]] = []
    servers: list[tuple[int, str]] = []


class PageDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """Changes. `new` has rows that were not in an earlier delta; the other lists have rows that were."""

    n: list[int] = []
    state: list[int] = []
    server: list[int] = []
    since: list[int] = []
    new: PagePart | None = None
    #: Numbers and sizes of rows whose size has changed; numbers and requests per second of rows whose load has changed.
    sized: list[tuple[int, int]] = []
    loaded: list[tuple[int, float]] = []
    #: Tables and servers that were not named before, with their indices.
    tables: list[tuple[int, str]] = []
    servers: list[tuple[int, str]] = []
