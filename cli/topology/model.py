"""A topology file, decoded and checked. Pure: `load.py` reads the file.

    [cluster]                        name, data-dir, base-port, root, credentials, credentials-dir, address
    [store]                          count or [[store.node]]; or outside; joined
    [masters]                        count or [[masters.node]]
    [servers]                        count and racks, or [[servers.node]]; shared-dir
    [store.options] …                options of all daemons of a kind; `options` of one node come after them

A topology whose nodes name no host describes a cluster on one machine, which `rk up` starts. With hosts it describes
several machines, for which `rk systemd` writes units.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from cli.topology.checks import HOST, NAME, PATH, RACK, DaemonOption, FileTable, TopologyError, option_words
from coord.hosts import is_loopback

#: Longest file.
FILE_BYTES_MAX: Final = 1 << 20
#: Kinds in the order of their start, and the first part of their daemons' names.
STORE: Final = "store"
MASTERS: Final = "masters"
SERVERS: Final = "servers"
KINDS: Final = {STORE: "store", MASTERS: "master", SERVERS: "server"}
#: Largest number of daemons of each kind: limited by the ports of one machine, and by the design of a cluster.
LOCAL_MAX: Final = {STORE: 9, MASTERS: 9, SERVERS: 19}
MACHINES_MAX: Final = {STORE: 9, MASTERS: 9, SERVERS: 10_000}
#: Store nodes are numbered 1 to 127.
NUMBER_MAX: Final = {STORE: 127, MASTERS: 127, SERVERS: 10_000}
USUAL_COUNT: Final = {STORE: 3, MASTERS: 2, SERVERS: 4}
#: Ports on machines: clients or RPC, peers, admin. Kinds differ, so that one machine can run one of each.
USUAL_PORTS: Final = {STORE: (2181, 2888, 8080), MASTERS: (7051, 0, 8081), SERVERS: (7050, 7052, 8082)}

INSECURE: Final = "insecure"
KEYS: Final = "keys"
CERTIFICATES: Final = "certificates"
CREDENTIALS: Final = (INSECURE, KEYS, CERTIFICATES)
CREDENTIALS_DIR: Final = "/etc/regionkeeper/certs"
MACHINE_DATA_DIR: Final = "/var/lib/regionkeeper"
ROOT: Final = "/regionkeeper"
BASE_PORT_MAX: Final = 65535 - 90

_ADDRESSES: Final = re.compile(r"[^\s,:]+:\d{1,5}(,[^\s,:]+:\d{1,5})*")
_ZNODE: Final = re.compile(r"(/[A-Za-z0-9._-]+){1,16}")
_OURS: Final = "The topology gives this by its own keys: leave it out of the options."
_SECRET: Final = "Command lines show their words to every user: use [cluster] credentials."
#: Options that follow from other keys, each with the key to use instead.
TAKEN: Final[dict[str, dict[str, str]]] = {
    STORE: dict.fromkeys(
        ("id", "data-dir", "client-address", "peer-address", "peers", "join", "admin-address", "config"), _OURS
    )
    | dict.fromkeys(("super-digest", "super-digest-file", "certs-dir", "peer-secret-file"), _SECRET),
    MASTERS: dict.fromkeys(("store", "data-dir", "root", "address", "admin-address"), _OURS)
    | dict.fromkeys(("certs-dir", "store-auth", "store-sasl", "insecure"), _SECRET),
    SERVERS: dict.fromkeys(
        ("store", "data-dir", "root", "address", "admin-address", "peer-address", "rack", "shared-dir"), _OURS
    )
    | dict.fromkeys(("certs-dir", "store-auth", "store-sasl", "insecure", "peer-secret-file"), _SECRET),
}
_NODE_KEYS: Final = {
    STORE: ("number", "host", "client-port", "peer-port", "admin-port", "data-dir", "options"),
    MASTERS: ("number", "host", "port", "admin-port", "data-dir", "options"),
    SERVERS: ("number", "host", "rack", "port", "peer-port", "admin-port", "data-dir", "options"),
}
_CLUSTER_KEYS: Final = ("name", "data-dir", "base-port", "root", "credentials", "credentials-dir", "address")
_KIND_KEYS: Final = {
    STORE: ("count", "node", "outside", "joined", "options"),
    MASTERS: ("count", "node", "options"),
    SERVERS: ("count", "racks", "node", "shared-dir", "options"),
}

Known = Mapping[str, Mapping[str, DaemonOption]]


class PlacedDaemon(msgspec.Struct, frozen=True):
    """One daemon. On a local cluster a port of 0 is derived from the base port, and an empty directory from the
    cluster's."""

    kind: str
    number: int
    host: str = ""
    #: Port for clients of the store, or for requests to masters and servers.
    port: int = 0
    peer_port: int = 0
    admin_port: int = 0
    data_dir: str = ""
    rack: str = ""
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the daemon's name, such as `server-2`."""
        return f"{KINDS[self.kind]}-{self.number}"

    def uses(self) -> Iterator[tuple[int, str]]:
        """Yield each port with its use; ports of 0 are left out."""
        what = "client port" if self.kind == STORE else "RPC port"
        for port, use in ((self.port, what), (self.peer_port, "peer port"), (self.admin_port, "admin port")):
            if port:
                yield port, use


