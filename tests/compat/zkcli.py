"""A scripted session of ZooKeeper's command line on both stores, and the differences of its output.

    python -m tests.compat.zkcli [--show]

The lines of zkcli_session.txt are fed to ZooKeeperMain, once against Apache ZooKeeper and once against our store.
Values that must differ (times, zxids, session ids, addresses) are replaced by names in the order of their occurrence:
two fields that are equal on one store must be equal on the other.
"""

from __future__ import annotations

import argparse
import difflib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.compat import jvm
from tests.compat.ensembles import KINDS, Ensemble, ensemble

SCRIPT = Path(__file__).with_name("zkcli_session.txt")

#: Commands whose output differs as intended, with the reason.
KNOWN: dict[str, str] = {
    "setquota -n 1 /zookeeper": "ZooKeeper counts the znode that holds the statistics twice; ours counts what is there",
    "config -c": "a version is a zxid, which begins elsewhere; the order of the servers means nothing",
}

#: Commands that list a session's identities, which ZooKeeper keeps in a hash set: the order of the lines means nothing.
_UNORDERED = frozenset({"whoami", "getAcl -s /acl"})

_VALUES = (
    ("id", re.compile(r"0x[0-9a-f]+\b")),
    ("zxid", re.compile(r"(?<=zxid: )-?\d+")),
    ("address", re.compile(r"/?\b(?:localhost/)?127\.0\.0\.1:\d+")),
)
_TIME = re.compile(r"\b[A-Z][a-z]{2} [A-Z][a-z]{2} \d\d \d\d:\d\d:\d\d [A-Z]{3,4} \d{4}")
_CLOCK = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ .*\n", re.MULTILINE)


def session(servers: Ensemble, log: Path) -> dict[str, str]:
    """Feed the script to a command line on one server. Return the normalized output by command, as `number:
    command`."""
    settings = log.with_suffix(".properties")
    settings.write_text("status = off\nrootLogger.level = off\n")
    options = [f"-Dlog4j2.configurationFile={settings}", "-Dzookeeper.extendedTypesEnabled=true", "-Duser.timezone=UTC"]
    path = f"{jvm.compiled()}:{jvm.class_path()}"
    # Use the leader: it serves reads of its own writes at once.
    address = servers.addresses[servers.leader()]
    command = jvm.java(*options, "-cp", path, "Cli", "-server", address)
    done = subprocess.run(command, input=SCRIPT.read_text(), capture_output=True, text=True, timeout=180, check=False)
    log.write_text(done.stdout + done.stderr)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    parts = re.split(r"^> (.*)\n", _normalised(done.stdout), flags=re.MULTILINE)
    commands = parts[1::2]
    expected = SCRIPT.read_text().splitlines()
    assert commands == expected, f"{len(commands)} of {len(expected)} commands were carried out"
    outputs: dict[str, str] = {}
    for number, (line, out) in enumerate(zip(commands, parts[2::2], strict=True), 1):
        outputs[f"{number}: {line}"] = "".join(sorted(out.splitlines(keepends=True))) if line in _UNORDERED else out
    return outputs


def _normalised(text: str) -> str:
    text = _CLOCK.sub("", _TIME.sub("TIME", text))
    for name, pattern in _VALUES:
        seen: dict[str, str] = {}

        def named(match: re.Match[str], name: str = name, seen: dict[str, str] = seen) -> str:
            value = match[0]
            return value if value == "0x0" else seen.setdefault(value, f"{name}{len(seen) + 1}")

        text = pattern.sub(named, text)
    return text


def differences(folder: Path) -> dict[str, str]:
    """Return the commands whose output differs, each with a diff from ZooKeeper's to ours."""
    outputs = []
    for kind in reversed(KINDS):
        with ensemble(kind, folder / kind) as servers:
            outputs.append(session(servers, folder / f"{kind}.out"))
    theirs, ours = outputs
    return {
        command: "".join(
            difflib.ndiff(theirs[command].splitlines(keepends=True), ours[command].splitlines(keepends=True))
        )
        for command in theirs
        if theirs[command] != ours[command]
    }


def main() -> int:
    """Run by hand."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", action="store_true", help="print both sessions")
    options = parser.parse_args()
    reason = jvm.missing()
    if reason:
        print(f"cannot run: {reason}", file=sys.stderr)  # noqa: T201
        return 2
    with tempfile.TemporaryDirectory(prefix="rk-compat-") as work:
        found = differences(Path(work))
        for kind in KINDS if options.show else ():
            print(f"== {kind}\n{Path(work, kind).with_suffix('.out').read_text()}")  # noqa: T201
    for command, diff in found.items():
        known = KNOWN.get(command.partition(": ")[2], "")
        print(f"> {command}  {known}\n{diff}")  # noqa: T201
    unknown = [command for command in found if command.partition(": ")[2] not in KNOWN]
    total = len(SCRIPT.read_text().splitlines())
    print(f"{total} commands, {len(found)} differ, {len(unknown)} of them unexplained")  # noqa: T201
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
