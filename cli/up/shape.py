"""The shape of the cluster that `rk up` starts: by options, by the directory's last start, or by a topology file."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from cli.common.errors import CliError, UsageFaultError
from cli.common.local import CERTS_DIR, HOST, MASTER, SERVER, STORE, Daemon, LocalCluster, Shape, usual_daemon
from cli.common.options import Globals, parse_hosts
from cli.topology.model import CERTIFICATES, INSECURE, PlacedDaemon, Topology
from coord.hosts import is_loopback
from coord.security.credentials import EVERY_PORT_FILE

DEFAULT_BASE_PORT: Final = 21800
#: Base ports that a topology without one may get: BASES from the default on, below the kernel's outgoing ports.
BASES: Final = 100
#: Replicas from which Spark makes the plans of a first start. One process makes smaller plans, to the same bytes, in
#: less time than a JVM needs to start.
SPARK_MIN: Final = 20_000
_STEP: Final = 100
#: The keys of a topology file that replace these options of the command line.
_KEYS: Final = dict.fromkeys(("secure", "tls"), "credentials in ") | {
    "certs-dir": "credentials-dir in ",
    "address": "address in ",
}
#: Hosts that a topology of one machine may name.
_HERE: Final = ("", HOST, "localhost")


def shape_of(
    given: Globals,
    before: LocalCluster | None,
    store_nodes: int | None,
    masters: int | None,
    servers: int | None,
    racks: int | None,
    base_port: int | None,
    plan_engine: str | None,
    opener: str = "kv",
    spark: tuple[str | None, tuple[str, ...], float | None] = (None, (), None),
    limits: tuple[float | None, int | None, int | None] = (None, None, None),
) -> Shape:
    """Return the requested shape. Options that are not given keep the directory's values, or the defaults."""
    outside = parse_hosts(given.store) if given.store else None
    if before is not None:
        if outside is None and before.outside:
            outside = before.store
        own_nodes = len(before.coord)
        if own_nodes and (outside is not None or store_nodes not in (None, own_nodes)):
            raise UsageFaultError(
                f"the store in {given.data_path} has {own_nodes} nodes and cannot be started with another number",
                "Omit --store-nodes and --store, or give another --data-dir.",
            )
        racks = _or_default(racks, len({server.rack for server in before.servers}))
    is_first = before is None or not before.has_been_up
    return Shape(
        store_nodes=_or_default(store_nodes, len(before.coord) if before and before.coord else 3),
        masters=_or_default(masters, len(before.masters) if before else 2),
        servers=_or_default(servers, len(before.servers) if before else 4),
        racks=_or_default(racks, 1),
        base_port=_or_default(base_port, before.base_port if before else DEFAULT_BASE_PORT),
        outside_store=outside,
        root=given.root_path if given.root or before is None else before.root,
        plan_engine=plan_engine or ("spark" if is_first and (spark[0] or spark[1]) else "auto"),
        # At a restart the regions are already placed, so Spark is not needed.
        spark_min=SPARK_MIN if is_first and not plan_engine else 0,
        opener=opener,
        spark_master=spark[0] or (before.spark_master if before else ""),
        spark_conf=spark[1] or (tuple(before.spark_conf) if before else ()),
        plan_deadline_s=spark[2] or (before.plan_deadline_s if before else 0.0),
        create_timeout_s=limits[0] or (before.create_timeout_s if before else 0.0),
        replacements_max=limits[1] if limits[1] is not None or before is None else before.replacements_max,
        purge_after_ms=limits[2] if limits[2] is not None or before is None else before.purge_after_ms,
        names_credential=given.names_store_credential(),
        names_servers="store-servers" in given.settings(),
    )


def with_dead_s(shape: Shape, before: LocalCluster | None, replica_dead_s: float | None) -> Shape:
    """Return the shape with the silence after which members of tablets are replaced: given, or as before."""
    known = before.replica_dead_s if before else 0.0
    return msgspec.structs.replace(shape, replica_dead_s=replica_dead_s or known)


