"""Reading and writing the files of a backup. Everything is durable before the manifest gets its name."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from cli.backup.format import (
    CHUNK,
    CHUNK_BYTES_MAX,
    END_BYTES,
    HEAD,
    MANIFEST,
    ROWS,
    STORE,
    UNFINISHED,
    DamagedBackupError,
    Manifest,
    RegionBackup,
    RowsChecker,
    RowsTotals,
    check_head,
    decode_manifest,
    encode_chunk,
    encode_end,
    encode_head,
    encode_manifest,
)
from cli.common.errors import CliError, NotFoundError, UsageFaultError
from coord.durable import sync_folder
from regionserver.kv.packing import unpack_rows

#: Rows of a chunk, and the totals of the file so far.
ReadChunk = tuple[list[tuple[bytes, bytes]], RowsTotals]

_UNFINISHED_TEXT: Final = "rk backup create is writing here, or was interrupted. This directory is no backup.\n"


class RowsWriter:
    """Writes the file of one region; `begin` may be called again, to write the region anew."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.totals = RowsTotals()
        self._file: BinaryIO | None = None

    def begin(self) -> None:
        """Begin the file, and drop its former content. Raise OSError."""
        self.close()
        self.totals = RowsTotals()
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._file = os.fdopen(fd, "wb")
        self._file.write(encode_head())

    def add(self, packed: bytes) -> None:
        """Write a chunk of packed rows. Raise OSError, or ValueError for bytes that are not packed rows."""
        assert self._file is not None, "a chunk before the beginning"
        self.totals = self.totals.plus(unpack_rows(packed))
        self._file.write(encode_chunk(packed))

    def finish(self) -> int:
        """End the file, durably; return its size in bytes. Raise OSError."""
        assert self._file is not None, "an end before the beginning"
        self._file.write(encode_end(self.totals))
        self._file.flush()
        os.fsync(self._file.fileno())
        size = os.fstat(self._file.fileno()).st_size
        self.close()
        return size

    def close(self) -> None:
        """Close the file, finished or not."""
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # of an unfinished file; finish has flushed
                file.close()


def read_rows(path: Path, start_key: str = "", end_key: str = "") -> Iterator[ReadChunk]:
    """Yield the rows of a region's file, chunk by chunk, with the totals so far; check everything.

    Raises:
        DamagedBackupError: the message names the file and the place in it.
        OSError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            yield from _read_rows(file, RowsChecker(start_key, end_key))
    except FileNotFoundError as error:
        raise DamagedBackupError(f"{path} is missing") from error
    except DamagedBackupError as error:
        raise DamagedBackupError(f"{path} {error}") from error


def _read_rows(file: BinaryIO, checker: RowsChecker) -> Iterator[ReadChunk]:
    check_head(file.read(HEAD.size))
    at = HEAD.size
    while True:
        head = file.read(CHUNK.size)
        if len(head) < CHUNK.size:
            raise DamagedBackupError(f"is truncated: its end is missing after byte {at}")
        length, crc = CHUNK.unpack(head)
        if length > CHUNK_BYTES_MAX:
            raise DamagedBackupError(f"is damaged: the chunk at byte {at} cannot have {length} bytes")
        packed = file.read(length or END_BYTES - CHUNK.size)
        if len(packed) < (length or END_BYTES - CHUNK.size):
            raise DamagedBackupError(f"is truncated within the chunk at byte {at}")
        if not length:
            checker.end(at, crc, packed)
            if file.read(1):
                raise DamagedBackupError(f"is damaged: bytes follow its end, from byte {at + END_BYTES} on")
            yield [], checker.totals
            return
        yield checker.chunk(at, crc, packed), checker.totals
        at += CHUNK.size + length


def check_region(folder: Path, region: RegionBackup) -> None:
    """Read a region's file and compare it with the manifest. Raise DamagedBackupError, OSError."""
    path = folder / region.file
    [(_, totals)] = deque(read_rows(path, region.start_key, region.end_key), maxlen=1)
    if totals != region.totals:
        raise DamagedBackupError(
            f"{path} has {totals.rows} rows with digest {totals.digest.hex()}; the manifest says {region.rows} rows"
            f" with digest {region.digest}"
        )


def rows_file(region_id: str) -> str:
    """Return the name of a region's file, relative to the backup."""
    return f"{ROWS}/{region_id}.rows"


# --- the directory ----------------------------------------------------------------------------------------------------


def begin_directory(folder: Path) -> None:
    """Make the directory of a new backup, or clear that of an interrupted one.

    Raise UsageFaultError for a directory with other things in it, OSError.
    """
    if not folder.absolute().parent.is_dir():
        raise UsageFaultError(f"directory {folder.absolute().parent} does not exist", "Create it first.")
    if folder.exists() and not folder.is_dir():
        raise CliError(f"{folder} is a file", "Name a directory that does not exist yet.")
    if folder.is_dir():
        names = set(os.listdir(folder))
        if MANIFEST in names:
            raise CliError(f"{folder} has a backup already", "Give another name; nothing is overwritten.")
        if names and UNFINISHED not in names:
            raise CliError(f"{folder} is not empty, and not a backup", "Give another name.")
        clear_directory(folder)
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / UNFINISHED).write_text(_UNFINISHED_TEXT)
    (folder / ROWS).mkdir(mode=0o700, exist_ok=True)
    sync_folder(str(folder))


def clear_directory(folder: Path) -> None:
    """Remove the files of an unfinished backup, never of a finished one. Raise OSError."""
    if (folder / MANIFEST).exists() or not (folder / UNFINISHED).exists():
        return
    shutil.rmtree(folder / ROWS, ignore_errors=True)
    for path in [*folder.glob(f".{STORE}.*"), folder / STORE, folder / f".{MANIFEST}"]:
        path.unlink(missing_ok=True)
    (folder / UNFINISHED).unlink()
    with contextlib.suppress(OSError):  # somebody has put a file there
        folder.rmdir()


def finish_directory(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, durably: from now on the directory is a backup. Raise OSError."""
    sync_folder(str(folder / ROWS))
    draft = folder / f".{MANIFEST}"
    with draft.open("wb") as file:
        file.write(encode_manifest(manifest))
        file.flush()
        os.fsync(file.fileno())
    sync_folder(str(folder))
    draft.rename(folder / MANIFEST)
    sync_folder(str(folder))
    (folder / UNFINISHED).unlink(missing_ok=True)
    sync_folder(str(folder))
    sync_folder(str(folder.absolute().parent))


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a backup. Raise NotFoundError, CliError, UsageFaultError."""
    path = folder / MANIFEST
    try:
        return decode_manifest(path.read_bytes())
    except DamagedBackupError as error:
        raise CliError(
            f"{path} {error}", "Take another backup; without its manifest this one cannot be used."
        ) from error
    except OSError as error:
        if (folder / UNFINISHED).exists():
            raise CliError(
                f"{folder} is an unfinished backup", "`rk backup create` with this name begins it anew."
            ) from error
        raise NotFoundError(
            f"{folder} has no backup: {path.name}: {error.strerror}",
            "`rk backup list DIR` shows the backups in a directory.",
        ) from error


def take_over(base: Path, folder: Path, region: RegionBackup) -> None:
    """Give a backup the file of an unchanged region of its base, checked. Raise DamagedBackupError, OSError.

    The two names are links to one file where the file system has links; else the file is copied.
    """
    check_region(base, region)
    source, target = base / region.file, folder / rows_file(region.region_id)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        with target.open("rb") as file:
            os.fsync(file.fileno())
