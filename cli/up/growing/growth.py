"""The part of `rk up` that makes its cluster larger.

A new daemon is written into the topology file, then into cluster.json, then started. So after a crash in between, the
next start has a cluster that both files describe.
"""

from __future__ import annotations

import datetime
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cli.common.errors import CliError
from cli.common.local import MASTER, SERVER, STORE, Daemon, LocalCluster, Shape, command_line, usual_daemon
from cli.security import daemons
from cli.topology.edit import with_daemon
from cli.topology.load import parsed, read
from cli.topology.model import LOCAL_MAX, MASTERS, SERVERS
from cli.topology.model import STORE as STORE_TABLE
from cli.up.cluster_file import ClusterFile
from cli.up.control import ControlRequest
from coord.durable import write_durably
from coord.errors import ConfigError

#: The table of a topology file for each role.
TABLES: Final = {STORE: STORE_TABLE, MASTER: MASTERS, SERVER: SERVERS}


class Growth:
    """Answers requests for further daemons, on the supervisor's thread."""

    def __init__(
        self, local: LocalCluster, shape: Shape, data_dir: Path, file: ClusterFile, is_free: Callable[[int], bool]
    ) -> None:
        """`is_free` returns whether a daemon could listen on a port."""
        self._local = local
        self._shape = shape
        self._data_dir = data_dir
        self._file = file
        self._is_free = is_free
        #: Whether the cluster is up, so that its start and its stop know all daemons.
        self.is_open = False

    def add(self, request: ControlRequest) -> tuple[Daemon, list[str]]:
        """Record a further daemon; return it with its command line. After a CliError nothing has changed."""
        if not self.is_open:
            raise CliError("the cluster is starting or stopping", "Try again when `rk up` has printed its summary.")
        daemon = next_daemon(self._local, request.name, request.rack, self._data_dir, self._is_free)
        undo = self._record_in_topology(daemon, request.rack)
        same = {STORE: self._local.coord, MASTER: self._local.masters, SERVER: self._local.servers}[daemon.role]
        same.append(daemon)
        before, self._local.store = self._local.store, _store_addresses(self._local)
        try:
            self._file.save()
        except OSError as error:
            same.remove(daemon)
            self._local.store = before
            undo()
            raise CliError(f"cannot write {self._data_dir}: {error.strerror}", "Free space on that disk.") from error
        if self._local.tls:
            self._issue(daemon)
        return daemon, command_line(daemon, self._local, self._shape)

    def _issue(self, daemon: Daemon) -> None:
        """Give the daemon a certificate. Raise CliError."""
        directory = self._local.certs(self._data_dir)
        try:
            daemons.issue_missing(self._local, [daemon], directory, datetime.datetime.now(datetime.UTC))
        except ConfigError as error:
            raise CliError(
                f"{daemon.name} is recorded and has no certificate: {error}", f"Issue it to {directory / daemon.name}."
            ) from error

    def _record_in_topology(self, daemon: Daemon, rack: str) -> Callable[[], None]:
        """Write the daemon into the topology file, if the cluster has one; return the function that undoes this."""
        if not self._local.topology:
            return lambda: None
        path = Path(self._local.topology)
        try:
            text = read(path)
            _check_same(parsed(text, str(path)).nodes(), self._local, path)
        except CliError as error:
            raise CliError(
                error.message, error.hint or f"Start again with its new place: rk up --topology {path.name}"
            ) from error
        table = TABLES[daemon.role]
        has_list = f"[[{table}.node]]" in text.replace(" ", "")
        if rack and not has_list:
            raise CliError(
                f"{path} gives racks by their count, so a server cannot choose its rack",
                f"Leave out --rack, or write [[{table}.node]] tables in the file and start again.",
            )
        changed = with_daemon(text, table, int(daemon.number), daemon.rack)
        node = next(one for one in parsed(changed, str(path)).nodes() if one.name == daemon.name)
        daemon.options, daemon.rack = list(node.options), node.rack
        write_topology(path, changed)
        return lambda: write_topology(path, text)


def next_daemon(local: LocalCluster, role: str, rack: str, data_dir: Path, is_free: Callable[[int], bool]) -> Daemon:
    """Return the next daemon of a role. Raise CliError.

    Its number was never used. Its ports are those of the port plan, or others if these are taken.
    """
    if role not in TABLES:
        raise CliError(f"there is no kind of daemon {role!r}", f"Name one of: {', '.join(TABLES)}.")
    if role == STORE and local.outside:
        raise CliError(f"the store at {local.store} is not of this cluster", "Add the node by that store's own tools.")
    if rack and role != SERVER:
        raise CliError(f"a {role} has no rack", "Leave out --rack.")
    known = [one for one in local.daemons() if one.role == role]
    used = [*known, *local.former] if role == STORE else known
    number = max((int(one.number) for one in used), default=0) + 1
    most = LOCAL_MAX[TABLES[role]]
    while (data_dir / f"{role}-{number}").exists() and number <= most:
        number += 1  # the directory of a daemon that was taken out of the file
    if number > most:
        raise CliError(
            f"a cluster of `rk up` has at most {most} daemons of this kind", "`rk systemd` has no such limit."
        )
    racks = Counter(one.rack for one in known)
    daemon = usual_daemon(
        role,
        number,
        local.base_port,
        data_dir,
        rack=rack or min(racks, key=racks.__getitem__, default=""),
        host=local.host,
    )
    daemon.joined = role == STORE
    taken = {port for one in local.daemons() for port, _ in one.ports()}
    daemon.address, daemon.peer, daemon.admin = (
        _free(address, local.host, taken, is_free) for address in (daemon.address, daemon.peer, daemon.admin)
    )
    return daemon


def _free(address: str, host: str, taken: set[int], is_free: Callable[[int], bool]) -> str:
    """Return the address, or one with a free port if another process has this one."""
    port = int(address.rpartition(":")[2] or 0)
    if not port or (port not in taken and is_free(port)):
        return address
    with socket.socket() as probe:
        probe.bind((host, 0))
        return f"{host}:{probe.getsockname()[1]}"


def _check_same(nodes: tuple[object, ...], local: LocalCluster, path: Path) -> None:
    """Raise CliError if the file was changed since the start, because the next start would have more than the new
    daemon."""
    listed = {str(getattr(one, "name", "")) for one in nodes}
    running = {one.name for one in local.daemons()}
    if listed != running:
        differs = ", ".join(sorted(listed ^ running))
        raise CliError(
            f"{path} was changed since the cluster started: it differs in {differs}",
            "Start the cluster again by the file, or take the change back.",
        )


def _store_addresses(local: LocalCluster) -> str:
    return local.store if local.outside else ",".join(one.address for one in local.coord)


def write_topology(path: Path, text: str) -> None:
    """Replace a file's text in one step; its mode stays. Raise CliError."""
    target = path.resolve()
    try:
        write_durably(target, text.encode(), mode=target.stat().st_mode & 0o777)
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}", "The file must list the new daemon.") from error
