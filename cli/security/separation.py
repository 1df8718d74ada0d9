"""Files by which region servers prove an identity of their own to the store, in place of the masters' credential.

A region server that finds `store-masters` in its directory of credentials proves its own key (`--store-auth @DIR`), and
has no use for `store-auth`. The files must not be made before the access lists of the znodes name the servers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cli.common.errors import CliError
from cli.common.local import make_masters_identity
from coord.errors import ConfigError
from coord.security.credentials import CLUSTER_FILE, STORE_AUTH_FILE, STORE_MASTERS_FILE, read_private
from coord.security.making import PEERS_FILE, write_private

#: Directory, below that of the credentials, that region servers with keys get.
SERVERS_DIR: Final = "servers"


def is_separated(directory: Path) -> bool:
    """Return True if region servers with this directory prove their own key."""
    return (directory / STORE_MASTERS_FILE).exists()


def separate(directory: Path) -> list[Path]:
    """Write the files of separate region servers into a directory of credentials; return the directories that servers
    get from now on: one for each certificate of a server, else one for all. Raise CliError."""
    targets = sorted({path.parent for path in directory.glob("*/server.*.crt")})
    try:
        if not targets:
            targets = [directory / SERVERS_DIR]
            targets[0].mkdir(mode=0o700, exist_ok=True)
            for name in (CLUSTER_FILE, PEERS_FILE):
                write_private(targets[0] / name, read_private(directory / name))
        for target in targets:
            make_masters_identity(directory, target)
            (target / STORE_AUTH_FILE).unlink(missing_ok=True)
        make_masters_identity(directory)  # the last file: after an interruption `is_separated` returns False
    except ConfigError as error:
        raise CliError(str(error), "Give a directory of credentials that you may write.") from error
    except OSError as error:
        hint = "Give a directory of credentials that you may write."
        raise CliError(f"cannot write {error.filename}: {error.strerror}", hint) from error
    return targets
