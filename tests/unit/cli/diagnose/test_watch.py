"""`rk watch`: arguments that are rejected before the watch begins."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from cli.common.errors import NotFoundError
from cli.diagnose import watch
from cli.main import rk
from regions.records.model import TableRecord, TableState


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[watch.Wanted]:
    """Yield a cluster with the tables `packages` and `users`, and the list of watches that would begin."""
    tables = [
        TableRecord("t1", "packages"),
        TableRecord("t2", "users"),
        TableRecord("t3", "old", state=TableState.REMOVED),
    ]
    wanted: list[watch.Wanted] = []

    @contextlib.contextmanager
    def opened(given: Any) -> Iterator[Any]:
        layout = SimpleNamespace(root="/regionkeeper")
        yield SimpleNamespace(hosts="h:1", access=None, layout=layout, local=None, servers=list, tables=lambda: tables)

    def watching(follower: Any, names: Any, **options: Any) -> Any:
        wanted.append(options["wanted"])
        return SimpleNamespace(run=lambda reactor: None)

    monkeypatch.setattr(watch, "open_cluster", opened)
    monkeypatch.setattr(watch, "Follower", lambda *given, **options: None)
    monkeypatch.setattr(watch, "Watch", watching)
    return wanted


def run(*words: str) -> BaseException | None:
    """Return the error of `rk watch`."""
    return CliRunner().invoke(rk, ["watch", *words], standalone_mode=False).exception


def test_a_table_that_does_not_exist_is_refused(watched: list[watch.Wanted]) -> None:
    """Otherwise the watch would wait forever without output; the error names the existing tables."""
    refused = run("--table", "nosuch")
    assert isinstance(refused, NotFoundError)
    assert (str(refused), refused.hint) == ("no table 'nosuch'", "Tables: packages, users. More: rk table list.")
    assert watched == []


def test_a_table_may_be_named_by_its_id(watched: list[watch.Wanted]) -> None:
    """Lines carry its name."""
    for words in ((), ("--table", "users"), ("--table", "t2")):
        assert run(*words) is None
    assert [one.table for one in watched] == [None, "users", "users"]
