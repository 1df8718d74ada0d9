"""`rk put`, `get`, `delete`, `scan` and `load` on a table with replicas; conditions and exit statuses."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cli.common.errors import CliError, UnreachableError, UsageFaultError
from cli.main import rk
from cli.rows import opening
from examples.replicated_counter import add
from regions.records.members import Storage
from regionserver.client import OutcomeUnknown, RegionClient
from tests.unit.regionserver.client.tablets.test_calls import PATHS, Bench


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Yield three servers with table "rows", which has two tablets; rk finds them."""
    made = Bench()

    @contextlib.contextmanager
    def open_cluster(_given: object) -> Iterator[Any]:
        yield SimpleNamespace(client=made.store, layout=PATHS)

    monkeypatch.setattr(opening, "open_cluster", open_cluster)
    yield made
    made.client.close()
    made.servers.close()


def run(*words: str) -> Result:
    return CliRunner().invoke(rk, list(words), standalone_mode=False)


def status(result: Result) -> int:
    """Return the exit status of the process."""
    if isinstance(result.exception, CliError):
        return result.exception.exit_code
    assert result.exception is None, result.exception
    return int(result.return_value or 0)


def test_rows_of_a_table_with_replicas(bench: Bench, tmp_path: Path) -> None:
    assert status(run("put", "rows", "a", "one")) == 0
    assert run("get", "rows", "a").stdout == "one\n"
    source = tmp_path / "rows.csv"
    source.write_text("id,v\n" + "".join(f"{letter}{n},x\n" for letter in "bz" for n in range(5)))
    loaded = run("load", "rows", str(source), "--json")
    assert (json.loads(loaded.stdout)["rows"], status(loaded)) == (10, 0)
    assert json.loads(run("scan", "rows", "--count", "--json").stdout) == {"table": "rows", "rows": 11}
    assert [len(one.rows) for one in bench.servers.tablets.values()] == [6, 5]
    assert status(run("delete", "rows", "a")) == 0
    assert status(run("get", "rows", "a")) == 4


def test_a_stale_read_shows_its_age(bench: Bench) -> None:
    """People read the age on standard error, so that standard output has the rows alone."""
    assert status(run("put", "rows", "a", "one")) == 0
    bench.servers.lead("")
    bench.servers.servers["s2"].age_ms = 700
    stale = ("--max-stale", "60s")
    found = json.loads(run("get", "rows", "a", *stale, "--json").stdout)
    assert found["value"] == "one"
    assert found["age_ms"] >= 700
    for words, rows in (("get", "rows", "a"), "one\n"), (("scan", "rows", "--count"), "1\n"):
        result = run(*words, *stale)
        assert result.stdout == rows
        assert re.fullmatch(r"data at most \d+\.\d\d s old\n", result.stderr)
    counted = json.loads(run("scan", "rows", *stale, "--count", "--json").stdout)
    assert (counted["rows"], counted["age_ms"] >= 700) == (1, True)
    *rows, age = run("scan", "rows", *stale, "--json").stdout.splitlines()
    assert [json.loads(row)["key"] for row in rows] == ["a"]
    assert json.loads(age)["age_ms"] >= 700


@pytest.mark.usefixtures("bench")
@pytest.mark.parametrize("text", ["0", "soon", "400d"])
def test_ages_that_make_no_sense_are_a_wrong_command_line(text: str) -> None:
    for words in ("get", "rows", "a"), ("scan", "rows"):
        result = run(*words, "--max-stale", text)
        assert isinstance(result.exception, UsageFaultError)
        assert f"--max-stale {text!r}" in result.exception.message


def test_conditions_and_their_exit_status(bench: Bench) -> None:
    assert status(run("put", "rows", "lock", "me", "--if-absent")) == 0
    second = run("put", "rows", "lock", "you", "--if-absent")
    assert (status(second), second.stdout, second.stderr) == (1, "", "not done: lock: there is a row\n")
    assert status(run("put", "rows", "lock", "you", "--if-value", "them")) == 1
    assert status(run("delete", "rows", "lock", "--if-value", "you")) == 1
    assert bench.client.get("rows", "lock") == b"me"
    third = run("put", "rows", "lock", "you", "--if-value", "me", "--json")
    assert (status(third), json.loads(third.stdout)["done"]) == (0, "put 3 bytes at lock")
    fourth = run("delete", "rows", "lock", "--if-value", "me", "--json")
    assert (status(fourth), json.loads(fourth.stdout)) == (
        1,
        {"table": "rows", "key": "lock", "done": "", "condition": "its value is not 'me'"},
    )
    assert status(run("delete", "rows", "lock", "--if-value", "you")) == 0
    assert bench.client.get("rows", "lock") is None


@pytest.mark.parametrize(
    "words", [("put", "old", "k", "v", "--if-absent"), ("delete", "old", "k", "--if-value", "v")], ids=["put", "delete"]
)
def test_conditions_on_shared_storage_are_a_wrong_command_line(bench: Bench, words: tuple[str, ...]) -> None:
    bench.add_table("old", ["", ""], kind=Storage.SHARED)
    result = run(*words)
    assert isinstance(result.exception, UsageFaultError)
    assert "--replicas 3" in result.exception.hint


@pytest.mark.usefixtures("bench")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("put", "rows", "", "v"), "the key is empty"),
        (("scan", "rows", "--from", "z", "--to", "a"), "--from is not below --to"),
        (("scan", "rows", "--from", "a", "--to", "a"), "--from is not below --to"),
    ],
)
def test_keys_that_name_nothing_are_a_wrong_command_line(words: tuple[str, ...], said: str) -> None:
    """The first was an error of the server without a remedy, the others printed nothing and succeeded."""
    result = run(*words)
    assert status(result) == UsageFaultError.exit_code
    assert said in str(result.exception)


@pytest.mark.usefixtures("bench")
def test_two_conditions_exclude_each_other() -> None:
    assert status(run("put", "rows", "k", "v", "--if-absent", "--if-value", "w")) == UsageFaultError.exit_code


@pytest.mark.usefixtures("bench")
def test_an_unknown_outcome_is_not_taken_for_a_condition_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> bool:
        raise OutcomeUnknown("nobody knows", may_have_been_done=True)

    monkeypatch.setattr(RegionClient, "compare_and_set", unknown)
    result = run("put", "rows", "k", "v", "--if-absent")
    assert isinstance(result.exception, UnreachableError)


def test_nobody_answers(bench: Bench) -> None:
    for uuid in bench.servers.servers:
        bench.servers.kill(uuid)
    result = run("put", "rows", "k", "v", "--if-absent", "--timeout", "0.2")
    assert isinstance(result.exception, UnreachableError)
    assert "s1 (127.0.0.1:" in result.exception.message


def test_the_example_counts_exactly(bench: Bench) -> None:
    bench.servers.servers["s1"].resets = 5
    with ThreadPoolExecutor(4) as pool:
        totals = list(pool.map(lambda _: add(bench.client, "rows", "visitors", 2), range(20)))
    assert sorted(totals) == list(range(2, 42, 2))
