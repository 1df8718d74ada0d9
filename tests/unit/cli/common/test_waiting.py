"""The limit of --timeout, and the words about what a command waits for."""

from __future__ import annotations

import io
import json
import socket
import sys
import threading
from collections.abc import Iterator

import click
import pytest

from cli.common import waiting as module
from cli.common.connect import Cluster
from cli.common.errors import ExitStatus, UnreachableError
from cli.common.waiting import limit_each_wait, limit_s, say_nothing, start_over, waiting
from cli.main import run
from tests.support.docs.reference import all_commands
from tests.support.helpers import free_ports

#: Commands that ask nobody: daemons, and commands for files and for this shell.
ASK_NOBODY = ("coord run", "master run", "server run", "coord restore", "backup list", "backup show", "backup verify")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A new run, whose first word comes at once."""
    monkeypatch.setattr(module, "FIRST_WORD_S", 0.01)
    start_over()
    yield
    start_over()


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a port that accepts connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        yield f"127.0.0.1:{listening.getsockname()[1]}"


class Terminal(io.StringIO):
    """Standard error of a terminal."""

    def isatty(self) -> bool:
        return True


def never(limit: float) -> None:
    with waiting("db1 to answer", limit), waiting("db1:2181 to open a session"):
        threading.Event().wait()


def test_every_command_that_asks_takes_the_option() -> None:
    """A new command has the shared options, or is named above."""
    without = []
    for path, command in all_commands():
        names = [name for one in command.params if isinstance(one, click.Option) for name in one.opts]
        if "--timeout" not in names:
            without.append(" ".join(path))
        assert names.count("--timeout") <= 1, path
    assert sorted(without) == sorted(ASK_NOBODY)


def test_a_wait_ends_at_its_limit_and_says_for_what(capsys: pytest.CaptureFixture[str]) -> None:
    """Also where the library below would wait for ever. In a pipe each thing is named once, in a line."""
    for _ in range(2):
        with pytest.raises(UnreachableError, match=r"waited 0.05 s in vain for db1 to answer") as raised:
            never(0.05)
        assert "rk health" in raised.value.hint
    assert capsys.readouterr().err == "rk: waiting for db1:2181 to open a session\n"


def test_a_terminal_shows_one_line_that_disappears(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is shorter than the terminal's width, so it never leaves a second line."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(module, "_TICK_S", 0.01)
    with pytest.raises(UnreachableError):
        never(0.1)
    *lines, after = terminal.getvalue().split("\r\033[K")[1:]
    assert len(lines) > 1
    assert {len(one) for one in lines} == {19}
    assert lines[0] == "waiting for db1:218"
    assert after == ""


def test_an_answer_in_time_is_silent(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The timer is off afterwards: nothing is said or raised later."""
    monkeypatch.setattr(module, "FIRST_WORD_S", 60.0)
    with waiting("db1", 0.05):
        pass
    assert not threading.Event().wait(0.1)
    assert capsys.readouterr().err == ""


def test_threads_wait_without_words(capsys: pytest.CaptureFixture[str]) -> None:
    """Only the main thread has a timer."""
    ended = threading.Event()

    def work() -> None:
        with waiting("db1", 0.01):
            ended.wait(0.05)
        ended.set()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ended.is_set()
    assert capsys.readouterr().err == ""


def test_the_innermost_option_counts(monkeypatch: pytest.MonkeyPatch, silent: str) -> None:
    """The command line has precedence over a variable of a subcommand; the caller's own default comes last."""
    assert limit_s(3.0) == 3.0
    wanted = {
        (): 15.0,
        ("--timeout", "9"): 9.0,
        ("--timeout", "9", "table", "list", "--timeout", "0.02"): 0.02,
    }
    for words, expected in wanted.items():
        rest = ("table", "list") if "table" not in words else ()
        run([*words, *rest, "--store", f"127.0.0.1:{free_ports(1)[0]}"])
        limit_each_wait()  # else the rest of it
        assert limit_s(15.0) == expected
    monkeypatch.setenv("RK_TABLE_LIST_TIMEOUT", "7")
    for words, expected in (((), 7.0), (("--timeout", "9"), 9.0)):
        run([*words, "table", "list", "--store", f"127.0.0.1:{free_ports(1)[0]}"])
        limit_each_wait()
        assert limit_s(15.0) == expected
    say_nothing()
    assert (limit_s(15.0), limit_s(1.0)) == (9.0, 1.0)
    assert silent


