"""A cluster on this machine: its daemons, ports and command lines, and the file that describes them.

    <data-dir>/
      cluster.json      what runs, for other `rk` commands (written by `rk up`; kept after its end)
      certs/            credentials of daemons and of the user `admin`; mode 0700
      store-auth        super's credential for the store, created by `rk up`; mode 0600
      store-super       the hash of that credential, for the nodes; mode 0600
      store-servers     region servers' credential for a store that `rk up` does not run; mode 0600
      up.lock           held by the one `rk up` that may use this directory
      control.sock      requests to that `rk up` (cli/up/control.py)
      drill.lock        locked by the drill that breaks the cluster (cli/drill/target/cluster.py)
      logs/NAME.log     output of each daemon
      NAME/             each daemon's own data: store-1, master-1, server-1, …
      shared/           the regions' data, shared by the region servers

Ports have fixed distances from the base, so the addresses of a cluster are known before its first start:

    base +1…   store, clients      base+31…  masters, RPC       base+51…  region servers, RPC
    base+11…   store, peers        base+41…  masters, admin     base+71…  region servers, admin
    base+21…   store, admin
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from cli.common.errors import CliError, UnreachableError, UsageFaultError
from cli.common.options import Globals, variable_of
from coord.client.access import SERVERS_IDENTITY
from coord.durable import write_durably
from coord.errors import ConfigError
from coord.security.credentials import STORE_AUTH_FILE, STORE_MASTERS_FILE
from coord.security.making import PEERS_FILE, write_private

HOST: Final = "127.0.0.1"
CLUSTER_FILE: Final = "cluster.json"
LOCK_FILE: Final = "up.lock"
CONTROL_FILE: Final = "control.sock"
SUPER_FILE: Final = STORE_AUTH_FILE
SUPER_DIGEST_FILE: Final = "store-super"
SERVERS_FILE: Final = "store-servers"
#: Credentials of the daemons and of the first user of a secured cluster (`coord.security.credentials`).
CERTS_DIR: Final = "certs"
FORMAT_VERSION: Final = 1

#: The user whose key `rk up` and `rk certs init` make.
FIRST_USER: Final = "admin"

#: Limits of the port plan.
STORE_NODES_MAX: Final = 9
MASTERS_MAX: Final = 9
SERVERS_MAX: Final = 19
#: Highest offset in use; all ports must be below 65536.
_SPAN: Final = 71 + SERVERS_MAX

STORE: Final = "store"
MASTER: Final = "master"
SERVER: Final = "server"
#: Distances of a daemon's first ports from the base: clients or RPC, peers (0: not fixed), admin.
_OFFSETS: Final = {STORE: (0, 10, 20), MASTER: (30, 0, 40), SERVER: (50, 0, 70)}


class Daemon(msgspec.Struct):
    """One process of the cluster. `peer`: the address for its peers, if it is fixed; `pid` 0: not running."""

    name: str
    role: str
    address: str
    admin: str
    data_dir: str
    log: str
    peer: str = ""
    rack: str = ""
    pid: int = 0
    #: Further words of its command line (options of a topology file).
    options: list[str] = []
    #: Whether this store node joined the running store; the others founded it.
    joined: bool = False

    @property
    def number(self) -> str:
        """Return the number at the end of the daemon's name."""
        return self.name.rpartition("-")[2]

    @property
    def home(self) -> Path:
        """Return the directory of the cluster, which holds the logs of all daemons."""
        return Path(self.log).parent.parent

    def ports(self) -> list[tuple[int, str]]:
        """Return every port of this daemon with its use."""
        uses = [
            (self.address, "client port" if self.role == STORE else "RPC port"),
            (self.peer, "peer port"),
            (self.admin, "admin port"),
        ]
        return [(int(address.rpartition(":")[2]), use) for address, use in uses if address]


