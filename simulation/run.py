"""One run from its options to its verdict, and the file by which another person repeats it."""

from __future__ import annotations

import functools
import gc
import hashlib
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import msgspec
from twisted.logger import ILogObserver, LogLevel, globalLogPublisher
from zope.interface import implementer

from simulation.checks.observer import Violation
from simulation.cluster.world import Options, SimulatedCluster
from simulation.drills import DRILLS
from simulation.engine.process import fault_of
from simulation.engine.timeline import SECOND

#: Packages whose code decides what happens in a run.
CODE: Final = ("coord", "regions", "master", "regionserver", "simulation")


class RunVerdict(msgspec.Struct, omit_defaults=True):
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


@implementer(ILogObserver)
class _Log:
    """Listens to the services' log: a fault that is logged is a fault that happened."""

    def __init__(self, world: SimulatedCluster) -> None:
        self._world = world
        self.faults: list[str] = []

    def __call__(self, event: dict[str, Any]) -> None:
        timeline = self._world.timeline
        failure = event.get("log_failure")
        if failure is not None and timeline.current:
            fault = f"{timeline.current.name}: {fault_of(failure)}"
            timeline.note(f"FAULT {fault}")
            self._world.observer.violations.append(f"at {timeline.now / SECOND:.6f} s: a fault in {fault}")
            if timeline.tell is not None:
                timeline.tell(failure.getTraceback())
        elif timeline.tell is not None and timeline.current and event["log_level"] >= LogLevel.info:
            text = event["log_format"] or ""
            try:
                text = text.format(**event)
            except (KeyError, ValueError, IndexError, AttributeError):
                text = str(text)
            timeline.tell(f"{timeline.now / SECOND:12.6f}  {timeline.current.name}| {text}")


def run(
    options: Options,
    tell: Callable[[str], None] | None = None,
    *,
    script: Callable[[SimulatedCluster], None] | None = None,
) -> RunVerdict:
    """Simulate; `tell` gets every event as a line, `script` stands for the drill.

    Raises KeyError for a drill that does not exist.
    """
    drill = script or DRILLS[options.drill]
    began = time.perf_counter()
    world = SimulatedCluster(options)
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
    return RunVerdict(
        options,
        violation,
        timeline.digest,
        timeline.events,
        timeline.now / SECOND,
        time.perf_counter() - began,
        world.recovered_s,
        dict(sorted({**world.observer.counts, **world.operator.what}.items())),
    )


# --- files ---


class Recording(msgspec.Struct, omit_defaults=True):
    """Content of a file that repeats a run."""

    options: Options
    violation: str
    digest: str
    events: int
    simulated_s: float
    #: Version of the package, and a digest of the code that decides what happens: another one has other histories.
    version: str
    code: str
    format: int = 1


class BadRecordingError(Exception):
    """The file cannot be replayed; the message says why."""


@functools.cache
def code_digest() -> str:
    """Of the sources of everything that takes part."""
    here = Path(__file__).resolve().parent.parent
    digest = hashlib.blake2b(digest_size=8)
    for package in CODE:
        for path in sorted((here / package).rglob("*.py")):
            digest.update(path.relative_to(here).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def version() -> str:
    """Of the installed package."""
    try:
        return metadata.version("regionkeeper")
    except metadata.PackageNotFoundError:
        return ""


def record(verdict: RunVerdict, folder: Path) -> Path:
    """Write a run's file into `folder`; returns its path. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{verdict.options.drill}-{verdict.options.seed}.json"
    made = Recording(
        verdict.options,
        verdict.violation,
        verdict.digest,
        verdict.events,
        verdict.simulated_s,
        version(),
        code_digest(),
    )
    path.write_bytes(msgspec.json.format(msgspec.json.encode(made), indent=2) + b"\n")
    return path


def read_recording(path: Path) -> Recording:
    """A run's file. Raises BadRecordingError."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Recording)
    except OSError as error:
        raise BadRecordingError(f"{path} cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise BadRecordingError(f"{path} is no recording of a simulation: {error}") from error
    if found.options.drill not in DRILLS:
        raise BadRecordingError(f"{path} is of the drill {found.options.drill!r}, which this version does not know")
    return found
