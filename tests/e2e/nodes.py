"""A store of ours whose nodes a test freezes and kills one by one."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from tests.support.helpers import Process, daemon, free_ports, rk


class Nodes:
    """The store's nodes, by their client port."""

    def __init__(self) -> None:
        self.by_port: dict[int, Process] = {}

    @property
    def hosts(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.by_port)

    def all(self, number: signal.Signals) -> None:
        for node in self.by_port.values():
            os.killpg(node.pid, number)


@contextlib.contextmanager
def store(folder: Path, count: int = 3) -> Iterator[Nodes]:
    """Yield a store whose nodes may be stopped and killed."""
    folder.mkdir(parents=True)
    ports = free_ports(2 * count)
    everybody = ",".join(f"{number}=127.0.0.1:{port}" for number, port in enumerate(ports[count:], 1))
    nodes = Nodes()
    with contextlib.ExitStack() as running:
        for number, (client, peer) in enumerate(zip(ports[:count], ports[count:], strict=True), 1):
            words = ["coord", "run", "--id", str(number), "--data-dir", str(folder / f"store{number}")]
            words += ["--client-address", f"127.0.0.1:{client}", "--peer-address", f"127.0.0.1:{peer}"]
            command = rk(*words, "--peers", everybody)
            nodes.by_port[client] = running.enter_context(daemon(command, log=folder / f"store{number}.log"))
        yield nodes