def test_the_option_is_the_deadline_of_all_waits_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline counts from the first wait; for long work each wait counts separately. Fails without `left_s` in
    `limit_s`."""
    now_s = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now_s[0])
    with pytest.raises(SystemExit):
        click.Command("one", params=[click.Option(["--timeout"], type=float, callback=module.remember_timeout)]).main(
            ["--timeout", "9"]
        )
    now_s[0] += 50
    found = []
    for passed_s in (0, 4, 3, 60):
        now_s[0] += passed_s
        found.append(limit_s(15.0))
    assert found == [9.0, 5.0, 2.0, module.TIMEOUT_MIN_S]
    limit_each_wait()
    assert limit_s(15.0) == 9.0


@pytest.mark.parametrize(
    "words",
    [
        ["table", "list"],
        ["get", "t", "k"],
        ["coord", "list"],
        ["coord", "ls", "/"],
    ],
)
def test_a_silent_store(words: list[str], silent: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command names the store while it waits and when it gives up, and prints nothing to standard output."""
    assert run([*words, "--store", silent, "--timeout", "0.2", "--json"]) is ExitStatus.UNREACHABLE
    printed = capsys.readouterr()
    assert printed.out == ""
    *said, last, node, hint = printed.err.splitlines()
    assert any(one.startswith(f"rk: waiting for the store at {silent} to open a session") for one in said)
    assert last.startswith(f"rk: the store at {silent} accepts connections but gave no session within 0.2 s")
    assert node.startswith(f"    {silent} ")
    assert node.endswith("does not answer")
    assert "`rk health`" in hint


def test_silent_masters(silent: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The addresses of the masters and what was asked are named."""
    words = ["server", "list", "--masters", silent, "--timeout", "0.2", "--json"]
    assert run(words) is ExitStatus.UNREACHABLE
    printed = capsys.readouterr()
    assert printed.out == ""
    assert f"waiting for the active master to answer ListServers: {silent}" in printed.err
    assert f"no master is active after 0.2 s: {silent} did not reply" in printed.err


def test_a_short_limit_is_told_as_it_was(silent: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Edit that makes this fail: `ask_master` rounds the limit to tenths of a second."""
    assert run(["server", "list", "--masters", silent, "--timeout", "0.02"]) is ExitStatus.UNREACHABLE
    assert "no master is active after 0.02 s: " in capsys.readouterr().err


def test_health_ends_and_is_json(silent: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A report at every level of ruin; words about waiting are on the other stream."""
    assert run(["health", "--store", silent, "--masters", silent, "--timeout", "0.4", "--json"]) is ExitStatus.USAGE
    printed = capsys.readouterr()
    assert json.loads(printed.out)["verdict"] == "unavailable"
    assert "waiting for store nodes, masters and region servers" in printed.err


def test_a_store_that_stops_answering_in_the_middle() -> None:
    """kazoo waits for ever for a single answer; the command does not."""

    class Client:
        def get(self, _path: str) -> tuple[bytes, None]:
            threading.Event().wait()
            raise AssertionError

    module.limit_s(1.0)
    module._patience.given_s = 0.05
    cluster = Cluster(Client(), "db1:2181", "/r")
    with pytest.raises(UnreachableError, match=r"waited 0.05 s in vain for the store at db1:2181 to answer"):
        cluster.get("/r/x")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_end_that_falls_amid_a_finalizer_comes_again() -> None:
    """Python only prints an exception that leaves a finalizer: without a second alarm the command waited for ever."""

    class Finalized:
        def __del__(self) -> None:
            threading.Event().wait()

    class Client:
        def get(self, _path: str) -> tuple[bytes, None]:
            Finalized()
            threading.Event().wait()
            raise AssertionError

    module.limit_s(1.0)
    module._patience.given_s = 0.05
    cluster = Cluster(Client(), "db1:2181", "/r")
    with pytest.raises(UnreachableError, match="in vain for the store"):
        cluster.get("/r/x")
