"""The key of a replica is printed and parsed in one place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import regions
from regions.records.replica_key import has_key, is_key_of, key_begin, key_in, parse_replica_key, region_in, replica_key

ROOT = Path(regions.__file__).parent.parent


@pytest.mark.parametrize(("region_id", "number"), [("r1", 0), ("7c1e09aa.0004", 12), ("a-b", 3), ("7c1e.0001r2", 1)])
def test_a_key_comes_back(region_id: str, number: int) -> None:
    assert parse_replica_key(replica_key(region_id, number)) == (region_id, number)
    assert region_in(replica_key(region_id, number)) == region_id


@pytest.mark.parametrize(
    "path",
    ["/u/07/r-0", "/u/07/a-b-12", "/u/07/-0", "/u/07/r-", "/u/07/r-x", "/u/07/r", "/u/07", "/u", "/u/07/r-0/x-1", "/"],
)
def test_a_path_has_a_key_where_one_is_found(path: str) -> None:
    assert has_key(path, key_begin("/u")) == (key_in(path, "/u") is not None)


@pytest.mark.parametrize("key", ["", "r1", "-0", "r1-", "r1-x", "r1-1.5", "r1-²", "r1-+1"])
def test_what_is_no_key_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="is no key of a replica"):
        parse_replica_key(key)


@pytest.mark.parametrize(
    ("key", "expected"), [("7c1e.1-3", True), ("7c1e.1-0", True), ("7c1e.2-3", False), ("7c1e.1", False), ("", False)]
)
def test_any_text_may_be_asked_about(key: str, expected: bool) -> None:
    assert is_key_of("7c1e.1", key) == expected


def test_no_other_module_prints_or_parses_one() -> None:
    printed = re.compile(r'f"(?:[^"]*/)?\{[^{}]*region_id\}-\{[^{}]*(?:replica|number)\}')
    parsed = re.compile(r'(?:key|name)\)?\.rpartition\("-"\)')
    found = []
    for package in ("regions", "master", "regionserver", "cli", "simulation"):
        for path in (ROOT / package).rglob("*.py"):
            if path.name in ("replica_key.py", "local.py", "writers.py") or "plan" in path.parts:
                continue  # names of local processes and of a drill's clients; the planner is shipped to executors alone
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if printed.search(line) or parsed.search(line):
                    found.append(f"{path.relative_to(ROOT)}:{number} {line.strip()}")
    assert not found
