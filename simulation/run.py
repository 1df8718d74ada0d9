"""One run from its options to its verdict, and the file that repeats the run."""

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

from simulation.cluster.cluster import Options, SimulatedCluster
from simulation.drills import DRILLS
from simulation.engine.history import Violation
from simulation.engine.process import fault_of
from simulation.engine.timeline import SECOND

#: Packages whose code determines a run.
CODE: Final = ("coord", "regions", "master", "regionserver", "simulation")


class RunVerdict(msgspec.Struct, omit_defaults=True):
    """Result of a run."""

    options: Options
    violation: str
    #: Equal for two runs with the same history.
    digest: str
    events: int
    simulated_s: float
    took_s: float
    #: Seconds from the last fault until the cluster had recovered; -1 if it has not.
    recovered_s: float
    counts: dict[str, int]

    @property
    def ok(self) -> bool:
        """Return True if nothing was violated."""
        return not self.violation


@implementer(ILogObserver)
class _FaultObserver:
    """Log observer that makes an exception in the services' log a violation."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self.faults: list[str] = []

    def __call__(self, event: dict[str, Any]) -> None:
        timeline = self._cluster.timeline
        failure = event.get("log_failure")
        if failure is not None and timeline.current:
            fault = f"{timeline.current.name}: {fault_of(failure)}"
            timeline.note(f"FAULT {fault}")
            self._cluster.observer.violations.append(f"at {timeline.now / SECOND:.6f} s: a fault in {fault}")
            if timeline.trace is not None:
                timeline.trace(failure.getTraceback())
        elif timeline.trace is not None and timeline.current and event["log_level"] >= LogLevel.info:
            text = event["log_format"] or ""
            try:
                text = text.format(**event)
            except (KeyError, ValueError, IndexError, AttributeError):
                text = str(text)
            timeline.trace(f"{timeline.now / SECOND:12.6f}  {timeline.current.name}| {text}")


def run(
    options: Options,
    trace: Callable[[str], None] | None = None,
    *,
    script: Callable[[SimulatedCluster], None] | None = None,
) -> RunVerdict:
    """Run a simulation and return its verdict. `trace` gets every event as a line; `script` replaces the drill.

    Raise KeyError for an unknown drill.
    """
    drill = script or DRILLS[options.drill]
    began = time.perf_counter()
    cluster = SimulatedCluster(options)
    cluster.timeline.trace = trace
    log = _FaultObserver(cluster)
    globalLogPublisher.addObserver(log)
    # Killed processes unwind when they are collected; that must not happen in the middle of a run.
    gc.disable()
    violation = ""
    try:
        cluster.run(drill)
    except Violation:
        violation = cluster.observer.violations[0]
    finally:
        gc.enable()
        globalLogPublisher.removeObserver(log)
    if not violation and cluster.observer.violations:
        violation = cluster.observer.violations[0]
    timeline = cluster.timeline
    return RunVerdict(
        options,
        violation,
        timeline.digest,
        timeline.events,
        timeline.now / SECOND,
        time.perf_counter() - began,
        cluster.recovered_s,
        dict(sorted({**cluster.observer.counts, **cluster.operator.what}.items())),
    )


# --- files ---


class Recording(msgspec.Struct, omit_defaults=True):
    """Content of a file that repeats a run."""

    options: Options
    violation: str
    digest: str
    events: int
    simulated_s: float
    #: Package version, and digest of the code that decides a run: other code has other histories.
    version: str
    code: str
    format: int = 1


class BadRecordingError(Exception):
    """Raised for a file that cannot be replayed; the message names the reason."""


@functools.cache
def code_digest() -> str:
    """Return a digest of all sources that take part in a run."""
    here = Path(__file__).resolve().parent.parent
    digest = hashlib.blake2b(digest_size=8)
    for package in CODE:
        for path in sorted((here / package).rglob("*.py")):
            digest.update(path.relative_to(here).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def version() -> str:
    """Return the version of the installed package, or ""."""
    try:
        return metadata.version("regionkeeper")
    except metadata.PackageNotFoundError:
        return ""


def record(verdict: RunVerdict, folder: Path) -> Path:
    """Write a run's file into `folder` and return its path. Raise OSError."""
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
    """Read a run's file. Raise BadRecordingError."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Recording)
    except OSError as error:
        raise BadRecordingError(f"{path} cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise BadRecordingError(f"{path} is not a recording of a simulation: {error}") from error
    if found.options.drill not in DRILLS:
        raise BadRecordingError(f"{path} names the drill {found.options.drill!r}, which this version does not have")
    return found
