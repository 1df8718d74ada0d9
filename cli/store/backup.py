"""`rk coord backup` and `rk coord restore`: save the state of a store in a file, and create a new store from it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from cli.common.access import admin_connection
from cli.common.errors import CliError, NotFoundError, UnreachableError, UsageFaultError
from cli.common.local import read_cluster
from cli.common.options import Globals, global_options, json_option
from cli.common.output import print_json, size
from cli.store.files import progress_bar
from cli.store.salvage import backup_stopped
from coord.admin_token import ADMIN_FILE
from coord.durable import sync_folder
from coord.errors import ConfigError, CoordError
from coord.offline.backup import BackupReader, NewNode, make_directories
from coord.offline.directory import Progress
from coord.server.admin.backup import PATH as BACKUP_PATH
from coord.server.config.settings import StoreSettings, parse_address, parse_peers
from coord.storage.backup import PIECE_BYTES, BackupManifest

#: A node without a recent snapshot first writes one: a minute for a large one on a slow disk.
ANSWER_TIMEOUT_S: Final = 300.0


class AdminAccess:
    """Admin address of a node, and its token."""

    def __init__(self, address: str, token: str) -> None:
        self.address = address
        self.token = token


# --- backup ----------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("places", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="[DIR] FILE")
@click.option("--admin", metavar="HOST:PORT", help="Admin address of a node.  [default: from its admin.json]")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help=f"The {ADMIN_FILE} of that node's data directory, or a copy of it.",
)
@click.option("--committed-only", is_flag=True, help="With DIR: skip entries that its log does not prove committed.")
@global_options
@click.pass_obj
def backup(
    given: Globals, places: tuple[Path, ...], admin: str | None, token_file: Path | None, committed_only: bool
) -> None:
    """Write the state of a running store to FILE, complete and as of one zxid, without interrupting clients.

    \b
    On a node's machine:    rk coord backup --data-dir /var/lib/rk/1 FILE
    From another machine:   rk coord backup --admin HOST:PORT --token-file admin.json FILE
    Of `rk up`:             rk coord backup FILE          (--store HOST:PORT selects a node)
    Of a stopped node:      rk coord backup DIR FILE      also if the node cannot start; DIR is only read

    \b
    The whole file is checked before it gets its name. It contains everything, including passwords of sessions.
    """
    if len(places) > 2:
        raise UsageFaultError(f"{len(places)} names were given", "Give FILE, or DIR FILE for a stopped node.")
    file = places[-1]
    if len(places) == 2 and (admin is not None or token_file is not None):
        raise UsageFaultError("DIR belongs to a stopped node, which cannot answer", "Omit --admin and --token-file.")
    if len(places) == 1 and committed_only:
        raise UsageFaultError("--committed-only is for a stopped node", "Give its data directory: DIR FILE.")
    if file.exists():
        raise CliError(f"{file} already exists", "Give another name; nothing is overwritten.")
    if not file.absolute().parent.is_dir():
        raise UsageFaultError(f"directory {file.parent} does not exist", "Create it first.")
    if len(places) == 2:
        backup_stopped(places[0], file, committed_only=committed_only, as_json=given.json)
        return
    nodes = list(admin_accesses(given, admin, token_file))
    draft = file.with_name(f".{file.name}.{secrets.token_hex(4)}.tmp")
    try:
        with progress_bar() as progress:
            manifest = fetch_first(nodes, draft, progress)
        os.link(draft, file)
        sync_folder(file.absolute().parent)
    except OSError as error:
        raise CliError(f"{error.filename or file}: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)
    if given.json:
        print_json({"file": str(file), "bytes": manifest.file_bytes(), **manifest.fields()})
    else:
        click.echo(
            f"{file}: {size(manifest.file_bytes())}, node {manifest.node_id} at index {manifest.index},"
            f" zxid {manifest.zxid}, digest {manifest.digest:016x}"
        )


def admin_accesses(given: Globals, admin: str | None, token_file: Path | None) -> Iterator[AdminAccess]:
    """Yield the nodes to try, in order."""
    data_path = given.data_path
    if token_file is not None or (data_path / ADMIN_FILE).exists():
        access = _read_admin_access(token_file or data_path / ADMIN_FILE)
        yield AdminAccess(admin or access.address, access.token)
        return
    if admin is not None:
        raise UsageFaultError(
            f"--admin {admin} needs --token-file", f"The token file is {ADMIN_FILE} in the node's data directory."
        )
    cluster = read_cluster(data_path)
    if cluster is None:
        raise UsageFaultError(
            f"{data_path} is neither the data directory of a node nor of a local cluster",
            "Give --data-dir DIR of a node on this machine, or --admin HOST:PORT --token-file FILE.",
        )
    nodes = cluster.coord
    wanted = given.explicit_store()
    if wanted is not None:
        nodes = [node for node in nodes if node.address in wanted.split(",")]
        if not nodes:
            raise NotFoundError(f"the local cluster has no store node at {wanted}", "rk status lists them.")
    for node in nodes:
        with contextlib.suppress(UsageFaultError):
            yield _read_admin_access(Path(node.data_dir) / ADMIN_FILE)


def _read_admin_access(path: Path) -> AdminAccess:
    try:
        found = json.loads(path.read_text())
        return AdminAccess(str(found["admin"]), str(found["token"]))
    except OSError as error:
        raise UsageFaultError(f"{path}: {error.strerror}", "A node with an admin port writes this file.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageFaultError(f"{path} is not the {ADMIN_FILE} of a node: {error!r}") from error


def fetch_first(nodes: list[AdminAccess], draft: Path, progress: Progress) -> BackupManifest:
    """Fetch a backup from the first node that answers. Raise the CliError of the last node."""
    failure: CliError = UnreachableError("no node has an admin port")
    for node in nodes:
        try:
            _fetch(node, draft, progress)
            with BackupReader(draft) as whole:
                whole.load(progress)
                return whole.manifest
        except CliError as error:
            failure = error
        except CoordError as error:
            failure = CliError(f"the backup that {node.address} sent is damaged: {error}")
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and error.filename:
                raise
            failure = UnreachableError(f"{node.address} does not answer: {getattr(error, 'strerror', None) or error}")
        draft.unlink(missing_ok=True)
    raise failure


def _fetch(node: AdminAccess, draft: Path, progress: Progress) -> None:
    """Fetch a node's backup, durable on return. Raise CliError, OSError, HTTPException."""
    host, port = parse_address(node.address, "admin address")
    connection = admin_connection(host, port, ANSWER_TIMEOUT_S)
    try:
        headers = {"Authorization": f"Bearer {node.token}", "Content-Length": "0"}
        connection.request("POST", BACKUP_PATH.decode(), headers=headers)
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise CliError(f"{node.address} rejected the request: {answer.read(1000).decode(errors='replace').strip()}")
        total = int(answer.headers["Content-Length"])
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as out:
            done = 0
            while piece := answer.read(PIECE_BYTES):
                out.write(piece)
                done += len(piece)
                progress("received", done, total)
            out.flush()
            os.fsync(out.fileno())
        if done != total:
            raise CliError(f"{node.address} closed the connection after {done} of {total} bytes")
    finally:
        connection.close()


