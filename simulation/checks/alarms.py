"""Checks the alarms of the masters' auditors: counts them by rule, and checks that their statements about owners are
true (N5)."""

from __future__ import annotations

from collections.abc import Callable

from coord.tree.machine import CommandOutcome, StateMachine
from coord.wire.records import EVENT_CREATED
from regions.diagnose.invariants import Rule
from regions.records.replica_key import parse_replica_key
from regions.records.znodes import Layout, decode_alarm
from simulation.checks.observer import Observer


class Alarms:
    """Sees every alarm when the store commits it. `serves` returns whether a registered server serves a replica."""

    def __init__(self, layout: Layout, observer: Observer, serves: Callable[[tuple[str, int]], bool]) -> None:
        self._prefix = f"{layout.alarms}/".encode()
        self._observer = observer
        self._serves = serves

    def committed(self, machine: StateMachine, outcome: CommandOutcome) -> None:
        """Check the alarm that a command has created."""
        for event_type, path, _ in outcome.events:
            if event_type != EVENT_CREATED or not path.startswith(self._prefix):
                continue
            alarm = decode_alarm(machine.tree.nodes[path].data or b"")
            self._observer.count(f"alarm: {alarm.rule}")
            if alarm.rule == Rule.NO_OWNER and self._serves(parse_replica_key(alarm.key)):
                self._observer.violated(f"N5: false alarm: {alarm.text}")
