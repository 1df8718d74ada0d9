"""The end of a node that is no member of its store any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twisted.logger import Logger

from coord.server.context import NodeContext
from coord.server.membership.reconfig import Reconfiguration

log = Logger()

#: How long a node that is no member any more waits to be added again before its process ends.
LEAVE_S: Final = 10.0


class Leaving:
    """The others go on without this node: it serves nobody from then on.

    It stays for a while, in case it is let in again at once, as ZooKeeper's `reconfig` does with a running server.
    """

    def __init__(
        self,
        context: NodeContext,
        membership: Reconfiguration,
        later: Callable[..., Any],
        leave: Callable[[], None],
        where: str,
    ) -> None:
        """`later(seconds, function)` as the reactor's; `leave` ends the process; `where` the data is, for people."""
        self._context = context
        self._membership = membership
        self._later = later
        self._leave = leave
        self._where = where
        self._has_begun = False

    def turn_end(self) -> None:
        """At the end of each turn: begin, if a peer has reported that this node is no member."""
        if not self._membership.removed_at or self._has_begun:
            return
        self._has_begun = True
        log.error(
            "node {id} is no member of this store any more (configuration at {index}): it serves nobody, and ends in"
            " {seconds:.0f} s unless it is added again. {data} may be removed then",
            id=self._context.settings.node_id,
            index=self._membership.removed_at,
            seconds=LEAVE_S,
            data=self._where,
        )
        self._context.clients.close_all()
        self._later(LEAVE_S, self._decide)

    def _decide(self) -> None:
        context = self._context
        self._has_begun = False
        if context.core.leader and context.core.configs.current.is_member(context.settings.node_id):
            log.info("node {id} is a member again", id=context.settings.node_id)
            self._membership.removed_at = 0
        else:
            self._leave()
