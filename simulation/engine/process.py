"""Processes with their own reactor and clock.

A process runs in turns: one event, one callback. It can be killed between any two turns, and after any number of sends
within one turn. It can be frozen: events during the freeze run when it wakes, timers first and then received bytes, as
in a real reactor.
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

#: Minimum duration of a callback: no event happens at the same time as its cause.
TURN_US: Final = 20
#: 2026-01-01 00:00:00 UTC, the wall-clock time at which every run begins.
EPOCH_MS: Final = 1_767_225_600_000


class ProcessNetwork(Protocol):
    """The part of the network that a process uses (`simulation/engine/network.py`)."""

    def process_gone(self, process: Process, *, silent: bool) -> None:
        """Close or lose the connections of a process that has ended."""

    def connect_twisted(self, process: Process, host: str, port: int, factory: Any, timeout: float) -> object:
        """Connect, as `connectTCP` does."""

    def listen_twisted(self, process: Process, port: int, factory: Any) -> object:
        """Listen, as `listenTCP` does."""


class Process:
    """One process on its machine: alive, frozen or dead. Its clock may be wrong and run at a rate of its own."""

    def __init__(self, timeline: Timeline, network: ProcessNetwork, host: str, number: int, rate: float) -> None:
        self.timeline = timeline
        self.network = network
        self.host = host
        #: `m1.2` is the second process on machine m1.
        self.name = f"{host}.{number}"
        self.rate = rate
        self.chance = SeededRandom(f"regionkeeper {self.name} {timeline.chance.below(1 << 62)}")
        self.is_dead = False
        #: The process ended by itself, for example with `reactor.stop()`.
        self.has_ended = False
        self.frozen_until = 0
        self.reactor = Reactor(self)
        #: The process dies after this number of sends; None: it does not.
        self.sends_left: int | None = None
        #: Called once when the process is dead.
        self.on_death: list[Callable[[], object]] = []
        self._zero = timeline.now - timeline.chance.below(10_000 * SECOND)
        self._wall_offset_ms = int(timeline.chance.between(-2_000, 2_000))
        self._missed_timers: list[tuple[int, Callback, tuple[Any, ...]]] = []
        self._missed: list[tuple[Callback, tuple[Any, ...]]] = []

    # --- its clock (coord.env.Clock) ----------------------------------------------------------------------------------

    def monotonic_s(self) -> float:
        """Return seconds by this machine's monotonic clock, which runs on while the process is frozen."""
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
        """Return True while the process is stopped."""
        return self.timeline.now < self.frozen_until

    def kill(self, *, silent: bool = False) -> None:
        """Kill the process (kill -9). If `silent`, its machine is gone, too, and its peers are not informed."""
        if self.is_dead:
            return
        self.is_dead = True
        self.timeline.note(f"{self.name} dead")
        self.network.process_gone(self, silent=silent)
        for callback in self.on_death:
            callback()

    def freeze(self, span_us: int) -> None:
        """Stop the process for a while."""
        until = self.timeline.now + span_us
        if self.is_dead or until <= self.frozen_until:
            return
        self.timeline.note(f"{self.name} frozen for {span_us / SECOND:.3f} s")
        self.frozen_until = until
        self.timeline.at(until, self._thaw)

    def _thaw(self) -> None:
        if self.is_dead or self.is_frozen:
            return
        self.timeline.note(f"{self.name} continues")
        timers, self._missed_timers = sorted(self._missed_timers, key=lambda one: one[0]), []
        missed, self._missed = self._missed, []
        for _, what, arguments in timers:
            self.timeline.later(0, self.timer, self.timeline.now, what, arguments)
        for what, arguments in missed:
            self.timeline.later(0, self.turn, what, *arguments)

    def turn(self, what: Callback, *arguments: Any) -> None:
        """Run a callback in the process, now or when it wakes. An exception is logged, as a reactor does."""
        if self.is_dead or self.is_frozen:
            # Kept for a dead process, too: its unfinished coroutines must not unwind while other processes run.
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
        """Run a timer that is due, or keep it until the process wakes."""
        if self.is_frozen or self.is_dead:
            self._missed_timers.append((due, what, arguments))
        else:
            self.turn(what, *arguments)

    def may_send(self) -> bool:
        """Count a send. Return False if the process is dead or dies with this send."""
        if self.sends_left is not None and not self.is_dead:
            self.sends_left -= 1
            if self.sends_left < 0:
                self.kill()
        return not self.is_dead


