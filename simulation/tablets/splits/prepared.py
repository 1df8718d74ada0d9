"""Prepared daughters on a simulated disk.

Batches, notes, figures and their check are the real ones (`regionserver/tablets/splits/prepared.py`); only the files
are simulated. A daughter that is made of sealed rows has no batches here: its copy is one event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from regions.records.model import RegionRecord
from regionserver.kv.heirs import Rows
from regionserver.tablets.rows.digest import add_to_digest, row_hash
from regionserver.tablets.rows.sealed.notes import KeyNotes
from regionserver.tablets.rows.state import RowsState
from regionserver.tablets.splits.heirs import Daughter, SealedState, heir_state, position_of
from regionserver.tablets.splits.prepared import HeirFile, PreparedHeirs
from regionserver.tablets.values.seals import Seal
from simulation.tablets.server import SimServer
from simulation.tablets.storage.rows import RowsImage, SimRows

#: Names of prepared files, as real servers have them.
PREFIX: Final = "data/.heir-"


class _HeldRows(NamedTuple):
    """The rows of a parent as `PreparedHeirs` uses them."""

    rows: SimRows
    path: str
    notes: KeyNotes
    state: RowsState


class SimHeirs(PreparedHeirs):
    """The prepared daughters of one split or merge on one server; one row in a batch."""

    def __init__(self, server: SimServer, rows: Sequence[SimRows], daughters: Sequence[RegionRecord]) -> None:
        held: list[Any] = [_HeldRows(one, "a parent", one.notes, RowsState()) for one in rows]
        super().__init__(held, Path(), daughters)
        self._server = server

    def batches(self) -> Iterator[None]:
        """Copy a batch each time."""
        return self._batches()

    def _make_files(self) -> Sequence[HeirFile]:
        return [_SimHeirFile(self._server, one) for one in self._daughters]

    @staticmethod
    def _at_once(finishes: Sequence[Callable[[], None]]) -> None:
        for finish in finishes:
            finish()

    def _remove(self, daughter: Daughter) -> None:
        if self._server.turn is not None:  # a process that has just died removes nothing
            self._server.remove_rows(daughter.identity.tablet, daughter.identity.generation)

    def _batch(self, parent: Any, last: bytes | None) -> Rows:
        rows = parent.rows.now.rows
        return [(key, rows[key]) for key in sorted(rows) if last is None or key > last][:1]

    def _rows_at(self, parent: Any, keys: Sequence[bytes]) -> list[tuple[bytes, bytes | None]]:
        return [(key, parent.rows.now.rows.get(key)) for key in keys]

    def _sealed_state(self, parent: Any) -> tuple[Seal, RowsState]:
        image = parent.rows.now
        size = sum(len(key) + len(value) for key, value in image.rows.items())
        digest = add_to_digest(RowsState().digest, sum(row_hash(*row) for row in image.rows.items()))
        totals = image.totals
        state = RowsState(image.index, image.term, len(image.rows), size, totals.clock_ms, totals.horizon_ms, 0, digest)
        return image.seal, state


class _SimHeirFile:
    """The file of one daughter."""

    def __init__(self, server: SimServer, daughter: RegionRecord) -> None:
        self._server = server
        self._daughter = daughter
        self._path = f"{PREFIX}{daughter.region_id}.mdb"
        self._rows = server.make_heir(self._path)
        self.count = self.size = self.total = 0

    def append(self, batch: Rows) -> None:
        """See `HeirFile`."""
        self.change(batch)

    def change(self, rows: Sequence[tuple[bytes, bytes | None]]) -> None:
        """See `HeirFile`."""
        held = self._rows.now.rows
        for key, value in rows:
            if not self._daughter.contains(key.decode()):
                continue
            former = held.pop(key, None)
            if former is not None:
                self._add(-1, key, former)
            if value is not None:
                self._add(1, key, value)
                held[key] = value

    def _add(self, sign: int, key: bytes, value: bytes) -> None:
        self.count += sign
        self.size += sign * (len(key) + len(value))
        self.total += sign * row_hash(key, value)

    def sync(self) -> None:
        """See `HeirFile`."""
        self._server.disk.files[self._path].sync()

    def finish(self, daughter: Daughter, boot: str, sealed: SealedState) -> None:
        """See `HeirFile`."""
        del boot
        _begin(self._rows.now, sealed)
        self._server.rename_heir(self._path, daughter.identity.tablet, daughter.identity.generation)

    def discard(self) -> None:
        """See `HeirFile`."""
        if self._server.turn is not None and self._path in self._server.disk.files:
            self._server.disk.remove(self._path)


def made_of(parents: Sequence[SimRows], seals: Sequence[Seal], daughter: RegionRecord) -> SimRows:
    """Return the rows of a daughter, made from the present rows of its parents."""
    image = RowsImage()
    for one in parents:
        image.rows |= {key: value for key, value in one.now.rows.items() if daughter.contains(key.decode())}
    _begin(image, SealedState(*position_of(seals), max(one.now.totals.clock_ms for one in parents)))
    return SimRows(image)


def _begin(image: RowsImage, sealed: SealedState) -> None:
    """Give a daughter's rows their state: no results, and the horizon of their parents' clocks."""
    state = heir_state(sealed, 0, 0, 0)
    image.index, image.term = state.applied_index, state.applied_term
    image.totals.clock_ms, image.totals.horizon_ms = state.clock_ms, state.horizon_ms
    image.digest = image.digest_of(image.rows)