# --- restore ---------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--data-dir", required=True, type=click.Path(path_type=Path), metavar="DIR", help="New or empty.")
@click.option("--id", "node_id", type=int, metavar="N", help="Create only this node's directory, in DIR itself.")
@click.option("--peers", default="", metavar="ID=HOST:PORT,…", help="All nodes of the new store; none: one node.")
@click.option("--cluster", default="", metavar="NAME", help="Name of the new store; needed with --id.")
@json_option
@click.pass_obj
def restore(given: Globals, file: Path, data_dir: Path, node_id: int | None, peers: str, cluster: str) -> None:
    """Create the data directories of a new store from a backup.

    \b
    All at once:        rk coord restore FILE --data-dir DIR --peers 1=…,2=…,3=…      creates DIR/1, DIR/2, DIR/3
    On each machine:    rk coord restore FILE --data-dir DIR --peers … --id N --cluster NAME

    Every node must have its directory before any node is started. Sessions and ephemeral znodes of the old store are
    not restored. The new store has another cluster id, so that nodes of the old store cannot join it by mistake: a
    random id without --cluster NAME, in which case `rk coord run` needs no --cluster either.
    """
    try:
        members = sorted(parse_peers(peers)) or [node_id or 1]
        if node_id is not None and node_id not in members:
            raise ConfigError(f"node {node_id} is not among the peers {members}")
        if node_id is not None and not cluster and len(members) > 1:
            raise ConfigError("--id needs --cluster NAME: all nodes of the new store must get the same new identity")
        for member in members:
            StoreSettings(member, data_dir, ("", 1))
        identity = (
            StoreSettings(1, data_dir, ("", 1), cluster=cluster).cluster_id() if cluster else secrets.token_bytes(16)
        )
        single = node_id is not None or len(members) == 1
        nodes = [NewNode(data_dir if single else data_dir / str(i), i) for i in members if node_id in (None, i)]
        with progress_bar() as progress, BackupReader(file) as source:
            machine = make_directories(source, nodes, members, identity, progress)
            manifest = source.manifest
    except ConfigError as error:
        raise UsageFaultError(str(error)) from error
    except CoordError as error:
        raise CliError(str(error)) from error
    except OSError as error:
        raise CliError(f"{error.filename or file}: {error.strerror}") from error
    if given.json:
        print_json(
            {
                "directories": {str(node.node_id): str(node.path) for node in nodes},
                "cluster": identity.hex(),
                "znodes": len(machine.tree.nodes),
                "zxid": machine.last_zxid,
                "digest": f"{machine.digest():016x}",
                "from": manifest.fields(),
            }
        )
        return
    for node in nodes:
        click.echo(f"{node.path}: node {node.node_id} of {','.join(map(str, members))}")
    click.echo(f"{len(machine.tree.nodes)} znodes at zxid {machine.last_zxid}, cluster {identity.hex()}")
    sys.stdout.flush()