def certs_named(given: Globals) -> str:
    """Return the directory of --certs-dir as an absolute path, "" without the option.

    RK_CERTS_DIR and contexts are for commands: they may name credentials of another cluster.
    """
    found = given.given_values().get("certs-dir", "")
    return str(Path(found).expanduser().absolute()) if found else ""


def with_security(
    shape: Shape,
    before: LocalCluster | None,
    secure: bool | None,
    *,
    tls: bool,
    certs_dir: str,
    address: str | None,
    data_dir: Path,
) -> Shape:
    """Return the shape with proofs, TLS, credentials and address: as requested, or as before. Raise UsageFaultError.

    An open cluster that was started on an address of other machines starts there again: --insecure was said once.
    """
    host = address or (before.host if before is not None else HOST)
    kept = certs_dir or (before.certs_dir if before is not None else "")
    secured = is_secured(before, True if (tls or certs_dir) and secure is None else secure)
    made = msgspec.structs.replace(
        shape,
        secured=secured,
        tls=secured and (tls or is_for_every_port(Path(kept) if kept else data_dir / CERTS_DIR)),
        certs_dir=kept,
        host=host,
    )
    if (tls or certs_dir) and secure is False:
        raise UsageFaultError("--insecure contradicts --tls and --certs-dir", "Give one of them.")
    if made.tls and made.outside_store is not None:
        raise UsageFaultError(
            f"--tls is for every port, and the store at {made.outside_store} is not of this cluster",
            "Leave out --tls, and give --store-tls-ca and its companions for that store.",
        )
    is_agreed = secure is False or (not secured and before is not None and before.host == host)
    if not is_loopback(host) and not made.tls and not is_agreed:
        raise UsageFaultError(
            f"--address {host} can be reached from other machines, and without TLS everybody on the way can read along",
            "Give --tls, or --insecure on a network that you trust.",
        )
    return made


def is_for_every_port(directory: Path) -> bool:
    """Return True if a directory of credentials says that every port speaks TLS."""
    return (directory / EVERY_PORT_FILE).exists()


def is_secured(before: LocalCluster | None, secure: bool | None) -> bool:
    """Return True if callers must prove who they are: as `secure` says, or as at the last start. A new cluster is
    secured."""
    if secure is not None:
        return secure
    return before.has_credentials if before is not None else True


def _or_default(request: int | None, usual: int) -> int:
    """Return the given value, even if it is 0 and is rejected later; else the default."""
    return usual if request is None else request


# --- topology files ---


def check_options(given: Globals, topology: Topology, file: Path, options: dict[str, object]) -> None:
    """Raise UsageFaultError for options that the topology file decides, and for a file of several machines."""
    named = sorted(name for name, value in options.items() if value is not None)
    named += [name for name, value in (("store", given.store), ("root", given.root)) if value]
    named += ["certs-dir"] if certs_named(given) else []
    if named:
        raise UsageFaultError(
            f"--{named[0].replace('_', '-')} stands beside --topology, and {file} decides it",
            f"Change {_KEYS.get(named[0], '')}{file}, or leave out --topology.",
        )
    for node in topology.nodes():
        if node.host not in _HERE:
            raise UsageFaultError(
                f"{file}: {node.name} runs on {node.host}, and `rk up` starts daemons of this machine alone",
                "`rk systemd` writes units for machines. Without any host, all daemons run on this machine.",
            )


def shape_of_topology(topology: Topology, shape: Shape, before: LocalCluster | None, base_port: int) -> Shape:
    """Return the shape with the values of the topology, security included. Raise UsageFaultError."""
    if before is not None and before.coord and topology.outside:
        raise UsageFaultError(
            f"the store in this directory has {len(before.coord)} nodes, and the topology names {topology.outside}",
            "Leave out [store] outside, or give another data-dir.",
        )
    if topology.outside and topology.credentials == CERTIFICATES:
        raise UsageFaultError(
            f"the topology wants TLS on every port, and the store at {topology.outside} is not of this cluster",
            'Give credentials = "keys", and --store-tls-ca and its companions for that store.',
        )
    return msgspec.structs.replace(
        shape,
        store_nodes=len(topology.store) or shape.store_nodes,
        masters=len(topology.masters),
        servers=len(topology.servers),
        base_port=base_port,
        outside_store=topology.outside or None,
        root=topology.root,
        secured=topology.credentials != INSECURE,
        tls=topology.credentials == CERTIFICATES,
        certs_dir=topology.credentials_dir,
        host=topology.address or HOST,
    )


