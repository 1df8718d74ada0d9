"""The rows of a stopped server's tablet, read and never changed.

After a reboot the file itself may lack any page that was not synced. When a server starts, it resets the file to its
steady point; this module does the same with a copy in a temporary directory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import lmdb
import msgspec

from coord.errors import StorageError
from coord.rpc.wire import RpcError
from regionserver.kv.pages import Damaged, check_tree
from regionserver.kv.rows import unseal
from regionserver.kv.snapshot import DAMAGE, RowSnapshot
from regionserver.tablets.disk.layout import rows_path
from regionserver.tablets.rows import environment
from regionserver.tablets.rows.digest import add_to_digest, row_hash
from regionserver.tablets.rows.environment import DATABASES, MAP_BYTES, RowsDisk
from regionserver.tablets.rows.state import Identity, RowsState
from regionserver.tablets.rows.steady import SteadyPoint

_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


class StoppedRows:
    """The rows of one tablet, open for reading."""

    def __init__(self, env: Any, databases: list[Any], point: SteadyPoint | None, *, is_set_back: bool) -> None:
        self._env = env
        self._rows, _, self._meta = databases
        #: The latest steady point; None if there never was one.
        self.point = point
        #: True if the rows are those of the steady point, because the machine has booted since.
        self.is_set_back = is_set_back

    def state(self) -> RowsState:
        """Return the stored state of the rows."""
        with self._env.begin(db=self._meta) as transaction:
            return environment.stored_state(transaction, self._meta)

    def page(self, start: str, end: str, rows_max: int) -> list[tuple[str, bytes]]:
        """Return the first rows of `[start, end)`."""
        with self._env.begin(db=self._rows) as transaction:
            rows, _ = RowSnapshot(transaction).page(start.encode(), end.encode(), rows_max)
        return [(row.key, row.value) for row in rows]

    def recount(self) -> RowsState:
        """Read every row, and return the state computed from them."""
        stored = self.state()
        count = size = total = 0
        with self._env.begin(db=self._rows) as transaction, transaction.cursor() as cursor:
            for key, sealed in cursor:
                value = unseal(key, sealed)
                count += 1
                size += len(key) + len(value)
                total += row_hash(key, value)
        digest = add_to_digest(bytes(len(stored.digest)), total)
        return msgspec.structs.replace(stored, rows=count, size=size, digest=digest)


@contextlib.contextmanager
def open_rows(data_dir: Path, tablet: str, generation: int) -> Iterator[StoppedRows]:
    """Open the rows of a tablet's generation.

    Raises:
        RowsError: The steady point is damaged, or of a later build.
        StorageError: The rows are damaged.
        OSError: A file cannot be read.
    """
    path = os.fspath(data_dir / rows_path(tablet, generation))
    point = environment.read_point(RowsDisk(), path, Identity(tablet, generation))
    boot = Path(_BOOT_ID).read_text().strip()
    with contextlib.ExitStack() as stack:
        is_set_back = point is not None and point.boot != boot
        if point is not None and is_set_back:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rk-rows-"))
            path = shutil.copyfile(path, os.path.join(folder, os.path.basename(path)))
            environment.restore(RowsDisk(), path, point, boot)
        try:
            # Damaged pages can lead LMDB outside its map, which kills the process: read them without a map first.
            check_tree(path)
            env = lmdb.open(
                path,
                subdir=False,
                readonly=True,
                lock=False,
                create=False,
                readahead=False,
                map_size=MAP_BYTES,
                max_dbs=len(DATABASES),
            )
            stack.callback(env.close)
            databases = [env.open_db(name, create=False) for name in DATABASES]
            yield StoppedRows(env, databases, point, is_set_back=is_set_back)
        except (Damaged, RpcError, msgspec.MsgspecError, *DAMAGE) as error:
            raise StorageError(f"{path} is damaged: {error}") from error
