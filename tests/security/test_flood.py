"""A stranger's flood at every port of a secured cluster, beside clients who are at work.

The stranger connects as fast as the machine allows, sends the beginning of every protocol, and disconnects. Its process
has the lowest priority, so it slows the cluster by what the daemons do for it, and hardly by taking their processors.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from kazoo.client import KazooClient

from coord.security.credentials import FOR_STORE
from regionserver.client.client import connect
from tests.e2e.clusters import LocalUp, free_base_port, local_up, run_rk
from tests.security.flooding import flood, lapses
from tests.security.stranger import ports_of
from tests.support.helpers import eventually

pytestmark = pytest.mark.e2e

_SHAPE: Final = ("--store-nodes", "3", "--masters", "1", "--servers", "3", "--regions", "3", "--plan-engine", "greedy")
#: Requests of each honest client during the flood.
_REQUESTS: Final = 150
#: Connections of the stranger before the honest clients begin: more than any port has saved for.
_FIRST: Final = 20_000
#: Bytes that a daemon logs during the flood: some kilobytes in ten seconds. With a line for each connection it was a
#: megabyte.
_LOGGED_MAX: Final = 300_000


@contextlib.contextmanager
def session(hosts: str, token: str) -> Iterator[Any]:
    """Yield a client of the store that proves a token."""
    client = KazooClient(hosts, auth_data=[("digest", token)])
    client.start()
    try:
        yield client
    finally:
        client.stop()


def logged(up: LocalUp) -> dict[str, int]:
    """Return the bytes in the log of each daemon."""
    return {one.name: one.stat().st_size for one in (up.data_dir / "logs").glob("*.log")}


def test_a_flood_at_every_port_costs_no_lease_and_no_request() -> None:
    """Clients with connections are served, no lease lapses, logs stay short, and new clients get in afterwards.

    Fails if `NewcomerBudget.charge` never stops a port from accepting.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        local_up(Path(folder) / "data", "--base-port", str(free_base_port()), *_SHAPE) as up,
    ):
        up.event("up")
        user, pids = up.credentials(), up.pids()
        assert user is not None
        store = json.loads((up.data_dir / "cluster.json").read_text())["store"]
        with session(store, user.token(FOR_STORE)) as znodes, connect(store, timeout_s=60) as rows:
            znodes.create("/honest", b"")
            rows.put("packages", "k", b"0")
            before, log_before = lapses(up), logged(up)
            with flood(ports_of(up.data_dir)) as count:
                eventually(lambda: count.value > _FIRST, what="the flood")
                for number in range(_REQUESTS):
                    value = b"%d" % number
                    znodes.set("/honest", value)
                    assert znodes.get("/honest")[0] == value
                    rows.put("packages", "k", value)
                    assert rows.get("packages", "k") == value
            eventually(
                lambda: (
                    run_rk("get", "packages", "k", "--data-dir", str(up.data_dir)).stdout.strip() == str(_REQUESTS - 1)
                ),
                what="a new client is served",
            )
            assert lapses(up) == before
            assert up.pids() == pids, "a daemon has ended"
            grown = {name: size - log_before[name] for name, size in logged(up).items()}
            assert max(grown.values()) < _LOGGED_MAX, grown
