"""Carries out a ForceConfiguration: the replica stops, its log gets the entry, the replica starts again.

A crash at any point leaves the log with the entry or without it, as after any other write.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from coord.errors import StorageError
from coord.raft.messages import CONFIG
from coord.storage.records import HardStateItem, LogItem
from coord.storage.shared.items import Change, RecoveredSlot, SlotItems
from regionserver.tablets.host.turn import Turn
from regionserver.tablets.process.life_work import ReplicaLife
from regionserver.tablets.process.replica import TabletReplica
from regionserver.tablets.rescue.checks import RescueFacts, forced, objection
from regionserver.tablets.rescue.messages import ConfigurationForced, ForceConfiguration

log = Logger()


class RescueWork:
    """See the module docstring. Every method is called on the reactor's thread."""

    def __init__(self, server: str, turn: Turn, replicas: Mapping[str, TabletReplica], life: ReplicaLife) -> None:
        self._server = server
        self._turn = turn
        self._replicas = replicas
        self._life = life

    def answer(self, order: ForceConfiguration) -> Deferred[Any]:
        """Carry out an order of an operator, or refuse it before anything is changed."""
        why = objection(self._facts(order))
        if why:
            return succeed(ConfigurationForced(why))
        group, replica = self._turn.groups[order.tablet], self._replicas[order.tablet]
        configuration = forced(group.core.configs.current, order.keep)
        index = order.last_index + 1
        log.error(
            "tablet {tablet}: an operator forces the configuration {term}.{index} of members {keep}; the other members"
            " are lost, with the entries that only they had",
            tablet=order.tablet, term=order.term, index=index, keep=order.keep,
        )  # fmt: skip

        def changes(slot: RecoveredSlot) -> list[Change]:
            if slot.last.index != order.last_index:
                raise StorageError(f"the log of {order.tablet} has grown to entry {slot.last.index}")
            entry = LogItem(order.term, index, CONFIG, configuration.encode())
            promise = HardStateItem(order.term, order.number)
            return [SlotItems(replica.slot, replica.block.generation, promise, [entry])]

        def done(why: str) -> ConfigurationForced:
            return ConfigurationForced(why, order.term, index)

        return self._life.rewrite(order.tablet, changes).addCallback(done)

    def _facts(self, order: ForceConfiguration) -> RescueFacts:
        group = self._turn.groups.get(order.tablet)
        if group is None or group.failure:
            return RescueFacts(order, self._server)
        core, own = group.core, group.replica.number
        voters = core.configs.current.voters
        answering = [
            number
            for number in voters
            if number == own
            # A server that has lost the replica answers, and its replica does not.
            or (number not in group.refusals and self._turn.beats.is_there(group.servers.get(number, "")))
        ]
        return RescueFacts(
            order, self._server, own, core.term, core.log.last_term, core.log.last, core.leader, voters, answering
        )  # fmt: skip