class LocalCluster(msgspec.Struct):
    """Content of cluster.json."""

    store: str
    root: str
    #: True if the store is not run by this cluster.
    outside: bool
    base_port: int
    coord: list[Daemon]
    masters: list[Daemon]
    servers: list[Daemon]
    #: Process that supervises the daemons; 0 after an orderly end.
    supervisor_pid: int = 0
    #: Place where the masters compute bulk plans; empty: on this machine.
    spark_master: str = ""
    spark_conf: list[str] = []
    #: Time limit of Spark in seconds; 0: the masters' default.
    plan_deadline_s: float = 0.0
    #: Limits of the creation of regions (`rk master run --create-timeout-s --replacements-max`); 0 and None: the
    #: masters' defaults.
    create_timeout_s: float = 0.0
    replacements_max: int | None = None
    #: Milliseconds for which the rows of deleted tables are kept (`rk master run --purge-after`); None: the default.
    purge_after_ms: int | None = None
    #: Silence in seconds after which a tablet's member is replaced (`rk server run --replica-dead-s`); 0: the default.
    replica_dead_s: float = 0.0
    #: Whether daemons demand a proof of identity; the credentials are in CERTS_DIR.
    secured: bool = False
    #: Whether `rk secure` restarts the daemons of an open cluster with credentials. `secured` becomes True when all
    #: daemons have credentials.
    securing: bool = False
    #: Whether region servers prove their own identity to the store, without the masters' credential. False in a cluster
    #: that an earlier build has secured, until `rk secure` has changed the access lists.
    separate_servers: bool = False
    #: Whether every port speaks TLS; each daemon then has a directory of its own below that of the credentials.
    tls: bool = False
    #: Directory of the credentials; "": CERTS_DIR.
    certs_dir: str = ""
    #: Address of this machine that the daemons listen on.
    host: str = HOST
    #: Name and topology file of a cluster that was started by one.
    name: str = ""
    topology: str = ""
    #: Nodes that were removed from the store. They do not run; the identity of the store follows from its founders.
    former: list[Daemon] = []
    #: Whether a start has completed all phases, including the table.
    has_been_up: bool = False
    format_version: int = FORMAT_VERSION

    @property
    def has_credentials(self) -> bool:
        """Return whether daemons are started with credentials."""
        return self.secured or self.securing

    def certs(self, data_dir: Path) -> Path:
        """Return the directory of the credentials of the cluster in `data_dir`."""
        return Path(self.certs_dir) if self.certs_dir else data_dir / CERTS_DIR

    def daemons(self) -> list[Daemon]:
        """Return all daemons in the order of their start."""
        return [*self.coord, *self.masters, *self.servers]

    def daemon(self, name: str) -> Daemon:
        """Return the daemon with this name. Raise KeyError."""
        for one in self.daemons():
            if one.name == name:
                return one
        raise KeyError(name)


class Shape(msgspec.Struct, frozen=True):
    """Shape of the cluster that `rk up` starts."""

    store_nodes: int
    masters: int
    servers: int
    racks: int
    base_port: int
    outside_store: str | None
    root: str
    plan_engine: str
    opener: str = "kv"
    #: Replicas from which the engine auto uses Spark (`rk master run --spark-min`); 0: the masters' default.
    spark_min: int = 0
    spark_master: str = ""
    spark_conf: tuple[str, ...] = ()
    plan_deadline_s: float = 0.0
    create_timeout_s: float = 0.0
    replacements_max: int | None = None
    purge_after_ms: int | None = None
    replica_dead_s: float = 0.0
    secured: bool = False
    tls: bool = False
    certs_dir: str = ""
    host: str = HOST
    #: True if the options name the masters' credential for the store.
    names_credential: bool = False
    #: True if the options name identities of region servers: then `rk up` does not separate the servers by itself.
    names_servers: bool = False


def usual_daemon(role: str, number: int, base_port: int, data_dir: Path, *, rack: str = "", host: str = HOST) -> Daemon:
    """Return a daemon with the ports that its number has in the port plan."""
    name = f"{role}-{number}"
    main, peer, admin = _OFFSETS[role]
    return Daemon(
        name=name,
        role=role,
        address=f"{host}:{base_port + main + number}",
        admin=f"{host}:{base_port + admin + number}",
        data_dir=str(data_dir / name),
        log=str(data_dir / "logs" / f"{name}.log"),
        peer=f"{host}:{base_port + peer + number}" if peer else "",
        rack=rack,
    )


