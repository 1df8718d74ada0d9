"""Rows copied while they are written: the source reads one state of the file, and the destination adopts it.

LMDB writes the state at one moment into a pipe, on a thread of its own. Commits go on meanwhile. The file grows,
because no page of that state is used again before the copy ends. A short file is written into memory instead, in one
call, because a thread and a pipe would take several times as long.

The destination receives and checks the file under its own name (`received.py`). The file has the source's identity,
which is replaced before the rows are used.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from typing import Final

from regionserver.tablets.rows import environment
from regionserver.tablets.rows.environment import RowsDisk, RowsFile, translated
from regionserver.tablets.rows.errors import RowsClosed, RowsError, RowsFailed
from regionserver.tablets.rows.state import Identity, RowsCount, RowsState
from regionserver.tablets.rows.tablet_rows import TabletRows

#: Files up to this many bytes are copied into memory before they are sent.
AT_ONCE_BYTES: Final = 8 << 20
#: Size of the pipe between LMDB's thread and the one that sends; the kernel's limit for users.
_PIPE_BYTES: Final = 1 << 20


def copied_bytes(rows: TabletRows) -> int:
    """Return about how many bytes a hot copy has now. Raise RowsError."""
    with rows.using_file() as file:
        return _bytes_of(file)


def _bytes_of(file: RowsFile) -> int:
    return int(file.page_bytes * (file.env.info()["last_pgno"] + 1))


def hot_copy(rows: TabletRows, chunk_bytes: int) -> Iterator[memoryview]:
    """Yield the file as it is at one moment, in chunks. Each chunk is valid until the next one.

    Ends with RowsClosed when the rows are being closed, so that nothing has to wait for a copy. Raise RowsError,
    OSError.
    """
    with rows.using_file() as file:
        if _bytes_of(file) <= AT_ONCE_BYTES:
            yield from _copied_at_once(rows, file, chunk_bytes)
            return
        reading, writing = os.pipe()
        with contextlib.suppress(OSError):
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        failures: list[Exception] = []

        def copy() -> None:
            try:
                with translated(rows.path):
                    file.env.copyfd(writing)
            except Exception as error:  # the reader of the pipe raises it
                failures.append(error)
            finally:
                os.close(writing)

        copier = threading.Thread(target=copy, name="hot-copy", daemon=True)
        copier.start()
        try:
            yield from _chunks(reading, chunk_bytes, rows)
        finally:
            os.close(reading)
            copier.join()
        if failures:
            raise failures[0]


def _copied_at_once(rows: TabletRows, file: RowsFile, chunk_bytes: int) -> Iterator[memoryview]:
    """Yield the chunks of a short file."""
    fd = os.memfd_create("hot-copy", os.MFD_CLOEXEC)
    try:
        with translated(rows.path):
            file.env.copyfd(fd)
        os.lseek(fd, 0, os.SEEK_SET)
        yield from _chunks(fd, chunk_bytes, rows)
    finally:
        os.close(fd)


def _chunks(reading: int, chunk_bytes: int, rows: TabletRows) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(chunk_bytes))
    while True:
        at = 0
        while at < chunk_bytes:
            got = os.readv(reading, [buffer[at:]])
            if not got:
                break
            at += got
        if rows.is_closed:
            raise RowsClosed(f"{rows.path} is being closed")
        if at:
            yield buffer[:at]
        if at < chunk_bytes:
            return


class _ArrivedDisk(RowsDisk):
    """The disk of a file whose superblock is COPYING. A start removes such a file, with or without its steady point. So
    one sync of their folder is enough for both names: the sync in `replace`, when the steady point is in place."""

    def sync_name(self, path: str) -> None:
        """Do nothing: `replace` makes the name durable."""


def adopt(path: str, identity: Identity, source_generation: int, boot: str, counted: RowsCount) -> RowsState:
    """Give a received and checked file the identity `identity`, and make its steady point. Return its state.

    The file and its name are durable on return.

    `counted`: the counts of rows that the check has found in the file.

    Raises:
        RowsFailed: the rows do not match the source's digest.
        RowsFull: there is no room.
        RowsTooNew: a later build wrote it.
    """
    file, state = environment.open_checked(path, Identity(identity.tablet, source_generation))
    rows = TabletRows(path, identity, boot, _ArrivedDisk(), file, state, None)
    try:
        if counted != (state.rows, state.size, state.digest):
            raise RowsFailed(
                f"{path} has {counted.rows} rows with digest {counted.digest.hex()}; its source has stored"
                f" {state.rows} rows with digest {state.digest.hex()}"
            )
        with translated(path), file.env.begin(write=True, db=file.meta) as transaction:
            transaction.put(environment.IDENTITY_KEY, environment.sealed_identity(identity))
        rows.steady()
    finally:
        with contextlib.suppress(RowsError):
            rows.abandon()
    return state
