"""`rk backup verify`: reads every byte of a backup, without a cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from cli.backup.files import check_region
from cli.backup.format import ROWS, DamagedBackupError, Manifest, StoreBackup
from coord.errors import CoordError
from coord.offline.backup import BackupReader

#: Called with the number of files that were read, and of all.
Progress = Callable[[int, int], object]


class FileDamage(NamedTuple):
    """Damage of one file: its name in the backup, the region or table that it belongs to, and the finding."""

    file: str
    belongs_to: str
    what: str


def verify(folder: Path, manifest: Manifest, progress: Progress = lambda _done, _total: None) -> list[FileDamage]:
    """Return all damage of a backup. Raise nothing for damage."""
    found: list[FileDamage] = []
    regions = list(manifest.regions())
    total = len(regions) + (manifest.store is not None)
    for done, (table, region) in enumerate(regions):
        progress(done, total)
        try:
            check_region(folder, region)
        except (DamagedBackupError, OSError) as error:
            found.append(FileDamage(region.file, f"table {table.record.name}, region {region.region_id}", str(error)))
    if manifest.store is not None:
        progress(len(regions), total)
        found += _store(folder, manifest.store)
    progress(total, total)
    return found


def unexpected_files(folder: Path, manifest: Manifest) -> list[str]:
    """Return files of rows that the manifest does not name; they are not part of the backup."""
    named = {region.file for _, region in manifest.regions()}
    return sorted(f"{ROWS}/{one.name}" for one in (folder / ROWS).glob("*") if f"{ROWS}/{one.name}" not in named)


def _store(folder: Path, store: StoreBackup) -> list[FileDamage]:
    """Read the store's snapshot as `rk coord restore` would."""
    path = folder / store.file
    try:
        with BackupReader(path) as whole:
            whole.load(lambda *_: None)
            if (whole.manifest.zxid, f"{whole.manifest.digest:016x}") != (store.zxid, store.digest):
                return [FileDamage(store.file, "the store", f"{path} is the snapshot of another moment")]
    except (CoordError, OSError) as error:
        return [FileDamage(store.file, "the store", f"{path}: {error}")]
    return []
