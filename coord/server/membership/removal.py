"""The end of a node that is not a member of its store any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twisted.logger import Logger

from coord.server.context import NodeContext
from coord.server.membership.reconfig import Reconfiguration

log = Logger(__name__)

#: How long a removed node waits to be added again before its process ends.
LEAVE_S: Final = 10.0


class Removal:
    """Ends a removed node: it closes its clients at once, and its process after LEAVE_S.

    The process stays for a while, in case the node is added again at once, as ZooKeeper's `reconfig` does with a
    running server.
    """

    def __init__(
        self,
        context: NodeContext,
        membership: Reconfiguration,
        later: Callable[..., Any],
        leave: Callable[[], None],
        where: str,
    ) -> None:
        """`later(seconds, function)` is the reactor's callLater; `leave` ends the process; `where` is the data
        directory."""
        self._context = context
        self._membership = membership
        self._later = later
        self._leave = leave
        self._where = where
        self._has_begun = False

    def turn_end(self) -> None:
        """Begin the removal, once. Called at the end of each turn after a peer has reported it."""
        if self._has_begun:
            return
        self._has_begun = True
        log.error(
            "node {id} is not a member of this store any more (configuration at index {index}): closing its clients,"
            " and exiting in {seconds:.0f} s unless it is added again. {data} may be removed then",
            id=self._context.settings.node_id,
            index=self._membership.removed_at,
            seconds=LEAVE_S,
            data=self._where,
        )
        self._context.clients.close_all()
        self._later(LEAVE_S, self._decide)

    def _decide(self) -> None:
        assert self._has_begun, "the removal has not begun"
        self._has_begun = False
        if self._is_member_again():
            log.info("node {id} is a member again", id=self._context.settings.node_id)
            self._membership.removed_at = 0
        else:
            self._leave()

    def _is_member_again(self) -> bool:
        """Return True if a leader counts this node in, or a configuration that is newer than its removal.

        The newer configuration suffices: the members may be electing a leader at this moment.
        """
        core = self._context.core
        is_newer = core.configs.newest_index() > self._membership.removed_at
        return core.configs.current.is_member(core.id) and (core.leader != 0 or is_newer)