def design(shape: Shape, data_dir: Path, before: LocalCluster | None = None) -> LocalCluster:
    """Return the layout of a cluster with this shape below `data_dir`; nothing is written.

    Daemons of `before` keep names, ports and options unless the shape has another base port. Raise UsageFaultError for
    an impossible shape.
    """
    _check_shape(shape, before)
    is_same_place = before is not None and (before.base_port, before.host) == (shape.base_port, shape.host)
    if before is not None and before.former and not is_same_place:
        raise UsageFaultError(
            f"{before.former[0].name} was removed from this store, so its addresses cannot change any more",
            f"Omit --base-port and --address: the cluster keeps {before.host} and {before.base_port}.",
        )
    kept = before if is_same_place else None
    racks_before = len({one.rack for one in kept.servers}) if kept is not None else 0

    def daemons(role: str, count: int, known: list[Daemon]) -> list[Daemon]:
        found = [msgspec.structs.replace(one, pid=0) for one in known[:count]]
        used = {one.name for one in found}
        numbers = (n for n in range(1, count + len(used) + 1) if f"{role}-{n}" not in used)
        found += [
            usual_daemon(role, next(numbers), shape.base_port, data_dir, host=shape.host)
            for _ in range(count - len(found))
        ]
        for position, one in enumerate(found):
            if role == SERVER and (not one.rack or shape.racks != racks_before):
                one.rack = f"rack-{position % shape.racks + 1}"
        return found

    coord = daemons(STORE, 0 if shape.outside_store else shape.store_nodes, kept.coord if kept else [])
    return LocalCluster(
        store=shape.outside_store or ",".join(node.address for node in coord),
        root=shape.root,
        outside=shape.outside_store is not None,
        base_port=shape.base_port,
        coord=coord,
        former=list(before.former) if before else [],
        spark_master=shape.spark_master,
        spark_conf=list(shape.spark_conf),
        plan_deadline_s=shape.plan_deadline_s,
        create_timeout_s=shape.create_timeout_s,
        replacements_max=shape.replacements_max,
        purge_after_ms=shape.purge_after_ms,
        replica_dead_s=shape.replica_dead_s,
        secured=shape.secured,
        separate_servers=_has_separate_servers(shape, data_dir, before),
        tls=shape.tls,
        certs_dir=shape.certs_dir,
        host=shape.host,
        name=before.name if before else "",
        topology=before.topology if before else "",
        masters=daemons(MASTER, shape.masters, kept.masters if kept else []),
        servers=daemons(SERVER, shape.servers, kept.servers if kept else []),
    )


def _has_separate_servers(shape: Shape, data_dir: Path, before: LocalCluster | None) -> bool:
    """Return whether region servers have an identity of their own in the store. Only a new cluster begins so: access
    lists of an older one, open or secured, do not name this identity until `rk secure` has changed them. A store that
    `rk up` does not run may have such lists (`cli.up.command`)."""
    if shape.names_servers:
        return False
    if before is not None:
        return before.separate_servers
    return shape.secured and not shape.outside_store and not (data_dir / SUPER_FILE).exists()


def _check_shape(shape: Shape, before: LocalCluster | None) -> None:
    bounds = [
        ("--store-nodes", shape.store_nodes, STORE_NODES_MAX),
        ("--masters", shape.masters, MASTERS_MAX),
        ("--servers", shape.servers, SERVERS_MAX),
        ("--racks", shape.racks, SERVERS_MAX),
    ]
    for option, value, most in bounds:
        if not 1 <= value <= most:
            raise UsageFaultError(f"{option} {value} is outside 1 to {most}")
    is_grown = before is not None and shape.store_nodes == len(before.coord)
    if shape.store_nodes % 2 == 0 and not shape.outside_store and not is_grown:
        raise UsageFaultError(
            f"--store-nodes {shape.store_nodes}: an even number of nodes tolerates no more failures than one node less",
            f"Use {shape.store_nodes - 1} or {shape.store_nodes + 1}.",
        )
    if not 1024 <= shape.base_port <= 65535 - _SPAN:
        raise UsageFaultError(f"--base-port {shape.base_port} is outside 1024 to {65535 - _SPAN}")


