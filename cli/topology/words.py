"""The command line of each daemon of a topology on its machine. Pure."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Final

from cli.common.local import SUPER_DIGEST_FILE
from cli.topology.model import CERTIFICATES, INSECURE, MASTERS, STORE, PlacedDaemon, Topology
from coord.security.making import PEERS_FILE

#: The command that runs each kind of daemon.
RUN: Final = {"store": ("coord", "run"), "masters": ("master", "run"), "servers": ("server", "run")}


def address(node: PlacedDaemon, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{node.host}]:{port}" if ":" in node.host else f"{node.host}:{port}"


def data_dir(node: PlacedDaemon, topology: Topology) -> str:
    """Return the daemon's own directory on its machine."""
    return node.data_dir or str(PurePosixPath(topology.data_dir) / node.name)


def credentials_dir(node: PlacedDaemon, topology: Topology) -> str:
    """Return the daemon's --certs-dir, "" for an open cluster. Certificates name one daemon: each has a directory."""
    if topology.credentials == CERTIFICATES:
        return str(PurePosixPath(topology.credentials_dir) / node.name)
    return topology.credentials_dir


def store_addresses(topology: Topology) -> str:
    """Return the addresses of the store for its clients."""
    return topology.outside or ",".join(address(one, one.port) for one in topology.store)


def founders(topology: Topology) -> str:
    """Return --peers: the nodes that the store was founded with. The text must be the same on all of them."""
    first = [one for one in topology.store if one.number not in topology.joined]
    return ",".join(f"{one.number}={address(one, one.peer_port)}" for one in first)


def arguments(node: PlacedDaemon, topology: Topology) -> list[str]:
    """Return the words after `rk` that run a daemon of a topology of machines."""
    certs = credentials_dir(node, topology)
    words = [*RUN[node.kind]]
    if node.kind == STORE:
        words += ["--id", str(node.number), "--client-address", address(node, node.port)]
        words += ["--peer-address", address(node, node.peer_port)]
        if node.number in topology.joined:
            words += ["--join", ",".join(one.partition("=")[2] for one in founders(topology).split(","))]
        else:
            words += ["--peers", founders(topology)]
        secrets = ["--super-digest-file", f"{certs}/{SUPER_DIGEST_FILE}", "--peer-secret-file", f"{certs}/{PEERS_FILE}"]
        secrets += ["--require-auth", "rk"]
    else:
        words += ["--store", store_addresses(topology), "--root", topology.root]
        words += ["--address", address(node, node.port)]
        secrets = ["--store-auth", f"@{certs}"] if topology.store else []
    if node.kind not in (STORE, MASTERS):
        words += ["--peer-address", address(node, node.peer_port), "--rack", node.rack]
        words += ["--shared-dir", topology.shared_dir] if topology.shared_dir else []
        secrets += ["--peer-secret-file", f"{certs}/{PEERS_FILE}"]
    words += ["--data-dir", data_dir(node, topology), "--admin-address", address(node, node.admin_port)]
    if topology.credentials == INSECURE:
        words += ["--insecure"]
    else:
        words += ["--certs-dir", certs, *secrets]
    return [*words, *node.options]
