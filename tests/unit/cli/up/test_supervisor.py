"""Processes that start, end, are killed and started again, and never outlive their supervisor."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.common.errors import CliError, UnreachableError
from cli.common.local import Daemon
from cli.common.options import Globals
from cli.drill.target.cluster import _require_up
from cli.up import supervisor
from cli.up.control import ControlRequest, ask, listen
from cli.up.supervisor import Ended, News, NotStarted, Restarted, Supervisor, describe_end, last_lines
from tests.support.helpers import eventually

DEADLINE_S = 60.0

SLEEPER = "import signal; print('ready', flush=True); signal.pause()"
STUBBORN = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
while True:
    signal.pause()
"""
#: A process that starts another one, prints its pid, and waits: like a master with a Spark job.
PARENT = f"""
import subprocess, sys
process = subprocess.Popen([sys.executable, "-c", {SLEEPER!r}], stdout=subprocess.DEVNULL)
print(process.pid, flush=True)
process.wait()
"""


def daemon(folder: Path, name: str) -> Daemon:
    """Return a daemon whose data is below `folder`."""
    return Daemon(name, "server", "127.0.0.1:1", "", str(folder / name), str(folder / f"{name}.log"))


@contextlib.contextmanager
def supervised(
    folder: Path, programs: dict[str, str], *, control: bool = False
) -> Iterator[tuple[Supervisor, queue.Queue[News]]]:
    """Yield a supervisor of Python programs. None of them runs afterwards."""
    news: queue.Queue[News] = queue.Queue()
    daemons = [daemon(folder, name) for name in programs]
    commands = {name: [sys.executable, "-c", program] for name, program in programs.items()}
    found = Supervisor(daemons, commands, dict(os.environ), listen(folder) if control else None, news.put)
    found.open()
    try:
        yield found, news
    finally:
        found.kill_all()
        found.close()


def log_says(folder: Path, name: str, text: str) -> None:
    """Wait until the daemon has printed `text`."""
    eventually(lambda: text in (folder / f"{name}.log").read_text(), DEADLINE_S, f"{name} says {text}")


def is_alive(pid: int) -> bool:
    """Return True if a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_end_of_its_own_accord_is_news_and_an_asked_for_end_is_not(tmp_path: Path) -> None:
    """The event has the exit status in both cases."""
    with supervised(tmp_path, {"a": "raise SystemExit(3)", "b": SLEEPER}) as (found, news):
        found.start("a")
        ended = news.get(timeout=DEADLINE_S)
        assert isinstance(ended, Ended)
        assert (ended.daemon.name, ended.how, ended.expected) == ("a", "exit status 3", False)
        found.start("b")
        log_says(tmp_path, "b", "ready")
        found.signal(["a", "b"], signal.SIGTERM)
        assert found.wait_ended(["a", "b"], DEADLINE_S) == []
        ended = news.get(timeout=DEADLINE_S)
        assert isinstance(ended, Ended)
        assert (ended.daemon.name, ended.how, ended.expected) == ("b", "SIGTERM", True)
        assert [state.status for state in found.states()] == ["exit status 3", "SIGTERM"]


def test_started_twice_is_one_process(tmp_path: Path) -> None:
    """A daemon that runs is not started twice; a daemon that has ended can be started again."""
    with supervised(tmp_path, {"a": SLEEPER}) as (found, news):
        pid = found.start("a")
        assert found.start("a") == pid
        found.signal(["a"], signal.SIGKILL)
        news.get(timeout=DEADLINE_S)
        assert found.start("a") != pid


def test_a_forgotten_daemon_ends_and_is_not_started_again(tmp_path: Path) -> None:
    """It is not started after its end, which normally causes a restart, and not on a drill's request."""
    with supervised(tmp_path, {"a": SLEEPER, "b": SLEEPER}, control=True) as (found, news):
        found.keep_running(True)
        found.start("a")
        log_says(tmp_path, "a", "ready")
        found.forget("a")
        ended = news.get(timeout=DEADLINE_S)
        assert isinstance(ended, Ended)
        assert (ended.daemon.name, ended.again_in_s) == ("a", None)
        assert [state.name for state in found.states()] == ["b"]
        with pytest.raises(CliError, match="no daemon 'a'"):
            ask(tmp_path, ControlRequest("start", name="a"))


def test_who_ignores_sigterm_is_named_and_then_killed(tmp_path: Path) -> None:
    """`kill_all` leaves no process."""
    with supervised(tmp_path, {"a": STUBBORN}) as (found, _):
        pid = found.start("a")
        log_says(tmp_path, "a", "ready")
        found.signal(["a"], signal.SIGTERM)
        assert found.wait_ended(["a"], 0.2) == ["a"]
        found.kill_all()
        assert not is_alive(pid)


