"""The keys of `rk watch --live`: order, filter, pause, end."""

from __future__ import annotations

from cli.diagnose.follow import Line
from cli.diagnose.live.controls import Controls, InTransition


def region(name: str, since_ms: int, server: str, attempt: int) -> InTransition:
    line = Line(since_ms, "t", name, 0, "", "", "", "OPENING", server, "", "open order", attempt, 1, "", "", 0)
    return InTransition(since_ms, line)


FOUND = [region("t.2", 30, "server-1", 0), region("t.1", 20, "server-3", 4), region("t.3", 10, "server-2", 1)]


def order(keys: str) -> list[str]:
    controls = Controls()
    controls.press(keys)
    return [one.line.region for one in controls.chosen(FOUND)]


def test_orders() -> None:
    """By age, region, server, attempts, and again by age; `r` reverses. Tried: without the sort of a key its case
    fails."""
    assert order("") == ["t.3", "t.1", "t.2"]
    assert order("s") == ["t.1", "t.2", "t.3"]
    assert order("ss") == ["t.2", "t.3", "t.1"]
    assert order("sss") == ["t.1", "t.3", "t.2"]
    assert order("ssss") == order("")
    assert order("r") == ["t.2", "t.1", "t.3"]


def test_a_filter_is_typed_corrected_kept_and_dropped() -> None:
    """While it is typed, letters are not commands."""
    controls = Controls()
    controls.press("/serverx")
    assert "filter: serverx_" in controls.words()
    controls.press("\x7f-3\r")
    assert [one.line.region for one in controls.chosen(FOUND)] == ["t.1"]
    assert not controls.has_quit
    assert "(server-3)" in controls.words()
    controls.press("\x1b")
    assert len(controls.chosen(FOUND)) == 3


def test_pause_end_and_keys_without_a_meaning() -> None:
    controls = Controls()
    controls.press("p")
    assert controls.is_paused
    assert controls.words().startswith("PAUSED")
    controls.press("\x1b[A")
    controls.press(" x")
    assert not controls.is_paused
    controls.press("q")
    assert controls.has_quit
