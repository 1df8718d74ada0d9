"""The rows of all regions in compact arrays, and the deltas between the sent state and the present one.

A row has a number, which is its index in the arrays. Numbers are given once and never reused within a generation. So a
part or a delta can be applied in any order and twice: each sets rows by number to values that are at least as new.

    look        replicas are new, have changed, or are gone: their rows are made anew
    put, drop   a row has changed, or is gone
    size, load  bytes and requests per second of a row, as far as they were measured
    part        rows from a number on, for a new listener
    take        the changes since the last call: each row at most once, with its latest values

A replica that has changed and changed back between two looks is not sent. A delta has at most DELTA_ROWS_MAX rows; the
others follow with the next one, oldest first.

A replica holds the number of its row (`Replica.page_row`), so that a look needs no dictionary of 100,000 keys. The
number is valid only if the row at this number has the replica's key, because it may come from an earlier generation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from regions.cluster.entities import Replica
from regions.page.parts import PageDelta, PagePart
from regions.page.rows import PageRow, RowState, row_of

#: Rows in one delta. More changes follow at once with the next one.
DELTA_ROWS_MAX: Final = 2_000
#: Rows in one part for a new listener: about 100 kB.
PART_ROWS_MAX: Final = 2_000

_GONE: Final = RowState.GONE.value


class PageModel:
    """See the module docstring."""

    def __init__(self, part_rows: int = PART_ROWS_MAX) -> None:
        """`part_rows`: rows in one part at most."""
        self._part_rows = part_rows
        self._numbers: dict[str, int] = {}
        self._keys: list[str] = []
        self._table: list[int] = []
        self._start: list[str] = []
        self._state: list[int] = []
        self._server: list[int] = []
        self._since: list[int] = []
        self._sizes: list[int] = []
        self._loads: list[float] = []
        self.tables = _Names()
        self.servers = _Names()
        #: Numbers of the rows that have changed since they were sent. Rows from `_sent` on were never sent.
        self._changed: dict[int, None] = {}
        self._resized: dict[int, None] = {}
        self._reloaded: dict[int, None] = {}
        self._sent = 0
        self._tables_sent = 0
        self._servers_sent = 0
        #: Keys of tablets' rows.
        self._tablets: set[str] = set()

    def __len__(self) -> int:
        """Return the number of rows, those that are gone included."""
        return len(self._state)

    @property
    def live(self) -> int:
        """Number of rows that are not gone."""
        return len(self._numbers)

    @property
    def is_wasteful(self) -> bool:
        """True if most rows are gone: a new generation would be smaller."""
        return len(self._state) > PART_ROWS_MAX and len(self._numbers) * 2 < len(self._state)

    def keys(self) -> Iterator[str]:
        """Return the keys of the live rows."""
        return iter(self._numbers)

    def number_of(self, key: str) -> int | None:
        """Return the number of a live row."""
        return self._numbers.get(key)

    def put(self, key: str, table_id: str, start: str, row: PageRow) -> None:
        """Add a row, or set its latest values."""
        number = self._numbers.get(key)
        if number is None:
            self._add(key, table_id, start, row)
            return
        state, uuid, since_ms = row
        self._set(number, state, self.servers.index(uuid) if uuid else -1, since_ms)

    def _add(self, key: str, table_id: str, start: str, row: PageRow) -> int:
        """Add a row, and return its number."""
        state, uuid, since_ms = row
        server = self.servers.index(uuid) if uuid else -1
        number = self._numbers[key] = len(self._state)
        self._keys.append(key)
        self._table.append(self.tables.index(table_id))
        self._start.append(start)
        self._sizes.append(-1)
        self._loads.append(0.0)
        self._state.append(state)
        self._server.append(server)
        self._since.append(since_ms)
        return number

    def look(self, replicas: list[Replica]) -> None:
        """Update the rows of these replicas, in this order. Remove the rows of replicas without a standing, which are
        not part of the cluster any more."""
        keys = self._keys
        for replica in replicas:
            number, key = replica.page_row, replica.key
            is_known = 0 <= number < len(keys) and keys[number] is key
            if replica.standing is None:
                if is_known:
                    self._drop(key, number)
                continue
            row = row_of(replica)
            if is_known:
                state, uuid, since_ms = row
                self._set(number, state, self.servers.index(uuid) if uuid else -1, since_ms)
            else:
                record = replica.region.record
                replica.page_row = self._add(key, record.table_id, record.start_key, row)

    def drop(self, key: str) -> None:
        """Remove a row. Unknown keys are ignored."""
        number = self._numbers.get(key)
        if number is not None:
            self._drop(key, number)

    def _drop(self, key: str, number: int) -> None:
        if self._numbers.get(key) == number:  # else its region has come back with another row
            del self._numbers[key]
        self._set(number, _GONE, -1, 0)

    def keep_tablets(self, listed: set[str]) -> None:
        """Drop the rows of tablets that are not listed any more. A tablet's key is its region id."""
        self._tablets.difference_update(gone := self._tablets - listed)
        self._tablets |= listed & self._numbers.keys()
        for key in gone:
            self.drop(key)

    def _set(self, number: int, state: int, server: int, since_ms: int) -> None:
        if self._state[number] == state and self._since[number] == since_ms and self._server[number] == server:
            return
        self._state[number] = state
        self._server[number] = server
        self._since[number] = since_ms
        if number < self._sent:
            self._changed[number] = None

    def size(self, key: str, size_bytes: int) -> None:
        """Set the size of a row, in bytes rounded to three figures."""
        number = self._numbers.get(key)
        rounded = _three_figures(size_bytes)
        if number is not None and self._sizes[number] != rounded:
            self._sizes[number] = rounded
            if number < self._sent:
                self._resized[number] = None

    def load(self, key: str, per_s: float) -> None:
        """Set the load of a row, in requests per second rounded to two figures."""
        number = self._numbers.get(key)
        rounded = float(f"{per_s:.2g}")
        if number is not None and self._loads[number] != rounded:
            self._loads[number] = rounded
            if number < self._sent:
                self._reloaded[number] = None

    # --- for listeners ------------------------------------------------------------------------------------------------

    def part(self, at: int, most: int = 0) -> PagePart:
        """Return up to `most` complete rows from number `at` on; `most` 0 means the usual size of a part."""
        cut = slice(at, min(at + (most or self._part_rows), len(self._state)))
        since, sizes, loads = self._since[cut], self._sizes[cut], self._loads[cut]
        return PagePart(
            at,
            self._keys[cut],
            self._table[cut],
            self._start[cut],
            self._state[cut],
            self._server[cut],
            since if any(since) else [],
            sizes if sizes.count(-1) < len(sizes) else [],
            loads if any(loads) else [],
        )

    def named_part(self, at: int, tables: int, servers: int) -> PagePart:
        """Return a part for a new listener, with the names of the tables and servers from these indices on.

        The part may have values that were not sent to others: the next delta has those rows, even if they have changed
        back.
        """
        return msgspec.structs.replace(
            self.part(at), tables=self.tables.since(tables), servers=self.servers.since(servers)
        )

    def mark_sent(self) -> None:
        """Record that nothing was sent before: parts will carry all present rows."""
        self._changed.clear()
        self._resized.clear()
        self._reloaded.clear()
        self._sent = len(self._state)
        self._tables_sent, self._servers_sent = len(self.tables), len(self.servers)

    @property
    def has_changes(self) -> bool:
        """True if rows or measures may differ from the sent ones."""
        return bool(self._changed or self._resized or self._reloaded) or self._sent < len(self._state)

    def take(self, most: int = DELTA_ROWS_MAX) -> PageDelta | None:
        """Return the changes since the last call, at most `most` rows; None if there are none."""
        numbers = _taken(self._changed, most)
        fresh = min(len(self._state) - self._sent, most - len(numbers))
        sized, loaded = _taken(self._resized, most), _taken(self._reloaded, most)
        tables, servers = self.tables.since(self._tables_sent), self.servers.since(self._servers_sent)
        if not (numbers or fresh or sized or loaded or tables or servers):
            return None
        new = self.part(self._sent, fresh) if fresh else None
        self._sent += fresh
        self._tables_sent, self._servers_sent = len(self.tables), len(self.servers)
        return PageDelta(
            numbers,
            [self._state[one] for one in numbers],
            [self._server[one] for one in numbers],
            [self._since[one] for one in numbers],
            new,
            [(one, self._sizes[one]) for one in sized],
            [(one, self._loads[one]) for one in loaded],
            tables,
            servers,
        )


class _Names:
    """Names in the order in which they were first used."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._index: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.names)

    def since(self, at: int) -> list[tuple[int, str]]:
        """Return the names from index `at` on, with their indices."""
        return list(enumerate(self.names[at:], at))

    def index(self, name: str) -> int:
        """Return the index of a name; a new one for a new name."""
        found = self._index.get(name)
        if found is None:
            found = self._index[name] = len(self.names)
            self.names.append(name)
        return found


def _taken(numbers: dict[int, None], most: int) -> list[int]:
    """Return the first `most` numbers, and remove them."""
    if len(numbers) <= most:
        all_ = list(numbers)
        numbers.clear()
        return all_
    found = [one for one, _ in zip(numbers, range(most), strict=False)]
    for one in found:
        del numbers[one]
    return found


def _three_figures(number: int) -> int:
    """Return `number` rounded to three figures, so that a growing region is not sent at each row."""
    unit: int = 10 ** max(0, len(str(number)) - 3)
    return number // unit * unit