def test_what_a_daemon_has_started_dies_with_it(tmp_path: Path) -> None:
    """The whole process group is killed, however the daemon ended."""
    with supervised(tmp_path, {"a": PARENT}) as (found, news):
        found.start("a")
        child = int(eventually(lambda: (tmp_path / "a.log").read_text().strip(), DEADLINE_S))
        assert is_alive(child)
        found.signal(["a"], signal.SIGKILL)
        news.get(timeout=DEADLINE_S)
        eventually(lambda: not is_alive(child), DEADLINE_S, "the grandchild is gone")


def test_daemons_die_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    """kill -9 of `rk up` leaves no process: the kernel kills them."""
    program = f"""
import os, sys, threading
from pathlib import Path
from cli.common.local import Daemon
from cli.up.supervisor import Ended, News, NotStarted, Restarted, Supervisor, describe_end, last_lines
folder = Path({str(tmp_path)!r})
one = Daemon("a", "server", "127.0.0.1:1", "", str(folder / "a"), str(folder / "a.log"))
found = Supervisor([one], {{"a": [sys.executable, "-c", {SLEEPER!r}]}}, dict(os.environ), None, lambda _: None)
found.open()
print(found.start("a"), flush=True)
threading.Event().wait()
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        log_says(tmp_path, "a", "ready")
        assert is_alive(pid)
    finally:
        process.kill()
        process.communicate()
    eventually(lambda: not is_alive(pid), DEADLINE_S, "the daemon is gone")


def test_control_socket_lists_kills_and_starts(tmp_path: Path) -> None:
    """The operations that a drill needs; rejections are returned as errors."""
    folder = tmp_path / ("deep" * 20) / ("path" * 20)
    folder.mkdir(parents=True)
    with supervised(folder, {"a": SLEEPER}, control=True) as (found, news):
        found.start("a")
        log_says(folder, "a", "ready")
        (state,) = ask(folder, ControlRequest("list"))
        assert state.status == "running"
        ask(folder, ControlRequest("kill", "a", signal.SIGKILL))
        ended = news.get(timeout=DEADLINE_S)
        assert isinstance(ended, Ended)
        assert ended.expected
        (state,) = ask(folder, ControlRequest("list"))
        assert (state.pid, state.status) == (0, "SIGKILL")
        with pytest.raises(CliError, match="does not run"):
            ask(folder, ControlRequest("kill", "a", signal.SIGKILL))
        with pytest.raises(CliError, match="no daemon 'b'"):
            ask(folder, ControlRequest("start", "b"))
        with pytest.raises(CliError, match="unknown operation"):
            ask(folder, ControlRequest("stop", "a"))
        (state,) = ask(folder, ControlRequest("start", "a"))
        restarted = news.get(timeout=DEADLINE_S)
        assert isinstance(restarted, Restarted)
        assert restarted.pid == state.pid


def test_a_start_while_a_killed_daemon_still_ends_is_not_lost(tmp_path: Path) -> None:
    """A drill that is interrupted just after its kill starts the daemon again before the process has ended."""
    with supervised(tmp_path, {"a": STUBBORN}, control=True) as (found, news):
        pid = found.start("a")
        log_says(tmp_path, "a", "ready")
        ask(tmp_path, ControlRequest("kill", "a", signal.SIGTERM))
        ask(tmp_path, ControlRequest("start", "a"))
        os.kill(pid, signal.SIGKILL)
        assert isinstance(news.get(timeout=DEADLINE_S), Ended)
        again = news.get(timeout=DEADLINE_S)
        assert isinstance(again, Restarted)
        assert is_alive(again.pid)


def test_other_command_lines_hold_from_the_next_start_on(tmp_path: Path) -> None:
    """`rk secure` sees which daemons still run by the former ones."""
    with supervised(tmp_path, {"a": SLEEPER}, control=True) as (found, _):
        with pytest.raises(CliError, match="no daemon 'begin'"):
            ask(tmp_path, ControlRequest("secure", "begin"))
        found._secure = lambda _: ({"a": [sys.executable, "-c", SLEEPER, "more"]}, {})
        found.start("a")
        log_says(tmp_path, "a", "ready")
        (state,) = ask(tmp_path, ControlRequest("secure", "begin"))
        assert not state.is_current
        ask(tmp_path, ControlRequest("kill", "a", signal.SIGKILL))
        eventually(lambda: not ask(tmp_path, ControlRequest("list"))[0].pid, DEADLINE_S, "its end")
        (state,) = ask(tmp_path, ControlRequest("start", "a"))
        assert state.is_current


def test_a_restart_needs_nobody_who_waits_for_it(tmp_path: Path) -> None:
    """The process that requested the restart may be killed before the daemon has ended; the daemon is started again
    nevertheless.

    Until then the daemon does not count as one that runs with the present command line. Tried: no `is_replaced` in
    `_restart`, or in `_state`.
    """
    with supervised(tmp_path, {"a": SLEEPER}, control=True) as (found, news):
        pid = found.start("a")
        log_says(tmp_path, "a", "ready")
        (state,) = ask(tmp_path, ControlRequest("restart", "a"))
        assert not state.is_current
        assert isinstance(news.get(timeout=DEADLINE_S), Ended)
        again = news.get(timeout=DEADLINE_S)
        assert isinstance(again, Restarted)
        assert again.pid != pid
        assert not again.by_itself


def test_nobody_to_ask_says_so(tmp_path: Path) -> None:
    """There is no `rk up` in that directory."""
    with pytest.raises(UnreachableError, match="no `rk up` runs"):
        ask(tmp_path, ControlRequest("list"))


def test_last_lines_are_the_last_that_say_anything(tmp_path: Path) -> None:
    """For the message about a daemon's end."""
    log = tmp_path / "log"
    log.write_text("".join(f"line {n}\n\n" for n in range(2000)))
    assert last_lines(log, 2) == ["line 1998", "line 1999"]
    assert last_lines(tmp_path / "nothing") == []


