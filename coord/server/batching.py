"""What a leader makes of the commands of a turn: groups, each one entry of the log, under one time."""

from __future__ import annotations

from typing import Final

from coord.env import Clock
from coord.errors import ProposalDropped
from coord.raft.core import RaftCore
from coord.server.node_settings import NodeSettings
from coord.tree.command import encode_group
from coord.tree.machine import StateMachine

#: A group is closed at this size: one entry must fit into an append and hold up nothing.
GROUP_BYTES_MAX: Final = 1 << 20


class Batching:
    """`commands` for the leader's next group, all taken in one term."""

    def __init__(self, settings: NodeSettings, clock: Clock) -> None:
        self.commands: list[bytes] = []
        self._term = 0
        self._settings = settings
        self._clock = clock
        self._last_time_ms = 0

    def add(self, term: int, commands: list[bytes]) -> None:
        """Take commands; those of another term are dead."""
        if self._term != term:
            self.commands.clear()
            self._term = term
        self.commands += commands

    def propose(self, core: RaftCore, machine: StateMachine) -> None:
        """Make groups of all that there is and put them into the leader's log."""
        if self._term != core.term:
            self.commands.clear()
            return
        settings = self._settings
        commands, self.commands = self.commands, []
        start = 0
        size = 0
        for position, command in enumerate(commands):
            size += len(command)
            if size >= GROUP_BYTES_MAX or position == len(commands) - 1:
                try:
                    core.propose(
                        encode_group(
                            self.time_ms(machine.applied_time_ms),
                            commands[start : position + 1],
                            enforce_quotas=settings.enforce_quotas,
                            is_full=self._is_full(machine),
                        )
                    )
                except ProposalDropped:
                    # Leadership is being handed over: if that fails they go into this term, else they are dead.
                    self.commands = commands[start:] + self.commands
                    return
                start = position + 1
                size = 0

    def time_ms(self, applied_ms: int) -> int:
        """The time of a group: this node's clock, but never before that of an earlier one."""
        now_ms = self._clock.wall_ms()
        self._last_time_ms = max(now_ms, self._last_time_ms, applied_ms)
        return self._last_time_ms

    def _is_full(self, machine: StateMachine) -> bool:
        """Whether the state, as far as it is applied, has reached a bound."""
        settings = self._settings
        tree = machine.tree
        return (0 < settings.znodes_max <= len(tree.nodes)) or (0 < settings.data_bytes_max <= tree.data_bytes)
