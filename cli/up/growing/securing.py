"""The part of `rk up` that gives credentials to the daemons of an open cluster while it runs.

`rk secure` sends two requests. `begin` makes the credentials, and the command lines of the next start of each daemon;
`rk secure` then restarts one daemon after the other. `done` records that all daemons have credentials: from then on
commands prove theirs, and the next `rk up` starts a secured cluster. After an interruption in between, `begin` may be
repeated, and the next `rk up` starts all daemons with credentials.

`separate` records that the access lists let region servers write their znodes. From their next start on they prove
their own identity to the store, without the masters' credential.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

from cli.common.errors import CliError
from cli.common.local import LocalCluster, Shape, command_line
from cli.security import daemons
from cli.topology.load import parsed, read
from cli.topology.model import INSECURE
from cli.up.cluster_file import ClusterFile
from cli.up.control import ControlRequest
from cli.up.supervisor import Rights
from coord.errors import ConfigError
from coord.hosts import is_loopback
from coord.security import making
from coord.security.credentials import OPEN_TOO_FILE


class Securing:
    """Answers the requests of `rk secure`, on the supervisor's thread."""

    def __init__(
        self,
        local: LocalCluster,
        shape: Shape,
        data_dir: Path,
        file: ClusterFile,
        rights: Callable[[], Rights],
        prove: Callable[[], None],
    ) -> None:
        """`rights` returns the variables by which daemons of each role prove themselves to the store.

        `prove` is called when all daemons have credentials: this process then proves its own.
        """
        self._local = local
        self._shape = shape
        self._data_dir = data_dir
        self._file = file
        self._rights = rights
        self._prove = prove
        #: Whether the cluster is up.
        self.is_open = False

    def answer(self, request: ControlRequest) -> tuple[dict[str, list[str]], Rights]:
        """Return command lines and rights of the daemons. Raise CliError, and then nothing has changed."""
        if not self.is_open:
            raise CliError("the cluster is starting or stopping", "Try again when `rk up` has printed its summary.")
        local = self._local
        before = local.secured, local.securing, local.separate_servers
        if request.name == "done":
            local.secured, local.securing = True, False
        elif request.name == "separate":
            local.separate_servers = self._can_separate()
        elif not local.secured:
            check_securable(local)
            self._make()
            # Everybody may still write the znodes, so servers need no other credential until the lists are right; but
            # those of a credential that the options name are closed already, and do not name the servers.
            local.securing, local.separate_servers = True, self._can_separate() and not self._shape.names_credential
        try:
            self._file.save()
        except OSError as error:
            local.secured, local.securing, local.separate_servers = before
            raise CliError(f"cannot write {self._data_dir}: {error.strerror}", "Free space on that disk.") from error
        if local.secured:
            self._prove()
        commands = {one.name: command_line(one, local, self._shape) for one in local.daemons()}
        return commands, self._rights()

    def _can_separate(self) -> bool:
        return not self._shape.names_servers

    def _make(self) -> None:
        """Make the credentials, and the file that lets open callers in meanwhile. Raise CliError."""
        daemons.make(self._local, self._data_dir, datetime.datetime.now(datetime.UTC))
        path = self._local.certs(self._data_dir) / OPEN_TOO_FILE
        try:
            making.write_private(path, b"")
        except ConfigError as error:
            raise CliError(str(error), "Free space on that disk.") from error


def check_securable(local: LocalCluster) -> None:
    """Raise CliError for an open cluster that cannot be secured while it runs."""
    if not is_loopback(local.host):
        raise CliError(
            f"this cluster listens on {local.host}, which other machines reach, and only TLS protects such addresses",
            "A running cluster cannot change to TLS: stop it, then `rk up --tls`, then `rk secure`.",
        )
    if local.topology and parsed(read(Path(local.topology)), local.topology).credentials == INSECURE:
        raise CliError(
            f'{local.topology} says credentials = "insecure", so the next start would open the cluster again',
            'Write credentials = "keys" there, then `rk secure` again.',
        )
