"""Known vulnerabilities of the pinned packages, from a file: for machines without access to a database.

    python -m tests.support.advisories all.zip [constraints.lock]

The file is OSV's archive of the ecosystem PyPI, one JSON document for each advisory
(https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip), or one such document. Exit status 0: no vulnerability
is known, 1: some are known, 2: the file has no advisories.
"""

from __future__ import annotations

import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

_PIN: Final = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)
_ECOSYSTEM: Final = "PyPI"


class _Event(msgspec.Struct):
    introduced: str = ""
    fixed: str = ""
    last_affected: str = ""


class _Range(msgspec.Struct):
    type: str
    events: list[_Event] = []


class _Package(msgspec.Struct):
    ecosystem: str
    name: str


class _Affected(msgspec.Struct):
    package: _Package | None = None
    ranges: list[_Range] = []
    versions: list[str] = []


class Advisory(msgspec.Struct):
    """The fields of an OSV document that decide whether a version is affected."""

    id: str
    summary: str = ""
    withdrawn: str = ""
    aliases: list[str] = []
    affected: list[_Affected] = []


class Match(NamedTuple):
    """A pinned package with a known vulnerability."""

    name: str
    version: str
    advisory: Advisory

    def __str__(self) -> str:
        """Return the line for people."""
        also = f" ({', '.join(self.advisory.aliases)})" if self.advisory.aliases else ""
        return f"{self.name} {self.version}: {self.advisory.id}{also}: {self.advisory.summary}"


def pins(text: str) -> dict[str, str]:
    """Return the versions of a file of constraints by canonical names."""
    return {canonicalize_name(name): version for name, version in _PIN.findall(text)}


def matches(advisories: Iterable[Advisory], versions: Mapping[str, str]) -> list[Match]:
    """Return the pinned packages that an advisory which is not withdrawn names in the pinned version."""
    found = []
    for one in advisories:
        for affected in one.affected if not one.withdrawn else []:
            package = affected.package
            name = canonicalize_name(package.name) if package is not None and package.ecosystem == _ECOSYSTEM else ""
            if name in versions and _is_in(versions[name], affected):
                found.append(Match(name, versions[name], one))
                break
    return sorted(found, key=lambda match: (match.name, match.advisory.id))


def _is_in(version: str, affected: _Affected) -> bool:
    if version in affected.versions:
        return True
    return any(_is_in_range(Version(version), one) for one in affected.ranges if one.type == "ECOSYSTEM")


def _is_in_range(version: Version, found: _Range) -> bool:
    """Return whether the last event at or below the version opens the range."""
    is_affected = False
    for event in found.events:
        try:
            if event.introduced and (event.introduced == "0" or version >= Version(event.introduced)):
                is_affected = True
            if event.fixed and version >= Version(event.fixed):
                is_affected = False
            if event.last_affected and version > Version(event.last_affected):
                is_affected = False
        except InvalidVersion:
            continue
    return is_affected


def read(path: Path) -> Iterator[Advisory]:
    """Yield the advisories of an archive or of one document. Raise OSError, ValueError."""
    decode = msgspec.json.Decoder(Advisory).decode
    if not zipfile.is_zipfile(path):
        yield decode(path.read_bytes())
        return
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith(".json"):
                yield decode(archive.read(name))


def main(arguments: list[str]) -> int:
    """Print the matches; return the exit status."""
    path, lock = Path(arguments[0]), Path(arguments[1] if len(arguments) > 1 else "constraints.lock")
    versions = pins(lock.read_text())
    try:
        advisories = list(read(path))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{path} is neither an archive of OSV advisories nor one of them: {error}\n")
        return 2
    found = matches(advisories, versions)
    sys.stdout.write("".join(f"{one}\n" for one in found))
    sys.stdout.write(f"{len(advisories):,} advisories, {len(versions)} pinned packages, {len(found)} matches\n")
    return 1 if found or not advisories else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
