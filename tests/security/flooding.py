"""A stranger's flood: connections to every port without a pause, which begin each protocol and leave."""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import multiprocessing
import os
import re
import socket
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from typing import Any, Final

from cli.common.access import read_admin_page
from tests.e2e.clusters import LocalUp
from tests.security.stranger import Port, as_stranger
from tests.security.test_stranger import openings

#: Connections that the stranger leaves open at each port.
_HELD: Final = 20


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


def lapses(up: LocalUp) -> dict[str, float]:
    """Return how often the lease of each server has lapsed. This process has the credentials of `local_up`."""
    found = {}
    for one in json.loads((up.data_dir / "cluster.json").read_text())["servers"]:
        text = read_admin_page(one["admin"], "/metrics", 60.0, 1 << 24).decode()
        found[one["name"]] = float(re.findall(r"^\S*lease_lapses_total (\S+)$", text, re.MULTILINE)[0])
    return found
