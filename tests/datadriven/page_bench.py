"""The model of the live page, as commands of a transcript: rows in, parts and deltas out.

    put KEY STATE [SERVER] [SINCE]     a row has changed        drop KEY      it is gone
    size KEY BYTES                     its size was measured    tablets KEY…  the tablets that are listed
    load KEY RATE                      its load was measured
    told                               nobody was told anything before
    take [MOST]                        the next delta
    part AT [MOST]                     rows for a new listener

Rows are of table `t`, and begin at their key.
"""

from __future__ import annotations

from regions.page.model import DELTA_ROWS_MAX, PageModel
from regions.page.parts import PagePart
from regions.page.rows import RowState


class PageBench:
    """Runs the commands on one model."""

    def __init__(self) -> None:
        self._model = PageModel()

    def run(self, command: str) -> list[str]:
        """Run one command and return its output."""
        words = command.split()
        match words[0]:
            case "put":
                server = words[3] if len(words) > 3 else ""
                row = RowState[words[2].upper()].value, server, int(words[4]) if len(words) > 4 else 0
                self._model.put(words[1], "t", words[1], row)
                return [f"row {self._model.number_of(words[1])}"]
            case "drop":
                self._model.drop(words[1])
            case "size":
                self._model.size(words[1], int(words[2]))
            case "load":
                self._model.load(words[1], float(words[2]))
            case "tablets":
                self._model.keep_tablets(set(words[1:]))
            case "told":
                self._model.mark_sent()
            case "take":
                return self._take(int(words[1]) if len(words) > 1 else DELTA_ROWS_MAX)
            case "part":
                return _rows(self._model.part(int(words[1]), int(words[2]) if len(words) > 2 else 0))
        return [f"{self._model.live} live of {len(self._model)}"]

    def _take(self, most: int) -> list[str]:
        delta = self._model.take(most)
        if delta is None:
            return ["nothing"]
        found = [f"table {at} is {name}" for at, name in delta.tables]
        found += [f"server {at} is {name}" for at, name in delta.servers]
        for number, state, server, since in zip(delta.n, delta.state, delta.server, delta.since, strict=True):
            found.append(f"{number} {RowState(state).name} on {server} since {since}")
        found += [f"new {line}" for line in (_rows(delta.new) if delta.new is not None else [])]
        found += [f"{number} has {size_bytes} bytes" for number, size_bytes in delta.sized]
        return found + [f"{number} has {per_s:g} requests/s" for number, per_s in delta.loaded]


def _rows(part: PagePart) -> list[str]:
    count = len(part.key)
    numbers = range(part.first, part.first + count)
    since, sizes = part.since or [0] * count, part.size or [-1] * count
    rows = zip(numbers, part.key, part.state, part.server, since, sizes, strict=True)
    return [
        f"{number} {key} {RowState(state).name} on {server} since {since}, {size_bytes} bytes"
        for number, key, state, server, since, size_bytes in rows
    ] or ["no rows"]
