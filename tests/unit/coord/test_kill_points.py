"""Points at which a test ends a process: `coord/kill_points.py`."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from coord import kill_points
from coord.raft.membership import Configuration


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the signals that the process has sent itself."""
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _pid, number: sent.append(number))
    for variable in (kill_points.KILL_VARIABLE, kill_points.STOP_VARIABLE, kill_points.NOTE_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    return sent


def test_no_point_is_wanted_unless_a_variable_is_set(signals: list[int]) -> None:
    assert not kill_points.is_wanted()
    kill_points.reached("WriteMeta")
    assert signals == []


def test_the_process_dies_at_its_point_only(signals: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kill_points.KILL_VARIABLE, "WriteMeta")
    assert kill_points.is_wanted()
    kill_points.reached("BeginSlot")
    assert signals == []
    kill_points.reached("WriteMeta")
    assert signals == [signal.SIGKILL]


def test_the_process_stops_once(signals: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kill_points.STOP_VARIABLE, "WriteMeta")
    kill_points.reached("WriteMeta")
    kill_points.reached("WriteMeta")
    assert signals == [signal.SIGSTOP]


def test_a_file_names_the_point_of_one_process(
    signals: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The file is written while the process runs. Who dies removes it, so the next process that comes there lives."""
    file = tmp_path / "point"
    monkeypatch.setenv(kill_points.KILL_VARIABLE, f"@{file}")
    kill_points.reached("Create regions")
    file.write_text("Create regions")
    kill_points.reached("SetData regions")
    assert (signals, file.exists()) == ([], True)
    kill_points.reached("Create regions")
    assert (signals, file.exists()) == ([signal.SIGKILL], False)
    kill_points.reached("Create regions")
    assert signals == [signal.SIGKILL]


def test_a_file_may_name_a_later_time_at_the_point(
    signals: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A deletion writes the table's record four times, and each of these writes is a step of its own."""
    file = tmp_path / "point"
    monkeypatch.setenv(kill_points.KILL_VARIABLE, f"@{file}")
    file.write_text("SetData tables #3")
    for _ in range(2):
        kill_points.reached("SetData tables")
        kill_points.reached("SetData regions")
    assert (signals, file.exists()) == ([], True)
    kill_points.reached("SetData tables")
    assert (signals, file.exists()) == ([signal.SIGKILL], False)


def test_a_process_stops_at_the_point_in_a_file(
    signals: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The file may name another point later: the process stops there as well."""
    file = tmp_path / "point"
    monkeypatch.setenv(kill_points.STOP_VARIABLE, f"@{file}")
    for point in ("wrote OPENED", "wrote CLOSED"):
        file.write_text(point)
        kill_points.reached(point)
        kill_points.reached(point)
    assert signals == [signal.SIGSTOP] * 2


def test_a_configuration_is_named_by_its_voters_and_newcomers(
    signals: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(kill_points.KILL_VARIABLE, "config appended 2+1")
    kill_points.config_reached("appended", Configuration([1, 2]))
    kill_points.config_reached("committed", Configuration([1, 2], [3]))
    assert signals == []
    kill_points.config_reached("appended", Configuration([1, 2], [3]))
    assert signals == [signal.SIGKILL]


def test_the_points_that_a_process_passes_are_noted(
    signals: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    monkeypatch.setenv(kill_points.NOTE_VARIABLE, str(notes))
    kill_points.reached("Create regions")
    kill_points.reached("wrote OPENED")
    assert notes.read_text().splitlines() == ["Create regions", "wrote OPENED"]
    assert signals == []
