"""Processes that have a reactor and a clock of their own.

A process runs in turns: one event, one callback. It may be killed between any two of them and after any number of
bytes it sends within one, or be frozen: what would have happened meanwhile then happens when it wakes, its timers first
and then what its sockets received, as in a real reactor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from twisted.internet.error import AlreadyCalled, AlreadyCancelled
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from simulation.engine.chance import SeededRandom
from simulation.engine.timeline import SECOND, Callback, ScheduledEvent, Timeline

log = Logger()

#: What a callback costs, at least: nothing happens at the same time as its cause.
TURN_US: Final = 20
#: 2026-01-01 00:00:00 UTC, when every run begins.
EPOCH_MS: Final = 1_767_225_600_000


class ProcessNetwork(Protocol):
    """What a process uses of the network (`simulation/engine/network.py`)."""

    def process_gone(self, process: Process, *, silent: bool) -> None:
        """Close or lose the connections of a process that has ended."""

    def connect_twisted(self, process: Process, host: str, port: int, factory: Any, timeout: float) -> object:
        """Connect, as `connectTCP` does."""

    def listen_twisted(self, process: Process, port: int, factory: Any) -> object:
        """Listen, as `listenTCP` does."""


class Process:
    """One process on its machine: alive, frozen or dead; its clock may be wrong and run at a rate of its own."""

    def __init__(self, timeline: Timeline, network: ProcessNetwork, host: str, number: int, rate: float) -> None:
        self.timeline = timeline
        self.network = network
        self.host = host
        #: `m1.2` is the second process on the machine m1.
        self.name = f"{host}.{number}"
        self.rate = rate
        self.chance = SeededRandom(f"regionkeeper {self.name} {timeline.chance.below(1 << 62)}")
        self.is_dead = False
        #: It ended by itself, as by `reactor.stop()`.
        self.has_ended = False
        self.frozen_until = 0
        self.reactor = Reactor(self)
        #: Dies when it has sent that many more times; None: does not.
        self.sends_left: int | None = None
        #: Told once when it is dead.
        self.on_death: list[Callable[[], object]] = []
        self._zero = timeline.now - timeline.chance.below(10_000 * SECOND)
        self._wall_offset_ms = int(timeline.chance.between(-2_000, 2_000))
        self._missed_timers: list[tuple[int, Callback, tuple[Any, ...]]] = []
        self._missed: list[tuple[Callback, tuple[Any, ...]]] = []

    # --- its clock (coord.env.Clock) ----------------------------------------------------------------------------------

    def monotonic_s(self) -> float:
        """Seconds since some moment, by this machine; frozen processes do not stop their clock."""
        return (self.timeline.now - self._zero) * self.rate / SECOND

    def monotonic_ms(self) -> int:
        """See `coord.env.Clock`."""
        return int((self.timeline.now - self._zero) * self.rate) // 1000

    def wall_ms(self) -> int:
        """See `coord.env.Clock`."""
        return EPOCH_MS + self._wall_offset_ms + self.timeline.now // 1000

    # --- its life -----------------------------------------------------------------------------------------------------

    @property
    def is_frozen(self) -> bool:
        """Stopped, to go on later."""
        return self.timeline.now < self.frozen_until

    def kill(self, *, silent: bool = False) -> None:
        """kill -9; `silent`: its machine went away, and nobody is told that its connections are gone."""
        if self.is_dead:
            return
        self.is_dead = True
        self.timeline.note(f"{self.name} dead")
        self.network.process_gone(self, silent=silent)
        for told in self.on_death:
            told()

    def freeze(self, span_us: int) -> None:
        """Stop for a while."""
        until = self.timeline.now + span_us
        if self.is_dead or until <= self.frozen_until:
            return
        self.timeline.note(f"{self.name} frozen for {span_us / SECOND:.3f} s")
        self.frozen_until = until
        self.timeline.at(until, self._thaw)

    def _thaw(self) -> None:
        if self.is_dead or self.is_frozen:
            return
        self.timeline.note(f"{self.name} goes on")
        timers, self._missed_timers = sorted(self._missed_timers, key=lambda one: one[0]), []
        missed, self._missed = self._missed, []
        for _, what, arguments in timers:
            self.timeline.later(0, self.timer, self.timeline.now, what, arguments)
        for what, arguments in missed:
            self.timeline.later(0, self.turn, what, *arguments)

    def turn(self, what: Callback, *arguments: Any) -> None:
        """Let the process do something now, or when it wakes; a fault in it is logged, as its reactor would."""
        if self.is_dead or self.is_frozen:
            # Kept of the dead, too: what they left unfinished must not unwind while the others live.
            self._missed.append((what, arguments))
            return
        timeline = self.timeline
        timeline.current = self
        try:
            what(*arguments)
        except Exception:
            log.failure("unhandled in {process}", process=self.name)
        timeline.current = None

    def timer(self, due: int, what: Callback, arguments: tuple[Any, ...]) -> None:
        """A timer is due."""
        if self.is_frozen or self.is_dead:
            self._missed_timers.append((due, what, arguments))
        else:
            self.turn(what, *arguments)

    def may_send(self) -> bool:
        """Count a send; False if the process is dead, or dies now."""
        if self.sends_left is not None and not self.is_dead:
            self.sends_left -= 1
            if self.sends_left < 0:
                self.kill()
        return not self.is_dead


@implementer(IDelayedCall)
class Timer:
    """What `callLater` returns."""

    def __init__(
        self, reactor: Reactor, when: float, what: Callback, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> None:
        self._reactor = reactor
        self._when = when
        self._what = what
        self._arguments = arguments
        self._named = named
        self._is_called = self._is_cancelled = False
        self._event = reactor.plan(when, self._fire)

    def getTime(self) -> float:
        """When it is due, in the reactor's seconds."""
        return self._when

    def active(self) -> bool:
        """Neither called nor cancelled."""
        return not (self._is_called or self._is_cancelled)

    def _check(self) -> None:
        if self._is_cancelled:
            raise AlreadyCancelled
        if self._is_called:
            raise AlreadyCalled

    def cancel(self) -> None:
        """Raises AlreadyCalled or AlreadyCancelled."""
        self._check()
        self._is_cancelled = True
        self._event.call_off()

    def reset(self, secondsFromNow: float) -> None:  # noqa: N803 - Twisted's name
        """Count anew from now."""
        self._check()
        self._event.call_off()
        self._when = self._reactor.seconds() + secondsFromNow
        self._event = self._reactor.plan(self._when, self._fire)

    def delay(self, secondsLater: float) -> None:  # noqa: N803 - Twisted's name
        """Wait longer."""
        self._check()
        self._event.call_off()
        self._when += secondsLater
        self._event = self._reactor.plan(self._when, self._fire)

    def _fire(self) -> None:
        if self.active():  # a frozen process may have called off a timer that was due
            self._is_called = True
            self._what(*self._arguments, **self._named)


