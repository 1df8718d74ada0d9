"""The lock of a data directory: one `rk up` at a time runs the cluster in it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from cli.common.errors import CliError
from cli.common.local import CLUSTER_FILE, LOCK_FILE
from coord.env_os import check_owned
from coord.errors import ConfigError


@contextlib.contextmanager
def hold(data_dir: Path, *, is_new: bool) -> Iterator[None]:
    """Lock the data directory for this process. Raise CliError that names the holder if it is locked.

    `is_new`: the directory must hold nothing. If the start fails before there is a cluster.json, remove the
    lock, and the directory if this call made it.
    """
    made = not data_dir.exists()
    lock = _opened(data_dir, is_new)
    try:
        _lock(lock, data_dir)
        try:
            yield
        finally:
            # The pid in the file must name a running process, or nobody.
            with contextlib.suppress(OSError):
                os.ftruncate(lock.fileno(), 0)
                if is_new and not (data_dir / CLUSTER_FILE).exists():
                    (data_dir / LOCK_FILE).unlink()
                    if made:
                        data_dir.rmdir()  # fails if there is anything in it
    finally:
        lock.close()


def _opened(data_dir: Path, is_new: bool) -> IO[str]:
    """Return the open lock file. Raise CliError."""
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if is_new and any(one.name != LOCK_FILE for one in data_dir.iterdir()):
            raise CliError(
                f"{data_dir} is not empty and holds no cluster (no {CLUSTER_FILE})", "Give an empty or new --data-dir."
            )
        check_owned(data_dir)
        # A link could let this process overwrite a file of somebody else.
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.fdopen(os.open(data_dir / LOCK_FILE, flags, 0o600), "a+")
    except ConfigError as error:
        raise CliError(str(error)) from error
    except OSError as error:
        raise CliError(f"cannot use {data_dir}: {error.strerror}", "Give a --data-dir that you may write.") from error


def _lock(lock: IO[str], data_dir: Path) -> None:
    """Lock the file and write this process into it. Raise CliError."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.seek(0)
        pid = lock.read().strip()
        who = f"the `rk up` with pid {pid}" if pid else "another `rk up`"
        raise CliError(
            f"{data_dir} is in use by {who}", "Stop that one (Ctrl-C), or give another --data-dir."
        ) from error
    if not _is_in_place(lock, data_dir):
        raise CliError(f"another `rk up` in {data_dir} has just ended", "Try again.")
    # For the error of the next `rk up`; the write may fail on a full disk.
    with contextlib.suppress(OSError):
        os.ftruncate(lock.fileno(), 0)
        os.write(lock.fileno(), f"{os.getpid()}\n".encode())


def _is_in_place(lock: IO[str], data_dir: Path) -> bool:
    """Return whether the locked file is still the lock: a refused start removes it while another one waits."""
    try:
        return os.path.samestat(os.fstat(lock.fileno()), os.stat(data_dir / LOCK_FILE))
    except OSError:
        return False