@implementer(IDelayedCall)
class Timer:
    """The timer that `callLater` returns."""

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
        """Return when the timer is due, in the reactor's seconds."""
        return self._when

    def active(self) -> bool:
        """Return True if the timer was neither called nor canceled."""
        return not (self._is_called or self._is_cancelled)

    def _check(self) -> None:
        if self._is_cancelled:
            raise AlreadyCancelled
        if self._is_called:
            raise AlreadyCalled

    def cancel(self) -> None:
        """Cancel the timer. Raise AlreadyCalled or AlreadyCancelled."""
        self._check()
        self._is_cancelled = True
        self._event.cancel()

    def reset(self, secondsFromNow: float) -> None:  # noqa: N803 - Twisted's name
        """Restart the timer from now."""
        self._check()
        self._event.cancel()
        self._when = self._reactor.seconds() + secondsFromNow
        self._event = self._reactor.plan(self._when, self._fire)

    def delay(self, secondsLater: float) -> None:  # noqa: N803 - Twisted's name
        """Extend the timer."""
        self._check()
        self._event.cancel()
        self._when += secondsLater
        self._event = self._reactor.plan(self._when, self._fire)

    def _fire(self) -> None:
        if self.active():  # a frozen process may have canceled a timer that was due
            self._is_called = True
            self._what(*self._arguments, **self._named)


class Reactor:
    """The parts of Twisted's reactor that masters, region servers and their clients use."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.running = True

    def seconds(self) -> float:
        """Return the machine's monotonic clock."""
        return self._process.monotonic_s()

    def plan(self, when: float, what: Callback) -> ScheduledEvent:
        """Schedule a timer at `when`, in this reactor's seconds."""
        process = self._process
        span = (when - process.monotonic_s()) / process.rate * SECOND
        due = process.timeline.now + max(TURN_US, int(span) + 1)
        return process.timeline.at(due, process.timer, due, what, ())

    def callLater(self, delay: float, f: Callback, *args: Any, **kw: Any) -> Timer:
        """Implement IReactorTime."""
        assert delay >= 0, delay
        return Timer(self, self.seconds() + delay, f, args, kw)

    def callFromThread(self, f: Callback, *args: Any) -> None:
        """Implement IReactorFromThreads; the threads are simulated, too."""
        process = self._process
        process.timeline.later(TURN_US, process.turn, f, *args)

    def callWhenRunning(self, f: Callback, *args: Any) -> None:
        """Call `f` in the next turn: a simulated reactor always runs."""
        self.callLater(0, f, *args)

    def connectTCP(self, host: str, port: int, factory: Any, timeout: float = 30, **_: Any) -> Any:
        """Implement IReactorTCP."""
        return self._process.network.connect_twisted(self._process, host, port, factory, timeout)

    def listenTCP(self, port: int, factory: Any, backlog: int = 50, interface: str = "") -> Any:  # noqa: ARG002
        """Implement IReactorTCP."""
        return self._process.network.listen_twisted(self._process, port, factory)

    def stop(self) -> None:
        """End the process."""
        self.running = False
        self._process.has_ended = True
        self._process.timeline.later(0, self._process.kill)


def fault_of(failure: Failure) -> str:
    """Return one line about an unexpected exception."""
    frames = failure.getTraceback().strip().splitlines()
    where = next((line.strip() for line in reversed(frames) if line.strip().startswith("File ")), "")
    return f"{failure.type.__name__ if failure.type else '?'}: {failure.value} ({where})"
