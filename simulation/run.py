"""One run from its options to its verdict, and the file by which another person repeats it."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
from twisted.logger import LogLevel, globalLogPublisher

from simulation.drills import DRILLS
from simulation.observer import Violation
from simulation.timeline import SECOND, fault_of
from simulation.world import Options, World

#: Log lines of the services that are kept for the verdict.
LINES_MAX: Final = 30


class Verdict(msgspec.Struct, omit_defaults=True):
    """What became of a run."""

    options: Options
    violation: str
    #: Equal for two runs of one history.
    digest: str
    events: int
    simulated_s: float
    took_s: float
    #: From the end of the last fault until everything was as wanted; -1: not reached.
    recovered_s: float
    counts: dict[str, int]

    @property
    def ok(self) -> bool:
        """Nothing was violated."""
        return not self.violation


class _Log:
    """Listens to the services' log: a fault that is logged is a fault that happened."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.faults: list[str] = []

    def __call__(self, event: dict[str, Any]) -> None:
        timeline = self._world.timeline
        failure = event.get("log_failure")
        if failure is not None:
            fault = f"{timeline.current or 'somebody'}: {fault_of(failure)}"
            timeline.note(f"FAULT {fault}")
            self._world.observer.violations.append(f"at {timeline.now / SECOND:.6f} s: a fault in {fault}")
            if timeline.tell is not None:
                timeline.tell(failure.getTraceback())
        elif timeline.tell is not None and event["log_level"] >= LogLevel.info:
            text = event["log_format"] or ""
            try:
                text = text.format(**event)
            except (KeyError, ValueError, IndexError, AttributeError):
                text = str(text)
            timeline.tell(f"{timeline.now / SECOND:12.6f}  {timeline.current}| {text}")


def run(options: Options, tell: Callable[[str], None] | None = None) -> Verdict:
    """Simulate; `tell` gets every event as a line. Raises KeyError for a drill that does not exist."""
    drill = DRILLS[options.drill]
    began = time.perf_counter()
    world = World(options)
    world.timeline.tell = tell
    log = _Log(world)
    globalLogPublisher.addObserver(log)
    # Killed processes are unwound when they are collected; that must not happen in the middle of a run.
    gc.disable()
    violation = ""
    try:
        world.run(drill)
    except Violation:
        violation = world.observer.violations[0]
    finally:
        gc.enable()
        globalLogPublisher.removeObserver(log)
    if not violation and world.observer.violations:
        violation = world.observer.violations[0]
    timeline = world.timeline
    return Verdict(
        options,
        violation,
        timeline.digest,
        timeline.events,
        timeline.now / SECOND,
        time.perf_counter() - began,
        world.recovered_s,
        dict(sorted({**world.observer.counts, **world.operator.what}.items())),
    )


if __name__ == "__main__":
    verdict = run(Options(int(sys.argv[1])), print if len(sys.argv) > 2 else None)
    print(verdict)
