"""A pytest plugin for kazoo's own suite: every client that the suite makes connects by TLS.

`tests.compat.kazoo_suite --tls` loads the plugin in the suite's environment. kazoo's harness configures a secure port
on each server beside the plain port, and makes certificates. The plugin replaces the port in the clients' addresses.
"""

from __future__ import annotations

import functools
import re
import tempfile
from pathlib import Path
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.testing import harness

#: Distance between a server's plain port and its secure port (`kazoo.testing.common.ZookeeperCluster`).
_SECURE_PORT_OFFSET: Final = 4
_PORT: Final = re.compile(r":(\d+)")


def secure_hosts(hosts: str, plain_ports: list[int]) -> str:
    """Return `hosts` with each of `plain_ports` replaced by the secure port."""

    def replaced(found: re.Match[str]) -> str:
        port = int(found[1])
        return f":{port + _SECURE_PORT_OFFSET}" if port in plain_ports else found[0]

    return _PORT.sub(replaced, hosts)


def _options(cluster: Any) -> dict[str, Any]:
    """Return kazoo's options for TLS; the cluster's certificates are written to files once."""
    options: dict[str, Any] | None = getattr(cluster, "tls_options", None)
    if options is None:
        folder = Path(tempfile.mkdtemp(prefix="kazoo-tls-"))
        path = folder / "ca.pem"
        path.write_bytes(cluster.get_ssl_client_configuration()["ca_cert"])
        # No client certificate: the suite expects clients without an identity.
        options = cluster.tls_options = {"use_ssl": True, "ca": str(path)}
    return options


def _secured(hosts: Any) -> Any:
    if harness.CLUSTER is None or not isinstance(hosts, str):
        return hosts
    return secure_hosts(hosts, [server.client_port for server in harness.CLUSTER])


_plain_init = KazooClient.__init__
_plain_set_hosts = KazooClient.set_hosts
_plain_command = KazooClient.command


@functools.wraps(_plain_init)
def _init(self: KazooClient, hosts: Any = "127.0.0.1:2181", *args: Any, **options: Any) -> None:
    secured = hosts if options.get("use_ssl") else _secured(hosts)
    if secured != hosts:
        options |= _options(harness.CLUSTER)
    _plain_init(self, secured, *args, **options)


@functools.wraps(_plain_set_hosts)
def _set_hosts(self: KazooClient, hosts: Any, *args: Any, **options: Any) -> None:
    _plain_set_hosts(self, _secured(hosts) if getattr(self, "use_ssl", False) else hosts, *args, **options)


@functools.wraps(_plain_command)
def _command(self: KazooClient, cmd: bytes = b"ruok") -> str:
    """Send a four-letter word. kazoo passes the server's port as its host name, which TLS rejects."""
    create = self.handler.create_connection

    def connect(peer: tuple[str, int], **options: Any) -> Any:
        return create(peer, **{**options, "hostname": peer[0]})

    self.handler.create_connection = connect
    try:
        return str(_plain_command(self, cmd))
    finally:
        del self.handler.create_connection


KazooClient.__init__ = _init
KazooClient.set_hosts = _set_hosts
KazooClient.command = _command