def command_line(daemon: Daemon, cluster: LocalCluster, shape: Shape) -> list[str]:
    """Return the command that runs `daemon` in the foreground."""
    start = [sys.executable, "-P", "-m", "cli"]
    common = ["--data-dir", daemon.data_dir, "--admin-address", daemon.admin]
    certs = cluster.certs(daemon.home) / (daemon.name if cluster.tls else "")
    peer_secret = ["--peer-secret-file", str(certs / PEERS_FILE)]
    open_too = ["--insecure"] if cluster.host != HOST else []
    if daemon.role == STORE:
        addresses = ["--client-address", daemon.address, "--peer-address", daemon.peer, *_members(daemon, cluster)]
        rights = ["--super-digest-file", str(make_super_digest(daemon.home))]
        rights += (
            [*peer_secret, "--certs-dir", str(certs), "--require-auth", "rk"] if cluster.has_credentials else open_too
        )
        words = [*start, "coord", "run", "--id", daemon.number, *addresses, *common, *rights, "--drill-links"]
        return [*words, *daemon.options]
    place = ["--store", cluster.store, "--root", cluster.root, "--address", daemon.address]
    place += ["--certs-dir", str(certs)] if cluster.has_credentials else open_too
    if daemon.role == MASTER:
        plan = ["--min-servers", str(len(cluster.servers)), "--plan-engine", shape.plan_engine]
        plan += ["--spark-min", str(shape.spark_min)] if shape.spark_min else []
        plan += ["--spark-master", shape.spark_master] if shape.spark_master else []
        plan += ["--plan-deadline-s", f"{shape.plan_deadline_s:g}"] if shape.plan_deadline_s else []
        plan += [word for setting in shape.spark_conf for word in ("--spark-conf", setting)]
        limits = ["--create-timeout-s", f"{shape.create_timeout_s:g}"] if shape.create_timeout_s else []
        limits += [] if shape.replacements_max is None else ["--replacements-max", str(shape.replacements_max)]
        limits += [] if shape.purge_after_ms is None else ["--purge-after", f"{shape.purge_after_ms}ms"]
        return [*start, "master", "run", *place, *common, *plan, *limits, *daemon.options]
    shared = str(daemon.home / "shared")
    # Without --peer-address a server takes tablets only on a loopback address. It keeps the port that it has chosen.
    takes_tablets = shape.opener == "kv" and "--no-tablets" not in daemon.options
    peer = daemon.peer or (f"{cluster.host}:0" if takes_tablets else "")
    return [
        *start,
        "server",
        "run",
        *place,
        *common,
        "--shared-dir",
        shared,
        "--rack",
        daemon.rack,
        *(["--peer-address", peer] if peer else []),
        "--opener",
        shape.opener,
        "--drill-links",
        *(peer_secret if cluster.has_credentials and shape.opener == "kv" else []),
        *(["--replica-dead-s", f"{shape.replica_dead_s:g}"] if shape.replica_dead_s else []),
        *daemon.options,
    ]


def _members(node: Daemon, cluster: LocalCluster) -> list[str]:
    """Return the options that name the other nodes. The store's identity follows from its founders."""
    if node.joined:
        others = [one for one in cluster.coord if one.name != node.name]
        return ["--join", ",".join(one.peer for one in [one for one in others if not one.joined] or others)]
    founders = sorted(
        (one for one in [*cluster.coord, *cluster.former] if not one.joined), key=lambda one: int(one.number)
    )
    return ["--peers", ",".join(f"{one.number}={one.peer}" for one in founders)]


def make_super(data_dir: Path) -> str:
    """Return super's credential of the store in `data_dir`, `USER:PASSWORD`; create it if missing. Raise CliError."""
    return _make_credential(data_dir / SUPER_FILE, "super")


def make_servers_credential(data_dir: Path) -> str:
    """Return region servers' credential for a store that `rk up` does not run; create it if missing. Raise CliError."""
    return _make_credential(data_dir / SERVERS_FILE, "servers")


def _make_credential(path: Path, user: str) -> str:
    known = _read_credential(path)
    if known:
        return known
    made = f"{user}:{secrets.token_urlsafe(32)}"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}", "Give a writable --data-dir.") from error
    _write_line(path, made)
    return made


def make_super_digest(data_dir: Path) -> Path:
    """Write the hash of super's credential for the nodes, as command lines are visible to all users; return its file.
    Raise CliError."""
    return _write_line(data_dir / SUPER_DIGEST_FILE, digest_of(make_super(data_dir)))


def make_masters_identity(directory: Path, target: Path | None = None) -> None:
    """Write super's identity of `directory` as the masters', there or into `target`, for region servers that have not
    the credential. Raise CliError."""
    _write_line((target or directory) / STORE_MASTERS_FILE, f"digest:{digest_of(make_super(directory))}")


def _write_line(path: Path, line: str) -> Path:
    try:
        write_private(path, line.encode() + b"\n")
    except ConfigError as error:
        raise CliError(str(error), "Give a writable directory.") from error
    return path


def read_super(data_dir: Path) -> str:
    """Return super's credential of the store in `data_dir`; "" if it is missing or unreadable."""
    return _read_credential(data_dir / SUPER_FILE)


def servers_identity(cluster: LocalCluster, data_dir: Path) -> str:
    """Return the region servers' identity in access lists, "" if this user may not know it. A store that `rk up` does
    not run knows none of the cluster's keys."""
    if not cluster.outside:
        return SERVERS_IDENTITY
    credential = _read_credential(data_dir / SERVERS_FILE)
    return f"digest:{digest_of(credential)}" if credential else ""


