"""A stranger's flood at every port of a secured cluster, beside clients who are at work.

The stranger connects as fast as the machine allows, says the beginning of every protocol, and leaves. Its process has
the lowest priority, so it slows the cluster by what the daemons do for it, and hardly by taking their processors.
"""

from __future__ import annotations

import collections
import contextlib
import http.client
import itertools
import json
import multiprocessing
import os
import re
import socket
import tempfile
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final

import pytest
from kazoo.client import KazooClient

from coord.security.admin import headers
from coord.security.credentials import FOR_STORE
from regionserver.client.client import connect
from tests.e2e.clusters import LocalUp, free_base_port, local_up, run_rk
from tests.security.stranger import Port, as_stranger, ports_of
from tests.security.test_stranger import openings
from tests.support.helpers import eventually

pytestmark = pytest.mark.e2e

_SHAPE: Final = ("--store-nodes", "3", "--masters", "1", "--servers", "3", "--regions", "3", "--plan-engine", "greedy")
#: Connections that the stranger leaves open at each port.
_HELD: Final = 20
#: Requests of each honest client during the flood.
_REQUESTS: Final = 150
#: Connections of the stranger before the honest clients begin: more than any port has saved for.
_FIRST: Final = 20_000
#: Bytes that a daemon logs during the flood: some kilobytes in ten seconds. With a line for each connection it was a
#: megabyte.
_LOGGED_MAX: Final = 300_000


def _flood(ports: list[Port], count: Any, is_over: Event) -> None:
    """Connect to all ports in turn without a pause, until told to end."""
    os.nice(19)
    words = itertools.cycle(openings().values())
    held: collections.deque[socket.socket] = collections.deque()
    for port in itertools.cycle(ports):
        if is_over.is_set():
            return
        caller = socket.socket()
        caller.setblocking(False)
        held.append(caller)
        with contextlib.suppress(OSError):
            caller.connect_ex(("127.0.0.1", port.number))
            caller.send(next(words))
        count.value += 1
        while len(held) > _HELD * len(ports):
            held.popleft().close()


@contextlib.contextmanager
def flood(ports: list[Port]) -> Iterator[Any]:
    """Yield the number of connections so far, while another user of the machine floods the ports."""
    context = multiprocessing.get_context("fork")
    count, is_over = context.Value("q", 0, lock=False), context.Event()
    process = context.Process(target=as_stranger, args=(lambda: _flood(ports, count, is_over),))
    process.start()
    try:
        yield count
    finally:
        is_over.set()
        process.join()


@contextlib.contextmanager
def session(hosts: str, token: str) -> Iterator[Any]:
    """Yield a client of the store that proves a token."""
    client = KazooClient(hosts, auth_data=[("digest", token)])
    client.start()
    try:
        yield client
    finally:
        client.stop()


def lapses(up: LocalUp) -> dict[str, float]:
    """Return how often the lease of each server has lapsed."""
    found = {}
    for one in json.loads((up.data_dir / "cluster.json").read_text())["servers"]:
        caller = http.client.HTTPConnection(one["admin"], timeout=60)
        with contextlib.closing(caller):
            caller.request("GET", "/metrics", headers=headers(up.credentials()))
            text = caller.getresponse().read().decode()
        found[one["name"]] = float(re.findall(r"^\S*lease_lapses_total (\S+)$", text, re.MULTILINE)[0])
    return found


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
