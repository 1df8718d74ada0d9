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
    """Return `hosts` with the secure port in the place of each of `plain_ports`."""

    def replaced(found: re.Match[str]) -> str:
        port = int(found[1])
        return f":{port + _SECURE_PORT_OFFSET}" if port in plain_ports else found[0]

    return _PORT.sub(replaced, hosts)


@functools.lru_cache(maxsize=1)
def _files(_: int) -> dict[str, Any]:
    """Return kazoo's options for TLS; the cluster's certificates are written to files once per cluster."""
    folder = Path(tempfile.mkdtemp(prefix="kazoo-tls-"))
    options: dict[str, Any] = {"use_ssl": True}
    given = harness.CLUSTER.get_ssl_client_configuration()
    for option, name in (("keyfile", "client_key"), ("certfile", "client_cert"), ("ca", "ca_cert")):
        path = folder / f"{name}.pem"
        path.write_bytes(given[name])
        options[option] = str(path)
    return options


_plain_init = KazooClient.__init__


@functools.wraps(_plain_init)
def _secure_init(self: KazooClient, hosts: Any = "127.0.0.1:2181", *args: Any, **options: Any) -> None:
    if harness.CLUSTER is not None and isinstance(hosts, str) and not options.get("use_ssl"):
        secured = secure_hosts(hosts, [server.client_port for server in harness.CLUSTER])
        if secured != hosts:
            hosts, options = secured, {**options, **_files(id(harness.CLUSTER))}
    _plain_init(self, hosts, *args, **options)


KazooClient.__init__ = _secure_init
