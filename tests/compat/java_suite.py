"""Run our Java program, the official client and Curator 5 in it, against three servers.

    python -m tests.compat.java_suite [--against regionkeeper|zookeeper|both] [GROUP | GROUP.CASE]...

With `both`, cases that end differently on the two are listed at the end. Exit status 1 if a case that is not pending
fails on ours, or any on ZooKeeper.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tests.compat import jvm
from tests.compat.ensembles import KINDS, OURS, TICK_MS, Servers, ensemble

#: Features that our store lacks, and the reason. Their cases are expected to fail.
PENDING: dict[str, str] = {}

_LOG4J = """
status = off
appender.console.type = Console
appender.console.name = err
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss.SSS} %p %t %c{1} %m%n
rootLogger.level = warn
rootLogger.appenderRef.err.ref = err
"""


class Case:
    """The result of one case: `lines` are its PASS or FAIL line and the lines after it."""

    def __init__(self, line: str) -> None:
        word, self.name, milliseconds, _ = line.split()
        self.has_passed = word == "PASS"
        self.milliseconds = int(milliseconds)
        self.lines = [line]


def run_java(
    servers: Servers, wanted: list[str], log: Path, show: Callable[[str], None], more: Mapping[str, str] | None = None
) -> list[Case]:
    """Run the cases named in `wanted`, all if empty. Lines go to `show` as they are printed, the client's log to
    `log`. `more` are further system properties."""
    settings = log.with_suffix(".properties")
    settings.write_text(_LOG4J)
    properties = {
        "log4j2.configurationFile": str(settings),
        "zookeeper.extendedTypesEnabled": "true",
        "zookeeper.sasl.client": "false",
        # FIPS mode, the default, does not allow DIGEST-MD5.
        "zookeeper.fips-mode": "false",
        "java.security.auth.login.config": str(servers.jaas),
        # Otherwise the client would not send requests that a server has to reject.
        "jute.maxbuffer": str(4 << 20),
        **(more or {}),
    }
    options = [f"-D{key}={value}" for key, value in properties.items()]
    path = f"{jvm.compiled()}:{jvm.class_path()}"
    command = jvm.java(*options, "-cp", path, "Main", servers.hosts, str(TICK_MS), *wanted)
    cases: list[Case] = []
    with log.open("ab") as err, _process(command, err.fileno()) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in process.stdout:
            line = line.rstrip("\n")
            if line.startswith("DO "):
                _obey(servers, *line.split()[1:])
                process.stdin.write("done\n")
                process.stdin.flush()
                continue
            show(line)
            if line.startswith(("PASS ", "FAIL ")):
                cases.append(Case(line))
            elif cases and line.startswith(" "):
                cases[-1].lines.append(line)
        process.wait()
    return cases


def _obey(servers: Servers, what: str, address: str) -> None:
    """Carry out the request of a case on a server."""
    number = servers.addresses.index(address)
    if what == "stop":
        servers.stop(number)
    else:
        servers.start(number)
        servers.wait_ready(number)


@contextlib.contextmanager
def _process(command: list[str], err: int) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def main() -> int:
    """Run by hand."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", choices=(*KINDS, "both"), default=OURS)
    parser.add_argument("--log", action="store_true", help="show the Java program's log at the end")
    parser.add_argument("cases", nargs="*")
    options = parser.parse_args()
    reason = jvm.missing()
    if reason:
        print(f"cannot run: {reason}", file=sys.stderr)  # noqa: T201
        return 2
    ended: dict[str, dict[str, bool]] = {}
    for kind in KINDS if options.against == "both" else (options.against,):
        print(f"== {kind}", flush=True)  # noqa: T201
        with tempfile.TemporaryDirectory(prefix="rk-compat-") as work, ensemble(kind, Path(work)) as servers:
            log = Path(work, "java.log")
            cases = run_java(servers, options.cases, log, lambda line: print(line, flush=True))  # noqa: T201
            if options.log or not cases:
                print(log.read_text())  # noqa: T201
        for case in cases:
            ended.setdefault(case.name, {})[kind] = case.has_passed
    wrong = [(name, by) for name, by in ended.items() if not all(by.values())]
    for name, by in wrong:
        print(f"{name}: {by} {PENDING.get(name, '')}")  # noqa: T201
    return 0 if ended and all(name in PENDING for name, _ in wrong) else 1


if __name__ == "__main__":
    sys.exit(main())
