"""`rk topology credentials`: everything secret that the daemons of a topology read, in one directory to copy from.

DIR/                 what every daemon of the cluster reads; with keys it is their credentials-dir
  cluster-secret.json, peer-secret, user.admin.json
  store-auth         super's credential for the store, which masters prove (--store-auth)
  store-super        its hash (--super-digest-file of store nodes)
  store-masters      the masters' identity: region servers prove their own key to the store
  servers/           with keys: all that a region server needs, without the masters' credential
  NAME/              with certificates: the directory of one daemon
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Final

import click

from cli.common import output
from cli.common.errors import CliError, UsageFaultError
from cli.common.local import (
    FIRST_USER,
    SUPER_DIGEST_FILE,
    SUPER_FILE,
    make_masters_identity,
    make_super,
    make_super_digest,
)
from cli.common.options import Globals, global_options
from cli.security.separation import separate
from cli.topology.load import USUAL_FILE, load
from cli.topology.model import CERTIFICATES, INSECURE, KINDS, SERVERS, STORE, PlacedDaemon, Topology
from coord.errors import ConfigError
from coord.security import making
from coord.security.certificates import making as certificates
from coord.security.credentials import CLUSTER_FILE, STORE_MASTERS_FILE, read_private
from coord.security.principal import MASTER, NODE, SERVER, USER, Principal

#: The kind of principal that each kind of daemon proves.
_PRINCIPALS: Final = dict(zip(KINDS, (NODE, MASTER, SERVER), strict=True))


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), default=USUAL_FILE)
@click.option(
    "--to", required=True, type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Write here."
)
@click.option("--keep", is_flag=True, help="Succeed without a change if DIR has the secrets of a cluster.")
@global_options
@click.pass_obj
def credentials(given: Globals, file: Path, to: Path, keep: bool) -> None:
    """Make the secrets that the daemons of a topology FILE read, and the key of the first user, `admin`.

    Copy DIR to credentials-dir of every machine, owner the daemons' user, mode 0700, or DIR/servers where only region
    servers run; with certificates copy DIR/NAME of the machine's daemons alone, and keep ca.key where you issue
    certificates. `rk certs` rotates and issues more. A DIR
    with keys alone gets certificates besides, if FILE wants them, and keeps its secrets.
    """
    topology = load(file)
    if topology.credentials == INSECURE or topology.is_local:
        why = 'says credentials = "insecure"' if topology.credentials == INSECURE else "names no hosts"
        hint = "`rk up` makes the keys of one machine itself."
        raise UsageFaultError(f"{file} {why}, so there is nothing to make", hint)
    if (to / CLUSTER_FILE).exists() and keep:
        kept = f"{to} has the secrets of a cluster: kept"
        output.report({"directory": str(to), "made": []}, kept, as_json=given.json)
        return
    try:
        made = _make(topology, to)
    except ConfigError as error:
        raise CliError(str(error), "Give --to with a new directory, or --keep.") from error
    output.report({"directory": str(to), "made": made}, f"made {', '.join(made)} in {to}", as_json=given.json)


def _make(topology: Topology, to: Path) -> list[str]:
    user = Principal(USER, FIRST_USER)
    made = []
    is_new = topology.credentials != CERTIFICATES or not certificates.has_keys_alone(to)
    if is_new:
        making.init(to, user)
        made = ["the cluster's secrets", f"the key of {user}"]
    make_super(to)
    make_super_digest(to)
    if is_new and topology.store:  # the access lists of an older cluster do not name the servers
        make_masters_identity(to) if topology.credentials == CERTIFICATES else separate(to)
    if topology.credentials == CERTIFICATES:
        now = datetime.datetime.now(datetime.UTC)
        certificates.init_authority(to, now)
        certificates.issue(to, user, [], to, now)
        for daemon in topology.nodes():
            _issue(daemon, to, now)
        made.append(f"certificates of {output.count(len(topology.nodes()), 'daemon')}")
    return made


def principal_of(daemon: PlacedDaemon) -> Principal:
    """Return the identity that a daemon proves. Store nodes know each other by their numbers."""
    kind = _PRINCIPALS[daemon.kind]
    return Principal(kind, str(daemon.number) if kind == NODE else daemon.name)


def _issue(daemon: PlacedDaemon, to: Path, now: datetime.datetime) -> None:
    """Make the directory of one daemon, with all that its command line names."""
    target = to / daemon.name
    certificates.issue(to, principal_of(daemon), [daemon.host], target, now)
    name = SUPER_DIGEST_FILE if daemon.kind == STORE else SUPER_FILE
    if daemon.kind == SERVERS and (to / STORE_MASTERS_FILE).exists():
        name = STORE_MASTERS_FILE
    making.write_private(target / name, read_private(to / name))
