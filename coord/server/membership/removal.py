"""The end of a node that is no member of its store any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twisted.logger import Logger

from coord.server.node import Node

log = Logger()

#: How long a node that is no member any more waits to be added again before its process ends.
LEAVE_S: Final = 10.0


class Leaving:
    """The others go on without this node: it serves nobody from then on.

    It stays for a while, in case it is let in again at once, as ZooKeeper's `reconfig` does with a running server.
    """

    def __init__(self, node: Node, later: Callable[..., Any], leave: Callable[[], None], where: str) -> None:
        """`later(seconds, function)` as the reactor's; `leave` ends the process; `where` the data is, for people."""
        self._node = node
        self._later = later
        self._leave = leave
        self._where = where
        self._has_begun = False

    def turn_end(self) -> None:
        """At the end of each turn: begin, if others have said that this node is no member."""
        node = self._node
        if not node.membership.removed_at or self._has_begun:
            return
        self._has_begun = True
        log.error(
            "node {id} is no member of this store any more (configuration at {index}): it serves nobody, and ends in"
            " {seconds:.0f} s unless it is added again. {data} may be removed then",
            id=node.settings.node_id,
            index=node.membership.removed_at,
            seconds=LEAVE_S,
            data=self._where,
        )
        node.close_clients()
        self._later(LEAVE_S, self._decide)

    def _decide(self) -> None:
        node = self._node
        self._has_begun = False
        if node.core.leader and node.core.configs.current.is_member(node.settings.node_id):
            log.info("node {id} is a member again", id=node.settings.node_id)
            node.membership.removed_at = 0
        else:
            self._leave()
