"""The part of `rk up` that stops starting store nodes which were removed (`rk coord remove`).

The store's own configuration has the members. A removed node exits by itself with status 0 about ten seconds later. Its
record stays in cluster.json among the former nodes, because the identity of a store follows from its founders, and
because no later node may get its number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cli.common.access import open_store
from cli.common.asking.store import store_errors
from cli.common.errors import CliError
from cli.common.local import STORE, Daemon, LocalCluster
from cli.up.supervisor import Ended, News, Supervisor
from coord.client.access import StoreAccess
from coord.server.config.addresses import parse_config_text

#: Znode with the members of the store.
MEMBERS: Final = "/zookeeper/config"
#: Longest wait for this znode. Without an answer the node is started again, and its next exit repeats the question.
_ASK_S: Final = 5.0


class Leaving:
    """Takes removed store nodes out of a running local cluster. For the main thread."""

    def __init__(
        self,
        local: LocalCluster,
        supervisor: Supervisor,
        configuration: Callable[[], bytes],
        say: Callable[..., None],
    ) -> None:
        """`configuration` returns the content of /zookeeper/config, b"" while the store does not answer; `say` prints
        a line for the operator."""
        self._local = local
        self._supervisor = supervisor
        self._configuration = configuration
        self._say = say

    def leave_founders(self) -> None:
        """At a start: take out the founders that are not members. A node that joins may not be a member yet."""
        founders = [one for one in self._local.coord if not one.joined]
        gone = removed(founders, self._configuration())
        for node in gone:
            self._leave(node)

    def handle(self, news: News) -> bool:
        """Take a daemon out if this event is the exit of a removed store node. Return whether it was one."""
        if not isinstance(news, Ended) or not may_have_left(news):
            return False
        gone = removed([one for one in self._local.coord if one is news.daemon], self._configuration())
        for node in gone:
            self._leave(node)
        return bool(gone)

    def _leave(self, node: Daemon) -> None:
        self._supervisor.forget(node.name)
        node.pid = 0
        self._local.coord.remove(node)
        self._local.former.append(node)
        self._local.store = ",".join(one.address for one in self._local.coord)
        text = f"{node.name} was removed from the store and is not started again; {node.data_dir} may be deleted"
        if self._local.topology:
            text += f". Take it out of {self._local.topology}, too"
        self._say(text, daemon=node.name, removed=True)


def configuration_of(local: LocalCluster, access: StoreAccess) -> bytes:
    """Return the content of /zookeeper/config, b"" if the store does not answer within seconds."""
    try:
        with store_errors(local.store), open_store(local.store, _ASK_S, access) as client:
            content: bytes = client.get(MEMBERS)[0]
    except CliError:
        return b""
    return content


def removed(nodes: list[Daemon], configuration: bytes) -> list[Daemon]:
    """Return the nodes that are not members. Without a readable list of members every node counts as one. Pure."""
    try:
        members = parse_config_text(configuration)[0]
    except ValueError:
        return []
    return [one for one in nodes if members and int(one.number) not in members]


def may_have_left(ended: Ended) -> bool:
    """Return whether a process ended as a removed store node does: by itself, with status 0. Pure."""
    return ended.daemon.role == STORE and not ended.expected and ended.returncode == 0