def base_port_of(topology: Topology, before: LocalCluster | None, is_free: Callable[[int], bool]) -> int:
    """Return the base port of a topology: its own, the last start's, or one by its name whose ports are free.

    Stopped clusters hold no ports. So the search begins at a place derived from the name, which rarely is the same for
    two clusters. Raise CliError.
    """
    known = topology.base_port or (before.base_port if before is not None else 0)
    if known:
        return known
    base = free_base(zlib.crc32(topology.name.encode()) % BASES, is_free)
    if not base:
        raise CliError("no range of 100 ports is free", "Give [cluster] base-port in the topology file.")
    return base


def free_base(first: int, is_free: Callable[[int], bool]) -> int:
    """Return a base port whose ports are free, 0 if there is none. The search begins at place `first` of BASES."""
    bases = (DEFAULT_BASE_PORT + (first + number) % BASES * _STEP for number in range(BASES))
    return next((base for base in bases if all(is_free(port) for port in range(base, base + _STEP))), 0)


def arrange(
    local: LocalCluster, topology: Topology, file: Path, before: LocalCluster | None, data_dir: Path
) -> list[str]:
    """Give a designed cluster the daemons of a topology. Return notes for the operator. Raise UsageFaultError."""
    local.name, local.topology = topology.name, str(file.absolute())
    known = {one.name: one for one in before.daemons()} if before is not None else {}
    same_ports = before is not None and (before.base_port, before.host) == (local.base_port, local.host)

    def daemon(node: PlacedDaemon, role: str) -> Daemon:
        made = usual_daemon(role, node.number, local.base_port, data_dir, rack=node.rack, host=local.host)
        former = known.get(made.name)
        if former is not None and same_ports:
            made.address, made.peer, made.admin = former.address, former.peer, former.admin
        made.address = f"{local.host}:{node.port}" if node.port else made.address
        made.peer = f"{local.host}:{node.peer_port}" if node.peer_port else made.peer
        made.admin = f"{local.host}:{node.admin_port}" if node.admin_port else made.admin
        made.data_dir = node.data_dir or made.data_dir
        made.options = list(node.options)
        made.joined = role == STORE and node.number in topology.joined
        return made

    local.coord = [daemon(one, STORE) for one in topology.store]
    local.masters = [daemon(one, MASTER) for one in topology.masters]
    local.servers = [daemon(one, SERVER) for one in topology.servers]
    local.store = topology.outside or ",".join(one.address for one in local.coord)
    _check_store(local, before, file)
    here = {one.name for one in local.coord}
    local.former += [one for one in (before.coord if before is not None else []) if one.name not in here]
    gone = sorted(known.keys() - {one.name for one in local.daemons()})
    notes = [f"{', '.join(gone)}: not in {file} and not started; the data stays"] if gone else []
    return [*topology.warnings, *notes]


def _check_store(local: LocalCluster, before: LocalCluster | None, file: Path) -> None:
    """Raise UsageFaultError if a store that exists would start with new founders, or with too few of its nodes."""
    if before is None or not before.coord:
        return
    here = {one.name: one for one in local.coord}
    for one in before.former:
        if one.name in here:
            raise UsageFaultError(
                f"{file} lists {one.name}, which has left the store of this cluster",
                f"Take {one.name} out of the file; `rk up add store` adds another node while the cluster runs.",
            )
    left = sum(one.name in here for one in before.coord)
    if left * 2 <= len(before.coord):
        raise UsageFaultError(
            f"{file} has {left} of the {len(before.coord)} nodes of the store in {before.coord[0].home}: no majority",
            "List the nodes again, and remove one after the other while the store runs: rk coord remove ID",
        )
    for name, one in here.items():
        if not one.joined and name not in {former.name for former in before.coord if not former.joined}:
            raise UsageFaultError(
                f"{file}: {name} is new, and the store in {one.home} runs already",
                "Leave it out and add it while the cluster runs: rk up add store",
            )
