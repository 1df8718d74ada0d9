"""Names of the files of tablets in a server's data directory. Pure.

    tablet-meta/<tablet>                         superblock
    consensus-meta/<tablet>                      consensus metadata
    wals/                                        the shared log
    data/<tablet>.<generation>.mdb               rows; beside them .mdb.steady, .mdb.used, .mdb-lock
    data/.unfinished-<tablet>.<generation>.mdb   no content: the rows of a daughter that no superblock names yet
    quarantine/<tablet>.<generation>/            superblock, consensus-meta, log, rows.mdb, rows.mdb.steady
    quarantine/.slot-<slot>/                     log of a slot that no tablet claims

A tablet's name never begins with a dot but may contain dots. So a generation is parsed from the right, and the names of
temporary files begin with a dot. All paths are relative to the data directory, with `/`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

BLOCKS: Final = "tablet-meta"
METAS: Final = "consensus-meta"
LOG: Final = "wals"
ROWS: Final = "data"
QUARANTINE: Final = "quarantine"
#: Folders that a server makes before its first tablet.
FOLDERS: Final = (BLOCKS, METAS, LOG, ROWS, QUARANTINE)

#: Prefix of the names of files that are being written; no tablet's name begins with it.
TEMPORARY: Final = ".tmp-"
#: Prefix of the mark of rows that are made from the parents of a split or merge, until a superblock names them.
UNFINISHED: Final = ".unfinished-"
#: Names of the files in a folder of the quarantine.
SAVED_BLOCK: Final = "superblock"
SAVED_META: Final = "consensus-meta"
SAVED_LOG: Final = "log"
SAVED_ROWS: Final = "rows"

#: Names of tablets become file names: no character may have a meaning for the file system. The length leaves room for
#: generation and suffix within the 255 bytes of a file name.
TABLET: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
GENERATION_MAX: Final = (1 << 32) - 1

#: Suffixes of the files of rows: the steady point, the rows, LMDB's lock file, the count of deaths with the file open.
#: The last two are useless after their process has ended; they do not move to quarantine.
STEADY: Final = ".mdb.steady"
DATABASE: Final = ".mdb"
DATABASE_LOCK: Final = ".mdb-lock"
DATABASE_USED: Final = ".mdb.used"
_ROWS_FILE: Final = re.compile(rf"({TABLET.pattern})\.([1-9][0-9]{{0,9}})(\.mdb|\.mdb-lock|\.mdb\.steady|\.mdb\.used)")
_FORMER: Final = re.compile(rf"({TABLET.pattern})\.([1-9][0-9]{{0,9}})")


class RowsName(NamedTuple):
    """The parts of a name in the folder of rows."""

    tablet: str
    generation: int
    suffix: str


def is_tablet(name: str) -> bool:
    """Return True if `name` can be the name of a tablet, and so of a file."""
    return TABLET.fullmatch(name) is not None


def block_path(tablet: str) -> str:
    """Return the path of a tablet's superblock."""
    return f"{BLOCKS}/{tablet}"


def meta_path(tablet: str) -> str:
    """Return the path of a tablet's consensus metadata."""
    return f"{METAS}/{tablet}"


def rows_path(tablet: str, generation: int, suffix: str = DATABASE) -> str:
    """Return the path of a tablet's rows, or of a file beside them."""
    return f"{ROWS}/{tablet}.{generation}{suffix}"


def quarantine_path(tablet: str, generation: int) -> str:
    """Return the quarantine folder for the files of a former replica."""
    return f"{QUARANTINE}/{tablet}.{generation}"


def slot_quarantine_path(slot: int) -> str:
    """Return the quarantine folder for the log of a slot without a tablet. The dot separates it from tablets'
    folders."""
    return f"{QUARANTINE}/.slot-{slot}"


def parse_rows_name(name: str) -> RowsName | None:
    """Parse a name in the folder of rows. Return None for any other file."""
    found = _ROWS_FILE.fullmatch(name)
    if found is None or int(found[2]) > GENERATION_MAX:
        return None
    return RowsName(found[1], int(found[2]), found[3])


def unfinished_path(tablet: str, generation: int) -> str:
    """Return the path of the mark of unfinished rows."""
    return f"{ROWS}/{UNFINISHED}{tablet}.{generation}{DATABASE}"


def parse_unfinished(name: str) -> RowsName | None:
    """Parse the name of a mark of unfinished rows. Return None for any other file in the folder of rows."""
    found = parse_rows_name(name.removeprefix(UNFINISHED)) if name.startswith(UNFINISHED) else None
    return found if found is not None and found.suffix == DATABASE else None


def parse_quarantine_name(name: str) -> tuple[str, int] | None:
    """Return tablet and generation of a folder of the quarantine, or None for another name."""
    found = _FORMER.fullmatch(name)
    if found is None or int(found[2]) > GENERATION_MAX:
        return None
    return found[1], int(found[2])


def free_name(name: str, is_taken: Callable[[str], bool]) -> str:
    """Return `name`, or the first of `name.1`, `name.2`, … that is not taken."""
    free, number = name, 0
    while is_taken(free):
        number += 1
        free = f"{name}.{number}"
    return free
