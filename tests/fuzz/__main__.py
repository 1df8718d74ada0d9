"""`python -m tests.fuzz`: search for bytes that break something, each target in a process of its own.

With atheris installed (libFuzzer; `make fuzz` installs it) the search is led by coverage of the instrumented sources,
without it by the lines that a tracer sees. A last third of the time goes to the compiled form of the store, if it is
built, which is quick and cannot be watched: blind mutations of what the search has found to lead somewhere. The corpus
is kept in --corpus from run to run. What breaks is written to `<corpus>/found/<target>-<hash>`; move it to
`tests/fuzz/regressions/<target>-<what>.bin` once it is mended.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

#: What instruments cost, in time per case.
SLOWDOWN = 6.0
PACKAGES = ("coord", "regions", "regionserver")
ATHERIS = "atheris"
OWN = "own"
BLIND = "blind"


def main() -> int:
    """Run what the command line says; exit status 1 when something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Search for bytes that break something.")
    parser.add_argument("targets", nargs="*", help="which (all)")
    parser.add_argument("--seconds", type=float, default=60.0, help="for all targets together")
    parser.add_argument("--corpus", type=Path, default=Path(".fuzz"))
    parser.add_argument("--engine", choices=["auto", ATHERIS, OWN, BLIND], default="auto")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    engine = given.engine
    if engine == "auto":
        engine = ATHERIS if importlib.util.find_spec(ATHERIS) else OWN
    if given.one:
        return _one(given.one, engine, given.seconds, given.corpus)
    return _all(given.targets, engine, given.seconds, given.corpus)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _all(names: list[str], engine: str, seconds: float, corpus: Path) -> int:
    from tests.fuzz.targets import TARGETS

    chosen = names or list(TARGETS)
    each = seconds / len(chosen)
    ways = [(engine, each * 2 / 3), (BLIND, each / 3)] if engine != BLIND else [(BLIND, each)]
    broken = []
    for name in chosen:
        for way, share in ways:
            _say(f"== {name}: {share:.0f} s, {way}")
            command = [sys.executable, "-m", "tests.fuzz", "--one", name, "--engine", way, "--corpus", str(corpus)]
            command += ["--seconds", str(share)]
            environment = dict(os.environ) if way == BLIND else {**os.environ, "RK_PURE": "1"}
            if subprocess.run(command, env=environment, check=False).returncode:
                broken.append(name)
                break
    _say(f"== found something in: {', '.join(broken)}" if broken else "== nothing found")
    return 1 if broken else 0


def _one(name: str, engine: str, seconds: float, corpus: Path) -> int:
    folder = corpus / name
    found = corpus / "found"
    folder.mkdir(parents=True, exist_ok=True)
    found.mkdir(exist_ok=True)
    if engine == ATHERIS:
        return _with_atheris(name, seconds, folder, found)
    return _by_mutation(name, seconds, folder, found, is_blind=engine == BLIND)


def _quiet() -> None:
    """A node's log lines would be most of the work."""
    from twisted.logger import globalLogBeginner

    globalLogBeginner.beginLoggingTo([], redirectStandardIO=False, discardBuffer=True)


def _with_atheris(name: str, seconds: float, folder: Path, found: Path) -> int:
    """libFuzzer leads. Never returns to its caller in the ordinary way: libFuzzer ends the process."""
    import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]

    with atheris.instrument_imports(include=list(PACKAGES)):
        from tests.fuzz.corpus import seeds
        from tests.fuzz.targets import TARGETS
    from tests.fuzz.limits import bounded

    _quiet()
    for seed in seeds(name):
        (folder / hashlib.sha1(seed).hexdigest()).write_bytes(seed)
    target = TARGETS[name]

    def case(data: bytes) -> None:
        bounded(target, data, slowdown=SLOWDOWN)

    options = [f"-max_total_time={int(seconds)}", "-max_len=65536", "-timeout=10", "-rss_limit_mb=1024"]
    options += ["-print_final_stats=1", "-verbosity=1", f"-artifact_prefix={found}/{name}-"]
    atheris.Setup([sys.argv[0], *options, str(folder)], case)
    atheris.Fuzz()
    return 0


class _Lines:
    """Lines of our packages that ran, as a tracer sees them."""

    def __init__(self) -> None:
        self.seen: set[tuple[CodeType, int]] = set()
        self.is_new = False
        self._ours: dict[CodeType, bool] = {}

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        ours = self._ours.get(code)
        if ours is None:
            ours = self._ours[code] = any(f"/{package}/" in code.co_filename for package in PACKAGES)
        return self._line if ours else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        place = (frame.f_code, frame.f_lineno)
        if place not in self.seen:
            self.seen.add(place)
            self.is_new = True
        return self._line


def _by_mutation(name: str, seconds: float, folder: Path, found: Path, *, is_blind: bool) -> int:
    """Mutate the corpus; unless blind, a case that reaches a new line joins it."""
    from coord.compiled import form
    from tests.fuzz.corpus import seeds
    from tests.fuzz.limits import bounded
    from tests.fuzz.mutate import mutated
    from tests.fuzz.targets import TARGETS

    _quiet()
    rng = random.Random(time.time_ns())
    target = TARGETS[name]
    kept = [path.read_bytes() for path in sorted(folder.iterdir())]
    corpus = [*seeds(name), *kept]
    lines = _Lines()
    queue = list(corpus)
    cases = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        # Tracing is dear: most cases run without it, and only what they may have reached is looked at.
        data = queue.pop() if queue else mutated(rng, corpus)
        traced = not is_blind and (bool(queue) or rng.randrange(4) == 0)
        lines.is_new = False
        sys.settrace(lines if traced else None)
        try:
            bounded(target, data, slowdown=SLOWDOWN * 5 if traced else 1.0)
        except Exception:
            sys.settrace(None)
            path = found / f"{name}-{hashlib.sha1(data).hexdigest()}"
            path.write_bytes(data)
            _say(f"{name}: {path} after {cases} cases")
            raise
        finally:
            sys.settrace(None)
        cases += 1
        if lines.is_new and not queue:
            corpus.append(data)
            (folder / hashlib.sha1(data).hexdigest()).write_bytes(data)
    reached = "" if is_blind else f", {len(lines.seen)} lines reached"
    _say(f"{name}: {cases} cases, {form()}, {len(corpus)} in the corpus{reached}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