class Topology(msgspec.Struct, frozen=True):
    """A checked topology."""

    name: str
    is_local: bool
    data_dir: str
    root: str
    credentials: str
    credentials_dir: str
    #: Address of this machine that a local cluster listens on; "": 127.0.0.1.
    address: str
    #: First port of a local cluster; 0: `rk up` chooses a port by the name.
    base_port: int
    #: Addresses of a store that this cluster does not run, or "".
    outside: str
    #: Numbers of store nodes that joined the running store; the others founded it.
    joined: tuple[int, ...]
    shared_dir: str
    store: tuple[PlacedDaemon, ...]
    masters: tuple[PlacedDaemon, ...]
    servers: tuple[PlacedDaemon, ...]
    warnings: tuple[str, ...] = ()

    def nodes(self) -> tuple[PlacedDaemon, ...]:
        """Return all daemons in the order of their start."""
        return (*self.store, *self.masters, *self.servers)

    def hosts(self) -> list[str]:
        """Return the machines, sorted."""
        return sorted({one.host for one in self.nodes() if one.host})


def parse(text: str, file: str, known: Known) -> Topology:
    """Decode a topology file. `known`: the options that daemons have, by kind. Raise TopologyError."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TopologyError(f"{file} is not TOML: {error}", "https://toml.io describes the format.") from error
    top = FileTable(file, "", found, ("cluster", *KINDS))
    if not top.has("cluster"):
        raise TopologyError(f"{file}: the table [cluster] is missing", 'Begin with [cluster] and name = "…".')
    cluster = FileTable(file, "[cluster]", found["cluster"], _CLUSTER_KEYS)
    if not cluster.has("name"):
        cluster.refuse("name", "is missing", 'Write name = "orders", for instance.')
    kinds = {kind: FileTable(file, f"[{kind}]", found.get(kind, {}), _KIND_KEYS[kind]) for kind in KINDS}
    is_local = _is_local(file, kinds)
    made = _with_nodes(cluster, kinds, {kind: _nodes(kinds[kind], kind, known, is_local) for kind in KINDS}, is_local)
    _check_ports(file, made)
    return made


def _with_nodes(
    cluster: FileTable, kinds: Mapping[str, FileTable], nodes: Mapping[str, tuple[PlacedDaemon, ...]], is_local: bool
) -> Topology:
    credentials, directory = _credentials(cluster, is_local)
    if cluster.has("base-port") and not is_local:
        cluster.refuse("base-port", "is for a cluster on one machine", "Give the nodes ports: port = 7050.")
    if cluster.has("data-dir") and not is_local and not str(cluster.values["data-dir"]).startswith("/"):
        cluster.refuse("data-dir", f'is "{cluster.values["data-dir"]}", not an absolute path', "Begin it with a slash.")
    if is_local and kinds[SERVERS].has("shared-dir"):
        kinds[SERVERS].refuse("shared-dir", "is below data-dir on one machine", "Leave it out.")
    return Topology(
        name=cluster.text("name", NAME, "small letters, digits and hyphens, at most 40, a letter first"),
        is_local=is_local,
        data_dir=cluster.text("data-dir", PATH, "a path without blanks", "" if is_local else MACHINE_DATA_DIR),
        root=cluster.text("root", _ZNODE, "a znode path such as /regionkeeper", ROOT),
        credentials=credentials,
        credentials_dir=directory,
        address=_address(cluster, credentials, is_local),
        base_port=cluster.number("base-port", 1024, BASE_PORT_MAX, 0),
        outside=kinds[STORE].text("outside", _ADDRESSES, "host:port,host:port"),
        joined=_joined(kinds[STORE], nodes[STORE]),
        shared_dir=kinds[SERVERS].text("shared-dir", PATH, "a path without blanks"),
        store=nodes[STORE],
        masters=nodes[MASTERS],
        servers=nodes[SERVERS],
        warnings=_warnings(nodes),
    )


def _is_local(file: str, kinds: Mapping[str, FileTable]) -> bool:
    """Return whether no node names a host. Raise TopologyError if only some do."""
    named: list[str] = []
    bare: list[str] = []
    for kind, table in kinds.items():
        for position, node in enumerate(table.tables("node"), 1):
            has_host = isinstance(node, dict) and "host" in node
            (named if has_host else bare).append(f"[[{kind}.node]] {position}")
        if not table.has("node") and not table.has("outside"):
            bare.append(f"[{kind}]")
    if named and bare:
        raise TopologyError(
            f"{file}: {named[0]} names a host and {bare[0]} does not",
            "Give every daemon a [[….node]] table with host, or none of them a host: then all run on one machine.",
        )
    return not named


def _credentials(cluster: FileTable, is_local: bool) -> tuple[str, str]:
    choice = cluster.choice("credentials", CREDENTIALS, KEYS)
    directory = cluster.text("credentials-dir", PATH, "a path without blanks", "" if is_local else CREDENTIALS_DIR)
    if directory and not directory.startswith("/") and choice != INSECURE:
        cluster.refuse("credentials-dir", f'is "{directory}", not an absolute path', "Begin it with a slash.")
    return choice, "" if choice == INSECURE else directory


def _address(cluster: FileTable, credentials: str, is_local: bool) -> str:
    """Return the address of a local cluster."""
    found = cluster.text("address", HOST, "a host name or an address, without a port")
    if found and not is_local:
        cluster.refuse("address", "is for a cluster on one machine", 'Give each node its own: host = "db1".')
    if found and not is_loopback(found) and credentials == KEYS:
        cluster.refuse(
            "address", f"is {found}, which other machines reach, with keys", 'Give credentials = "certificates".'
        )
    return found


def _nodes(table: FileTable, kind: str, known: Known, is_local: bool) -> tuple[PlacedDaemon, ...]:
    words = option_words(table.file, f"[{kind}.options]", table.values.get("options", {}), known[kind], TAKEN[kind])
    if table.has("outside") and (table.has("count") or table.has("node")):
        table.refuse("outside", "names a store of somebody else beside nodes of this cluster", "Keep one of the two.")
    if table.has("outside"):
        return ()
    if table.has("count") and table.has("node"):
        table.refuse("count", f"stands beside [[{kind}.node]]", "Keep one of the two.")
    most = LOCAL_MAX[kind] if is_local else MACHINES_MAX[kind]
    if not table.has("node"):
        count = table.number("count", 1, most, USUAL_COUNT[kind])
        racks = table.number("racks", 1, most, 1) if kind == SERVERS else 0
        return tuple(
            PlacedDaemon(kind, number, rack=f"rack-{(number - 1) % racks + 1}" if racks else "", options=words)
            for number in range(1, count + 1)
        )
    if table.has("racks"):
        table.refuse("racks", f"stands beside [[{kind}.node]]", 'Give each node its own: rack = "rack-1".')
    found = table.tables("node")
    if not 1 <= len(found) <= most:
        table.refuse("node", f"lists {len(found)} nodes, outside 1 to {most}", f"List 1 to {most}.")
    nodes = [_node(table.file, kind, position, one, known, is_local) for position, one in enumerate(found, 1)]
    nodes = [msgspec.structs.replace(one, options=(*words, *one.options)) for one in nodes]
    for number in {one.number for one in nodes}:
        if sum(one.number == number for one in nodes) > 1:
            table.refuse("node", f"has two nodes with number {number}", "Give each its own number.")
    return tuple(nodes)


def _node(file: str, kind: str, position: int, values: object, known: Known, is_local: bool) -> PlacedDaemon:
    where = f"[[{kind}.node]] {position}:"
    table = FileTable(file, where, values, _NODE_KEYS[kind])
    client, peer, admin = (0, 0, 0) if is_local else USUAL_PORTS[kind]
    number = table.number("number", 1, NUMBER_MAX[kind], position)
    data_dir = table.text("data-dir", PATH, "a path without blanks")
    if data_dir and not data_dir.startswith("/"):
        table.refuse("data-dir", f'is "{data_dir}", not an absolute path', "Begin it with a slash.")
    made = PlacedDaemon(
        kind=kind,
        number=number,
        host=table.text("host", HOST, "a host name or an address, without a port"),
        port=table.port("client-port" if kind == STORE else "port", client),
        peer_port=table.port("peer-port", peer) if kind != MASTERS else 0,
        admin_port=table.port("admin-port", admin),
        data_dir=data_dir,
        rack=table.text("rack", RACK, "letters, digits and . _ / -, at most 64", "default") if kind == SERVERS else "",
        options=option_words(file, where + " options", table.values.get("options", {}), known[kind], TAKEN[kind]),
    )
    if is_local and number > LOCAL_MAX[kind] and not (made.port and made.admin_port):
        table.refuse(
            "number", f"is {number}: the ports of `rk up` end at {LOCAL_MAX[kind]}", "Give the node its ports."
        )
    return made


def _joined(table: FileTable, nodes: tuple[PlacedDaemon, ...]) -> tuple[int, ...]:
    joined = table.numbers("joined")
    numbers = {one.number for one in nodes}
    for number in joined:
        if number not in numbers:
            table.refuse("joined", f"names node {number}, which is not listed", "Leave it out.")
    if nodes and not numbers - set(joined):
        table.refuse("joined", "names all nodes, so none has founded the store", "Leave out the founders.")
    return tuple(sorted(set(joined)))


def _check_ports(file: str, made: Topology) -> None:
    """Raise TopologyError if two daemons of one machine have the same port or directory."""
    used: dict[tuple[str, Any], str] = {}
    for node in made.nodes():
        places: list[tuple[Any, str]] = [(port, f"{use} {port}") for port, use in node.uses()]
        places += [(node.data_dir, f"data-dir {node.data_dir}")] if node.data_dir else []
        for place, what in places:
            other = used.setdefault((node.host, place), node.name)
            if other != node.name:
                host = f" on {node.host}" if node.host else ""
                key = "data-dir" if place == node.data_dir else "port"
                raise TopologyError(
                    f"{file}: {node.name} and {other}{host} have the same {key}: {what} of {node.name}",
                    f"Give one of them another {key} in its [[{node.kind}.node]] table.",
                )


def _warnings(nodes: Mapping[str, tuple[PlacedDaemon, ...]]) -> tuple[str, ...]:
    found: list[str] = []
    count = len(nodes[STORE])
    if count and count % 2 == 0:
        found.append(f"{count} store nodes tolerate no more failures than {count - 1}: add one, or remove one")
    machines = [one.host for one in nodes[STORE] if one.host]
    for host in sorted({one for one in machines if machines.count(one) * 2 >= len(machines) > 1}):
        found.append(f"{host} runs {machines.count(host)} of {count} store nodes: without it the store has no majority")
    return tuple(found)