def _read_credential(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def digest_of(credential: str) -> str:
    """Return the digest form of `USER:PASSWORD` for the store: the user, and base64 of the SHA-1 of both."""
    digest = hashlib.sha1(credential.encode(), usedforsecurity=False).digest()
    return f"{credential.partition(':')[0]}:{base64.b64encode(digest).decode()}"


def environment() -> dict[str, str]:
    """Return the daemons' environment: this checkout's code, and unbuffered logs."""
    here = str(Path(__file__).resolve().parent.parent.parent)
    known = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{known}" if known else here, "PYTHONUNBUFFERED": "1"}


def environment_of(data_dir: Path) -> dict[str, str]:
    """Return the environment of the daemons of the cluster in `data_dir`.

    The environment names the cluster, which is not a cluster in ./rk-data of the working directory.
    """
    return {**environment(), variable_of("data-dir"): str(data_dir)}


def local_cluster_id(cluster: LocalCluster) -> str:
    """Return the cluster's id that its region servers have recorded; "" if no server has joined yet."""
    return next((noted.cluster_id for _, noted in _noted(cluster) if noted.cluster_id), "")


def local_uuids(cluster: LocalCluster) -> dict[str, str]:
    """Return uuid -> name of the region servers from their own records, including servers that do not run."""
    return {noted.uuid: name for name, noted in _noted(cluster) if noted.uuid}


class _Noted(msgspec.Struct):
    """Fields of a region server's instance.json (`regionserver/session/instance.py`)."""

    uuid: str = ""
    cluster_id: str = ""


def _noted(cluster: LocalCluster) -> Iterator[tuple[str, _Noted]]:
    """Yield each region server's name with its record. Skip unreadable files."""
    for daemon in cluster.servers:
        with contextlib.suppress(OSError, ValueError):
            yield daemon.name, msgspec.json.decode((Path(daemon.data_dir) / "instance.json").read_bytes(), type=_Noted)


def write_cluster(cluster: LocalCluster, data_dir: Path) -> None:
    """Replace cluster.json atomically and durably: a reader sees the old or the new one, also after a power cut."""
    content = msgspec.json.format(msgspec.json.encode(cluster), indent=2) + b"\n"
    write_durably(data_dir / CLUSTER_FILE, content)


def read_cluster(data_dir: Path) -> LocalCluster | None:
    """Return the cluster that runs, or ran last, in `data_dir`; None without one.

    Raise CliError if the file cannot be decoded.
    """
    path = data_dir / CLUSTER_FILE
    try:
        found = msgspec.json.decode(path.read_bytes(), type=LocalCluster)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CliError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:  # not JSON, not UTF-8, or other fields
        raise CliError(
            f"{path} is not a cluster description: {error}",
            "Put back a copy of it: the daemons' data beside it is not affected. Or give another --data-dir, or name"
            " the store with --store.",
        ) from error
    if found.format_version > FORMAT_VERSION:
        raise CliError(f"{path} was written by a newer rk (format {found.format_version})")
    return found


def holder(data_dir: Path) -> int:
    """Return the pid that the last `rk up` wrote into the lock file of `data_dir`; 0 for none."""
    try:
        return int((data_dir / LOCK_FILE).read_text())
    except (OSError, ValueError):
        return 0


def is_held(data_dir: Path) -> bool:
    """Return True if an `rk up` starts, runs or stops the cluster in `data_dir`.

    The lock is not tried: that could refuse a start at this moment.
    """
    pid = holder(data_dir)
    return bool(pid) and Path(f"/proc/{pid}").exists()


def starting(data_dir: Path) -> UnreachableError:
    """Return the error for a cluster whose `rk up` has not got so far."""
    return UnreachableError(
        f"the cluster in {data_dir} is starting or stopping", "Try again when `rk up` has printed its summary."
    )


def require_cluster(data_dir: Path) -> LocalCluster:
    """Return the cluster as `read_cluster` does; raise UnreachableError with a hint if there is none."""
    cluster = read_cluster(data_dir)
    if cluster is None and is_held(data_dir):
        raise starting(data_dir)
    if cluster is None:
        raise UnreachableError(
            f"no local cluster in {data_dir}",
            "Start one with `rk up`, name its directory with --data-dir, or name a store with --store host:port,…",
        )
    return cluster


def knows_masters_alone(given: Globals) -> bool:
    """Return True if the options name masters but no store, and the local cluster does not contain these masters.

    Raise UsageFaultError.
    """
    masters = given.master_addresses()
    if not masters or given.explicit_store() is not None:
        return False
    local = read_cluster(given.data_path)
    return local is None or not {one.address for one in local.masters}.issuperset(masters)


def named_local(given: Globals) -> LocalCluster | None:
    """Return the local cluster if it is the one that the options name, else None. Raise CliError."""
    local = read_cluster(given.data_path)
    if local is None or knows_masters_alone(given):
        return None
    return local if given.explicit_store() in (None, local.store) else None
