"""`python -m tests.fuzz`: search for bytes that break an invariant, each target in a separate process.

With atheris (libFuzzer; `make fuzz` installs it) the coverage of the instrumented sources guides the search, without it
the lines that a tracer sees. The last third of the time goes to the compiled form of the store, if it is built. That
form is fast but gives no coverage, so it gets blind mutations of the corpus. The corpus is kept in --corpus from run to
run. A failing case is written to `<corpus>/found/<target>-<hash>`. Move it to
`tests/fuzz/regressions/<target>-<what>.bin` once the bug is fixed.
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

#: Factor by which instruments slow down a case.
SLOWDOWN = 6.0
PACKAGES = ("coord", "regions", "regionserver")
ATHERIS = "atheris"
OWN = "own"
BLIND = "blind"


def main() -> int:
    """Run the targets of the command line. Return exit status 1 if a case failed."""
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
    """Disable log lines: a node's logging would take most of the time."""
    from twisted.logger import globalLogBeginner

    globalLogBeginner.beginLoggingTo([], redirectStandardIO=False, discardBuffer=True)


def _with_atheris(name: str, seconds: float, folder: Path, found: Path) -> int:
    """Run libFuzzer. It ends the process and does not return."""
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
    """Records the lines of our packages that run, with a tracer."""

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
    """Mutate the corpus. Unless blind, a case that reaches a new line joins the corpus."""
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
        # Tracing is expensive: most cases run without it; only cases that may have reached new lines are traced.
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
