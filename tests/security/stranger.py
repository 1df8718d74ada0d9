"""Another user of the machine: knows every port, has no file."""

from __future__ import annotations

import encodings.idna  # sockets import it when it is needed, and `nobody` may have no right to read it
import json
import multiprocessing
import os
import re
import selectors
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from tests.security import frames
from tests.support.helpers import PATIENCE_S

T = TypeVar("T")

#: `nobody` on every Linux.
_NOBODY: Final = 65534
_LISTENING: Final = "0A"
_NEEDED: Final = (encodings.idna,)


def as_stranger(work: Callable[[], T]) -> T:
    """Run `work` in a process of the user `nobody`, and return its result. Only root can change the user; for others
    the process keeps their own."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(work, sender))
    process.start()
    sender.close()
    try:
        is_done, found = receiver.recv()
    finally:
        process.join()
    if not is_done:
        raise AssertionError(found)
    return found  # type: ignore[no-any-return]


def _run(work: Callable[[], Any], sender: Connection) -> None:
    try:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(_NOBODY)
            os.setuid(_NOBODY)
        sender.send((True, work()))
    except BaseException as error:  # the parent raises it
        sender.send((False, repr(error)))


class Port(NamedTuple):
    """A port of a cluster: its purpose, and its kind in `frames`."""

    name: str
    kind: str
    number: int


def ports_of(data_dir: Path) -> list[Port]:
    """Return the ports of a cluster of `rk up`: those that cluster.json names, and that of each server for its peers,
    which the kernel chooses."""
    cluster = json.loads((data_dir / "cluster.json").read_text())
    kinds = {
        "coord": (frames.STORE, frames.STORE_PEERS),
        "masters": (frames.MASTER, ""),
        "servers": (frames.SERVER, ""),
    }
    found = []
    for role, (main, peers) in kinds.items():
        for one in cluster[role]:
            named = {"address": main, "peer": peers, "admin": frames.ADMIN}
            own = [
                Port(f"{one['name']} {key}", kind, int(one[key].rpartition(":")[2]))
                for key, kind in named.items()
                if one.get(key)
            ]
            others = listening([one["pid"]]) - {port.number for port in own}
            found += own + [Port(f"{one['name']} peer", frames.TABLET_PEERS, number) for number in others]
    return found


def listening(pids: list[int]) -> set[int]:
    """Return the TCP ports at which these processes listen, as the kernel knows them."""
    inodes: set[str] = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            inodes.update(re.findall(r"socket:\[(\d+)\]", os.readlink(link)))
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:] if Path(table).exists() else []:
            fields = line.split()
            if fields[3] == _LISTENING and fields[9] in inodes:
                found.add(int(fields[1].rpartition(":")[2], 16))
    return found


@dataclass
class Call:
    """A connection of a stranger: the sent bytes, and the received bytes until the daemon closed the connection."""

    port: Port
    name: str
    sent: bytes
    answer: bytes = b""
    is_closed: bool = False
    sock: socket.socket = field(default_factory=lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))


def answers(ports: list[Port], openings: dict[str, bytes]) -> list[tuple[Port, str, bytes, bool]]:
    """Send each opening to each port at once. Return port, name, answer, and whether the daemon has closed."""
    calls = [Call(port, name, sent) for port in ports for name, sent in openings.items()]
    with selectors.DefaultSelector() as selector:
        for one in calls:
            one.sock.connect(("127.0.0.1", one.port.number))
            one.sock.sendall(one.sent)
            one.sock.setblocking(False)
            selector.register(one.sock, selectors.EVENT_READ, one)
        while selector.get_map() and (ready := selector.select(PATIENCE_S)):
            for key, _ in ready:
                call: Call = key.data
                try:
                    part = call.sock.recv(65536)
                except ConnectionError:
                    part = b""
                call.answer += part
                if not part:
                    call.is_closed = True
                    selector.unregister(call.sock)
    for one in calls:
        one.sock.close()
    return [(one.port, one.name, one.answer, one.is_closed) for one in calls]