class Reactor:
    """What masters, region servers and their clients use of Twisted's reactor."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.running = True

    def seconds(self) -> float:
        """The machine's monotonic clock."""
        return self._process.monotonic_s()

    def plan(self, when: float, what: Callback) -> ScheduledEvent:
        """Have a timer fire at `when` of this reactor's seconds."""
        process = self._process
        span = (when - process.monotonic_s()) / process.rate * SECOND
        due = process.timeline.now + max(TURN_US, int(span) + 1)
        return process.timeline.at(due, process.timer, due, what, ())

    def callLater(self, delay: float, f: Callback, *args: Any, **kw: Any) -> Timer:
        """IReactorTime."""
        assert delay >= 0, delay
        return Timer(self, self.seconds() + delay, f, args, kw)

    def callFromThread(self, f: Callback, *args: Any) -> None:
        """IReactorFromThreads; the threads are simulated, too."""
        process = self._process
        process.timeline.later(TURN_US, process.turn, f, *args)

    def callWhenRunning(self, f: Callback, *args: Any) -> None:
        """It is running."""
        self.callLater(0, f, *args)

    def connectTCP(self, host: str, port: int, factory: Any, timeout: float = 30, **_: Any) -> Any:
        """IReactorTCP."""
        return self._process.network.connect_twisted(self._process, host, port, factory, timeout)

    def listenTCP(self, port: int, factory: Any, backlog: int = 50, interface: str = "") -> Any:  # noqa: ARG002
        """IReactorTCP."""
        return self._process.network.listen_twisted(self._process, port, factory)

    def stop(self) -> None:
        """The process ends."""
        self.running = False
        self._process.has_ended = True
        self._process.timeline.later(0, self._process.kill)


def fault_of(failure: Failure) -> str:
    """One line about an unexpected exception."""
    frames = failure.getTraceback().strip().splitlines()
    where = next((line.strip() for line in reversed(frames) if line.strip().startswith("File ")), "")
    return f"{failure.type.__name__ if failure.type else '?'}: {failure.value} ({where})"
