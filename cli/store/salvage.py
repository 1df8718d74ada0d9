"""`rk coord backup DIR FILE`: the state of a stopped node, even of one that can no longer start."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path

import click

from cli.common.errors import CliError, UsageFaultError
from cli.common.output import print_json, size
from cli.store.files import progress_bar
from coord.durable import sync_folder
from coord.errors import ConfigError, CoordError
from coord.offline.backup import BackupReader
from coord.offline.directory import StoppedDirectory
from coord.offline.salvage import Salvaged, salvage, write_backup


def backup_stopped(directory: Path, file: Path, *, committed_only: bool, as_json: bool) -> None:
    """Write the state in the stopped node's directory to `file`, and print a summary. Raise CliError."""
    draft = file.with_name(f".{file.name}.{secrets.token_hex(4)}.tmp")
    try:
        with progress_bar() as progress, StoppedDirectory(directory) as source:
            found = salvage(source, committed_only=committed_only, progress=progress)
            manifest = write_backup(found, draft, time.time_ns() // 1_000_000)
            with BackupReader(draft) as whole:
                whole.load(progress)
        os.link(draft, file)
        sync_folder(file.absolute().parent)
    except ConfigError as error:
        raise UsageFaultError(str(error)) from error
    except CoordError as error:
        raise CliError(str(error)) from error
    except OSError as error:
        raise CliError(f"{error.filename or file}: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)
    if as_json:
        print_json(
            {
                "file": str(file),
                "bytes": manifest.file_bytes(),
                **manifest.fields(),
                "snapshot_index": found.snapshot_index,
                "committed_index": found.committed_index,
                "missing": found.missing,
            }
        )
        return
    click.echo(
        f"{file}: {size(manifest.file_bytes())}, of the stopped node {found.node_id or '(unknown)'} at index"
        f" {manifest.index}, zxid {manifest.zxid}, digest {manifest.digest:016x}"
    )
    for line in _explained(found):
        click.echo(f"  {line}")


def _explained(found: Salvaged) -> list[str]:
    """Return the lines that describe the content of the backup."""
    lines = [f"holds: {_parts(found)}"]
    if found.is_committed():
        lines.append("committed: all of it")
    else:
        lines.append(
            f"committed: up to index {found.committed_index}. The log of one node does not show whether later entries"
            " are committed. Every acknowledged write is in the logs of a majority: use the node with the longest log"
        )
    return lines + [f"missing: {line}" for line in found.missing]


def _parts(found: Salvaged) -> str:
    start = f"the snapshot at {found.snapshot_index}" if found.snapshot_index else ""
    log = ""
    if found.index > found.snapshot_index:
        log = f"entries {found.snapshot_index + 1} to {found.index} of the log"
    return " and ".join(part for part in (start, log) if part) or "only the empty state"
