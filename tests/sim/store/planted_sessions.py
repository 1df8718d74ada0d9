"""Planted bugs in the life of sessions: which node may answer a client, and which nodes must agree to a session's
end."""

from __future__ import annotations

from typing import Any

from coord.server.sessions import contact, endings
from tests.sim.store.world import Bug
from tests.support.planted import Patch, instead

#: Faults that cut the link between a node and its leader while another node reaches both.
APART = ("_part_from_leader",)


class AnsweredWithoutContact(Bug):
    """A node without contact to its leader continues to answer its clients."""

    number = 20
    known = "ZooKeeper's followers between the loss of their leader and syncLimit"
    favours = APART

    def patches(self) -> list[Patch]:
        def holds(_self: Any, _now_ms: int) -> bool:
            return True

        return [instead(contact.ContactLease, "holds", holds)]


class EndedUnasked(Bug):
    """The leader expires a session as soon as it is due, without waiting for the agreement of the node that serves
    it."""

    number = 20
    known = "a ping answered by a follower between two reports"
    favours = APART

    def patches(self) -> list[Patch]:
        def due(self: endings.Endings, session_id: int, owner: int, *, is_served_here: bool) -> None:
            real(self, session_id, owner, is_served_here=is_served_here)
            self._due[session_id].nodes.clear()

        real = endings.Endings.due
        return [instead(endings.Endings, "due", due)]
