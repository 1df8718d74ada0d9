"""The end of a drill's cleanup: the cluster has gone, or Ctrl-C comes again."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from cli.drill.cleanup import ClusterWatch, deferred_signals, has_ended, interrupted_by_signals
from cli.drill.histories import HistoryClients
from cli.drill.load import Load
from cli.up.control import listen
from regions.records.members import Member
from regions.records.model import RegionRecord
from regionserver.client import Attempt, RegionClient
from tests.support.helpers import eventually

SLOW_S = 60.0


def test_without_a_socket_or_a_listener_the_cluster_has_ended(tmp_path: Path) -> None:
    assert has_ended(tmp_path)
    listener = listen(tmp_path)
    assert not has_ended_while_silent(tmp_path)
    listener.close()
    assert has_ended(tmp_path)


def has_ended_while_silent(data_dir: Path) -> bool:
    """Ask a supervisor that accepts connections and does not answer."""
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(has_ended(data_dir)), daemon=True)
    thread.start()
    thread.join(0.2)
    return bool(found)


def test_the_watch_tells_the_end_once(tmp_path: Path) -> None:
    told: list[str] = []
    with ClusterWatch(tmp_path, lambda: told.append("ended")) as watch:
        assert watch.is_gone
    assert told == ["ended"]


def test_an_end_during_the_cleanup_is_noticed(tmp_path: Path) -> None:
    listener = listen(tmp_path)
    answering = threading.Thread(target=answer_all, args=(listener,), daemon=True)
    answering.start()
    ended = threading.Event()
    with ClusterWatch(tmp_path, ended.set) as watch:
        assert not watch.is_gone
        listener.shutdown(2)
        listener.close()
        assert ended.wait(SLOW_S)
        assert watch.is_gone


def answer_all(listener: object) -> None:
    """Answer each request as `rk up` does, until the listener is closed."""
    try:
        while True:
            connection, _ = listener.accept()  # type: ignore[attr-defined]
            connection.recv(4096)
            connection.sendall(b'{"ok": true}\n')
            connection.close()
    except OSError:
        return


def test_the_first_interruption_of_a_cleanup_is_deferred_and_the_second_leaves() -> None:
    said: list[str] = []
    left: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    with deferred_signals(said.append, left.append):
        os.kill(os.getpid(), signal.SIGINT)
        assert (len(said), left) == (1, [])
        os.kill(os.getpid(), signal.SIGTERM)
    assert (len(said), left) == (2, [130])
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_drill_whose_terminal_ends_is_interrupted_as_by_ctrl_c(number: signal.Signals) -> None:
    """So it restores what it has broken. During the cleanup both are deferred."""
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), interrupted_by_signals():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before
    said: list[str] = []
    with deferred_signals(said.append):
        os.kill(os.getpid(), number)
    assert len(said) == 1


def test_the_second_signal_of_a_terminals_end_does_not_interrupt_the_cleanup() -> None:
    """The kernel and the shell each send one: before the signals of the cleanup are deferred, or later."""
    before = signal.getsignal(signal.SIGHUP)
    said: list[str] = []

    def drill() -> None:
        try:
            os.kill(os.getpid(), signal.SIGHUP)
        finally:
            os.kill(os.getpid(), signal.SIGHUP)
            with deferred_signals(said.append):
                os.kill(os.getpid(), signal.SIGHUP)
            said.append("restored")

    with pytest.raises(KeyboardInterrupt), interrupted_by_signals():
        drill()
    assert said == ["restored"]
    assert signal.getsignal(signal.SIGHUP) is before


def test_under_nohup_a_drill_survives_its_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupted_by_signals():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


RECORD = RegionRecord("t", "t.0", members=tuple(Member(number, f"s{number}") for number in (1, 2, 3)), next_number=4)


class LostCluster:
    """Calls that fail an attempt for ever; each attempt is shown to the drill, which ends the call by raising."""

    def __init__(self, on_attempt: object) -> None:
        self.on_attempt = on_attempt
        self.calls = 0

    def get(self, *_: object) -> bytes | None:
        self.calls += 1
        while True:
            self.on_attempt(Attempt("t.0", "unreachable"))  # type: ignore[operator]
            threading.Event().wait(0.01)

    def write(self, *_: object) -> int:
        raise AssertionError("rows are not deleted after the cluster has gone")

    delete = compare_and_set = put = get  # all wait alike

    def close(self) -> None:
        """Do nothing."""


class OneRegion:
    """A locator of one region."""

    def regions(self, _table: str) -> list[RegionRecord]:
        return [RECORD]


def test_a_load_whose_cluster_has_gone_stops_and_checks_nothing() -> None:
    client = RegionClient(OneRegion())  # type: ignore[arg-type]
    load = Load(client, "t")
    calls = load._client = LostCluster(load._attempted)  # type: ignore[assignment]
    load._driver.start()
    eventually(lambda: calls.calls, what="a request is under way")
    load.abandon()
    report = load.stop()
    assert (report.keys_checked, report.violations) == (0, [])


def test_histories_whose_cluster_has_gone_end_without_reading_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = HistoryClients(OneRegion(), {"t": [RECORD]}, 1000.0, seed=1)  # type: ignore[arg-type]
    for one in clients._clients:
        one._calls = LostCluster(one._attempted)  # type: ignore[assignment]
        one.thread.start()
    eventually(lambda: all(one._calls.calls for one in clients._clients), what="requests are under way")  # type: ignore[attr-defined]
    clients.abandon()
    found = clients.stop()
    assert not found.held
    assert "the cluster has gone" in str(found)
