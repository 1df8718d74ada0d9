"""`rk watch`: arguments that are rejected before the watch begins."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console
from twisted.internet.defer import ensureDeferred
from twisted.internet.error import ReactorNotRunning

from cli.common.errors import NotFoundError
from cli.common.names import Names
from cli.diagnose import watch
from cli.diagnose.follow import Line
from cli.main import rk
from regions.records.model import RegionState, TableRecord, TableState, TransitionRecord
from regions.transitions.observed import Change

NOW_MS = 1_795_464_343_000


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
        return SimpleNamespace(run=lambda reactor, poll: None)

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


def test_the_screen_begins_with_what_is_in_transition_by_the_store() -> None:
    """B1: a parked region is there from the first frame, with the age of its record."""
    parked = TransitionRecord("t1.0001", "t1", 0, RegionState.OFFLINE, since_ms=NOW_MS - 90_000, parked=True)
    follower: Any = SimpleNamespace(
        clock=SimpleNamespace(now_ms=lambda: NOW_MS),
        history=SimpleNamespace(records=lambda: {"t1.0001-0": parked}, in_transition=["t1.0001-0"]),
    )

    async def line(change: Change, _names: Names) -> Line:
        return Line(
            change.at_ms, "rows", "t1.0001", 0, "", "", change.before, change.after, "", "", "", 0, 1, "", "", 0
        )

    follower.line = line
    screen = watch.Watch(follower, Names([], None), as_json=False, wanted=watch.Wanted(), count=None, live=True)
    board = screen._board
    assert board is not None
    shown: list[None] = []
    ensureDeferred(screen._add_present(board)).addCallback(shown.append)
    assert shown == [None]
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(board.draw(NOW_MS, 30))
    text = console.export_text()
    assert "1 in transition" in text
    assert "90.0 s" in text


def test_a_signal_that_comes_first_ends_the_watch_without_an_error() -> None:
    """SIGTERM stops the reactor; then requests fail with the session, and the last line may want to stop it again."""
    stopped: list[str] = []

    def stop() -> None:
        stopped.append("stop")
        if len(stopped) > 1:
            raise ReactorNotRunning("Can't stop reactor that isn't running.")

    reactor = SimpleNamespace(addSystemEventTrigger=lambda *_: None, callWhenRunning=lambda _: None, stop=stop)
    clock = SimpleNamespace(now_ms=lambda: NOW_MS)
    follower: Any = SimpleNamespace(clock=clock, on_change=None, on_membership=None)
    shown = watch.Watch(follower, Names([], None), as_json=True, wanted=watch.Wanted(), count=None)
    failure: Any = SimpleNamespace(getErrorMessage=lambda: "ConnectionLoss")

    def run_reactor() -> None:
        stop()
        shown._end()
        shown._failed(failure)
        shown._stop()

    reactor.run = run_reactor
    shown.run(reactor)
    assert stopped == ["stop", "stop"]
