"""The command `rk debug bundle`."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click
from kazoo.exceptions import KazooException

from cli.common import output
from cli.common.access import addresses_of_store, begun, certs_dir_named, local_certs_dir, store_access
from cli.common.asking.store import store_hosts
from cli.common.errors import CliError
from cli.common.local import SERVERS_FILE, SUPER_DIGEST_FILE, SUPER_FILE, LocalCluster, named_local
from cli.common.options import Globals, global_options
from cli.common.waiting import takes_timeout, waiting
from cli.debug.bundle.hiding import Hider, secrets_in
from cli.debug.bundle.sources import KnownProcesses, Source, file_name, registered_admins, sources
from cli.diagnose.health import Gathered, find
from cli.store.status import admin_option, named_admins
from coord.rpc.wire import RpcError
from coord.security import process
from coord.security.admin import headers

#: Default of --timeout. The command collects health first (_HEALTH_S), then everything else concurrently.
TIMEOUT_S: Final = 10.0
_HEALTH_S: Final = 2.0
#: Further time for the admin addresses in the store.
_REGISTERED_S: Final = 0.5
#: Failures that are shown; the bundle has all of them.
_SHOWN: Final = 12
_SUMMARY: Final = "summary.txt"


@click.command()
@click.option(
    "--output",
    "target",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The new file.  [default: rk-bundle-TIME.tar.gz here]",
)
@click.option(
    "--log-lines",
    type=click.IntRange(0, 100_000),
    default=2000,
    show_default=True,
    help="Last lines of each local daemon's log.",
)
@click.option("--hide-keys", is_flag=True, help="Hide the keys of regions and rows; logs and history are left out.")
@admin_option
@takes_timeout(TIMEOUT_S)
@global_options
@click.pass_obj
def bundle(
    given: Globals, target: Path | None, log_lines: int, hide_keys: bool, admin: str | None, timeout_s: float
) -> None:
    """Write one file for the report of a fault: health, status and metrics of every process, logs, configuration.

    Every process is asked directly and all at once, so the command works with any process down, and ends within
    --timeout. Missing parts are listed in summary.txt with the reason. Secrets and values of rows are never in the
    file.

    Admin ports of a cluster that `rk up` did not start: masters and servers register theirs in the store, --admin names
    those of the store's nodes. Logs of other machines are not in the file.
    """
    end_s = time.monotonic() + timeout_s
    at = datetime.now(UTC)
    path = target or Path(f"rk-bundle-{at:%Y%m%dT%H%M%SZ}.tar.gz")
    if path.exists():
        raise CliError(f"{path} already exists", "Give another --output; nothing is overwritten.")
    failed: dict[str, str] = {}
    local = named_local(given)
    with waiting("store nodes, masters and region servers, all at once"):
        health_s = min(_HEALTH_S, timeout_s / 3)
        registered = None if local is not None else begun(registered_admins, given, health_s)
        gathered = _health(given, health_s, failed)
        admins = _admins(registered, failed) | _named(given, local, admin)
        wanted = list(sources(given, KnownProcesses(local, gathered, admins), log_lines, with_keys=not hide_keys))
        found, more = collect(wanted, end_s)
    failed |= more
    hider = Hider(_secrets(given, local), keys=hide_keys)
    texts = {name: hider.text(text) for name, text in found.items()}
    failed = {name: hider.text(why) for name, why in failed.items()}
    texts[_SUMMARY] = summary(at, texts, failed)
    size = write(path, texts, at)
    if given.json:
        output.print_json({"file": str(path), "bytes": size, "files": sorted(texts), "missing": failed})
        return
    click.echo(f"{output.shown(path)}: {output.count(len(texts), 'file')}, {output.size(size)}")
    for name, why in list(failed.items())[:_SHOWN]:
        click.echo(f"  not obtained: {name}: {why}")
    if len(failed) > _SHOWN:
        click.echo(f"  and {len(failed) - _SHOWN} more: see {_SUMMARY} in it")
    kept = "hosts, tables and users" if hide_keys else "hosts, tables and users, and keys (--hide-keys)"
    click.echo(f"It has no secrets and no values of rows, but names of {kept}: look before you send it.")


def collect(wanted: Iterable[Source], end_s: float) -> tuple[dict[str, str], dict[str, str]]:
    """Ask all sources at once until a moment by `time.monotonic`; return their texts, and why others have none."""
    left_s = max(0.1, end_s - time.monotonic())
    asked = [(one.path, begun(one.ask, left_s * 0.8)) for one in wanted]
    found, failed = {}, {}
    for path, answer in asked:
        try:
            found[path] = answer.result(max(0.0, end_s - time.monotonic()))
        except TimeoutError:
            failed[path] = f"no answer within {left_s:.1f} s"
        except (RpcError, CliError) as error:
            failed[path] = error.message or type(error).__name__
        except (OSError, ValueError, KazooException) as error:
            failed[path] = str(error) or type(error).__name__
    return found, failed


def summary(at: datetime, texts: Mapping[str, str], failed: Mapping[str, str]) -> str:
    """Return the table of contents: the present parts, and the missing ones with the reason."""
    lines = [f"rk debug bundle of {at:%Y-%m-%d %H:%M:%S} UTC", "", f"{len(texts)} files:"]
    lines += [f"  {len(text):>9}  {name}" for name, text in sorted(texts.items())]
    lines += ["", f"{len(failed)} not obtained:" if failed else "everything was obtained"]
    lines += [f"  {name}: {why}" for name, why in sorted(failed.items())]
    return "\n".join(lines) + "\n"


def write(path: Path, texts: Mapping[str, str], at: datetime) -> int:
    """Write the archive, readable by its owner alone; return its size. Raise CliError."""
    top = path.name.removesuffix(".gz").removesuffix(".tar").removesuffix(".tgz")
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, text in sorted(texts.items(), key=lambda one: (one[0] != _SUMMARY, one[0])):
                data = text.encode(errors="replace")
                entry = tarfile.TarInfo(f"{top}/{name}")
                entry.size, entry.mtime, entry.mode = len(data), int(at.timestamp()), 0o600
                archive.addfile(entry, io.BytesIO(data))
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise CliError(f"cannot write {path}: {error.strerror}", "Give another --output.") from error
    return path.stat().st_size


def _health(given: Globals, timeout_s: float, failed: dict[str, str]) -> Gathered | None:
    try:
        return find(given, timeout_s)
    except CliError as error:
        failed["health.json"] = error.message
        return None


def _admins(registered: Future[dict[str, str]] | None, failed: dict[str, str]) -> dict[str, str]:
    """Return the registered admin addresses, as far as they are known within half a second."""
    try:
        return {} if registered is None else registered.result(_REGISTERED_S)
    except TimeoutError:
        failed["admin addresses"] = "neither the store nor a master has named them"
    except CliError as error:
        failed["admin addresses"] = error.message
    return {}


def _named(given: Globals, local: LocalCluster | None, admin: str | None) -> dict[str, str]:
    """Return the admin addresses of --admin, by the name of the process in the bundle. Raise UsageFaultError."""
    if admin is None:
        return {}
    hosts = addresses_of_store(store_hosts(given))
    names = {one.address: one.name for one in local.coord} if local is not None else {}
    return {names.get(address, file_name(address)): found for address, found in named_admins(admin, hosts).items()}


def _secrets(given: Globals, local: LocalCluster | None) -> set[str]:
    """Return all values that this command knows to be secret."""
    named = certs_dir_named(given)
    directories = [one for one in (named, local_certs_dir(given) if local is not None else None) if one is not None]
    found = secrets_in(directories, [given.data_path / one for one in (SUPER_FILE, SUPER_DIGEST_FILE, SERVERS_FILE)])
    access = store_access(given)
    for credential in (access.auth, access.sasl, *headers(process.own()).values()):
        found |= {credential, credential.partition(":")[2], credential.rpartition(":")[2]}
    return found