def test_ends_in_words() -> None:
    """The end is given as exit status or signal."""
    assert describe_end(0) == "exit status 0"
    assert describe_end(-9) == "SIGKILL"
    assert describe_end(-99) == "signal 99"


def test_a_daemon_that_dies_is_started_again_with_growing_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Restarts happen only after `keep_running`, and never for a daemon whose end was requested."""
    monkeypatch.setattr(supervisor, "RESTART_S", 0.02)
    with supervised(tmp_path, {"a": "raise SystemExit(3)", "b": SLEEPER}) as (found, news):
        found.start("a")
        first = news.get(timeout=DEADLINE_S)
        assert isinstance(first, Ended)
        assert first.again_in_s is None
        found.keep_running(True)
        found.start("a")
        found.start("b")
        pauses = []
        while len(pauses) < 3:
            told = news.get(timeout=DEADLINE_S)
            if isinstance(told, Ended):
                pauses.append(told.again_in_s)
            else:
                assert told.by_itself
        assert pauses == [0.02, 0.04, 0.08]
        found.keep_running(False)
        found.signal(["b"], signal.SIGTERM)
        assert found.wait_ended(["b"], DEADLINE_S) == []


def test_an_end_that_was_asked_for_is_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "RESTART_S", 0.02)
    with supervised(tmp_path, {"b": SLEEPER}) as (found, news):
        found.keep_running(True)
        found.start("b")
        log_says(tmp_path, "b", "ready")
        found.signal(["b"], signal.SIGKILL)
        told = news.get(timeout=DEADLINE_S)
        assert isinstance(told, Ended)
        assert told.expected
        assert told.again_in_s is None


def test_a_daemon_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    """The supervisor's thread continues: at first there is no room for the daemon's directory, later there is."""
    with supervised(tmp_path, {"a": "raise SystemExit(3)", "b": SLEEPER}, control=True) as (found, news):
        found.keep_running(True)
        found.start("a")
        assert isinstance(news.get(timeout=DEADLINE_S), Ended)
        (tmp_path / "a").rmdir()
        (tmp_path / "a").write_text("in the way of the directory")
        failed = news.get(timeout=DEADLINE_S)
        assert isinstance(failed, NotStarted)
        assert "File exists" in failed.why
        with pytest.raises(CliError, match="File exists"):
            ask(tmp_path, ControlRequest("start", "a"))
        (tmp_path / "a").unlink()
        assert isinstance(news.get(timeout=DEADLINE_S), Restarted | NotStarted)
        assert found.start("b")


def test_a_daemon_runs_without_a_log_where_none_can_be_opened(tmp_path: Path) -> None:
    """A full disk accepts no new file."""
    with supervised(tmp_path, {"a": SLEEPER}) as (found, _):
        (tmp_path / "a.log").mkdir()
        assert is_alive(found.start("a"))


def test_the_next_drill_continues_what_a_killed_drill_left_frozen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such a drill cannot continue its victim itself. Tried: without the look the process stays stopped."""
    given = Globals()
    given.data_dir = str(tmp_path)
    with supervised(tmp_path, {"a": SLEEPER}, control=True) as (found, _):
        found.start("a")
        log_says(tmp_path, "a", "ready")
        ask(tmp_path, ControlRequest("kill", "a", signal.SIGSTOP))
        assert [one.is_frozen for one in found.states()] == [True]
        _require_up(given)
        assert [one.is_frozen for one in found.states()] == [False]
        assert "continued a, which a drill" in capsys.readouterr().err
        _require_up(given)
        assert capsys.readouterr().err == ""


@pytest.mark.parametrize("op", ["start", "restart"])
def test_nothing_is_started_while_the_cluster_stops(tmp_path: Path, op: str) -> None:
    """A drill that ends at the same moment starts its victim again: a daemon that nobody would stop in order."""
    with supervised(tmp_path, {"a": SLEEPER, "b": SLEEPER}, control=True) as (found, _):
        found.start("a")
        log_says(tmp_path, "a", "ready")
        found.stop_starting()
        with pytest.raises(CliError, match="the cluster is being stopped"):
            ask(tmp_path, ControlRequest(op, "b"))
        assert [one.pid > 0 for one in found.states()] == [True, False]
