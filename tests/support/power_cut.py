"""Power cuts on the files of a tablet's rows: any subset of the pages written since the last sync is lost.

A `RecordingDisk` compares the file with its last image at every step and keeps each version of each page since the last
sync. A `Cut` is a possible content of the disk afterwards: any version of each page, for some pages a mixture of two (a
torn page), and the old or the new file of the steady point.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from regionserver.tablets.rows.environment import RowsDisk

PAGE: Final = 4096
SECTOR: Final = 512


class UnsyncedDisk(RowsDisk):
    """Disk functions without syncs, for tests without power cuts, or with their own model of them."""

    def replace(self, path: str, data: bytes) -> None:
        Path(f"{path}.tmp").write_bytes(data)
        os.rename(f"{path}.tmp", path)

    def sync_name(self, path: str) -> None:
        pass

    def write_metas(self, path: str, metas: bytes) -> None:
        with open(path, "r+b") as file:
            file.write(metas)

    def sync(self, env: Any) -> None:
        pass


@dataclass(frozen=True)
class Cut:
    """The files after a power cut: the rows (None: no file) and the steady point."""

    rows: bytes | None
    steady: bytes | None

    def place(self, path: Path) -> None:
        """Put the files where a tablet's rows are opened."""
        for name, content in ((path, self.rows), (Path(f"{path}.steady"), self.steady)):
            name.unlink(missing_ok=True)
            if content is not None:
                name.write_bytes(content)
        for suffix in ("-lock", ".used"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)


class RecordingDisk(UnsyncedDisk):
    """Tracks the durable content of one tablet's files, and each later version of each page."""

    def __init__(self, path: Path, before: Cut | None = None) -> None:
        self.path = path
        self.durable = (before.rows or b"") if before else b""
        #: True if the name of the rows' file would survive.
        self.has_name = before is not None and before.rows is not None
        self.steady: bytes | None = before.steady if before else None
        #: The new steady point while its rename may or may not be durable.
        self.replacing: bytes | None = None
        self._seen = self.durable
        self._versions: dict[int, list[bytes]] = {}
        #: Called inside each step of a steady point and of a restoration, with the step's name.
        self.on_step: Callable[[str], None] = lambda _name: None

    def observe(self) -> None:
        """Note the pages that were written since the last call."""
        image = self.path.read_bytes() if self.path.exists() else b""
        for at in range(0, len(image), PAGE):
            page = image[at : at + PAGE]
            if page != self._seen[at : at + PAGE]:
                self._versions.setdefault(at // PAGE, []).append(page)
        self._seen = image

    def sync_name(self, path: str) -> None:
        self.has_name = True

    def begin_anew(self) -> None:
        """Record that the file was removed and begun again, so that none of its pages is durable."""
        self.durable, self._seen = b"", b""
        self.has_name = False
        self._versions.clear()

    def sync(self, env: Any) -> None:
        self.on_step("before the sync")
        self._all_durable()
        self.on_step("after the sync")

    def write_metas(self, path: str, metas: bytes) -> None:
        super().write_metas(path, metas)
        self.on_step("meta pages written")
        self._all_durable()

    def replace(self, path: str, data: bytes) -> None:
        self.on_step("before the steady point")
        self.replacing = data
        self.on_step("while the steady point is replaced")
        super().replace(path, data)
        self.steady, self.replacing = data, None
        self.on_step("after the steady point")

    def _all_durable(self) -> None:
        self.observe()
        self.durable = self._seen
        self._versions.clear()

    def cut(self, rng: random.Random) -> Cut:
        """Return a possible content of the disk after a power cut at this moment."""
        self.observe()
        pages = max([len(self.durable) // PAGE, *(number + 1 for number in self._versions)])
        image = bytearray(self.durable.ljust(pages * PAGE, b"\0"))
        lost = rng.random()
        kept_end = len(self.durable)
        for number, versions in self._versions.items():
            at = number * PAGE
            if rng.random() >= lost:
                chosen = rng.choice(versions)
                if rng.random() < 0.1:
                    chosen = _torn(rng, bytes(image[at : at + PAGE]), chosen)
                image[at : at + PAGE] = chosen
                kept_end = max(kept_end, at + PAGE)
        # The size is metadata of the file system: it may be durable without the pages.
        end = rng.choice((kept_end, len(image)))
        steady = rng.choice((self.steady, self.replacing)) if self.replacing is not None else self.steady
        is_there = self.has_name or rng.random() < 0.5
        return Cut(bytes(image[:end]) if is_there else None, steady)


def _torn(rng: random.Random, old: bytes, new: bytes) -> bytes:
    sectors = [rng.choice((old, new))[at : at + SECTOR] for at in range(0, PAGE, SECTOR)]
    return b"".join(sectors)


class EndedTransaction:
    """Stands for a read transaction that pins nothing: the real one has ended."""

    def __init__(self, transaction: Any) -> None:
        self._id = transaction.id()
        transaction.abort()

    def id(self) -> int:
        return int(self._id)

    def abort(self) -> None:
        """Do nothing."""
