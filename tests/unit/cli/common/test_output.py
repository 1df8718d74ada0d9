"""Reports for programs always have every field; and no command acts without confirmation."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from rich.console import Console

from cli.common import output
from cli.common.errors import CliError
from cli.common.views.display import JsonDisplay, PlainDisplay, output_may_fail
from coord.security.printable import QuotedStream, printable, quoted
from regions.messages import Tables, TableSummary
from regions.records.model import Incarnation, TableIntent, TableRecord, TableState


@pytest.mark.parametrize("show", [output.print_json, output.print_json_line])
def test_a_report_has_the_fields_that_have_their_default(show: object, capsys: pytest.CaptureFixture[str]) -> None:
    """Znodes and messages omit default values; a script would find no `state` of a RUNNING table."""
    found = Tables([TableSummary(TableRecord("t", "orders"), 1, 1, 1, 0, 0)])
    assert b"RUNNING" not in msgspec.json.encode(found)
    assert callable(show)
    show({"found": found, "one": (Incarnation("s", 1),)})
    told = json.loads(capsys.readouterr().out)
    assert told["one"] == [{"uuid": "s", "start_code": 1}]
    assert told["found"]["type"] == "Tables"
    table = told["found"]["tables"][0]["table"]
    assert set(table) == set(TableRecord.__struct_fields__)
    assert (table["state"], table["intent"]) == (TableState.RUNNING.value, TableIntent.ENABLED.value)
    assert msgspec.convert(table, TableRecord) == found.tables[0].table


def test_with_json_nobody_is_asked_and_nothing_is_done() -> None:
    """`rk table delete t --json` in a script is not a confirmation."""
    with pytest.raises(CliError, match="nothing was deleted") as refused:
        output.confirm("delete table t?", "nothing was deleted", as_json=True)
    assert "--yes" in refused.value.hint


def test_a_reader_that_has_gone_ends_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    """`rk up | head`: further output is dropped, and standard error says so once."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        output.keep_going("the cluster goes on")
        plain, ndjson = PlainDisplay(output.console()), JsonDisplay()
        plain.say("before")
        assert os.read(reader, 100) == b"before\n"
        os.close(reader)
        for display in (plain, ndjson):
            display.begin("store", "starting the store")
            display.update(1, 2, "one of them")
            display.end()
            display.say("up")
        output.print_json_line({"event": "up"})
        sys.stdout.write("and the summary\n")
        sys.stdout.flush()
    assert capsys.readouterr().err == "rk: the reader of this output has gone; the cluster goes on\n"


def test_other_errors_of_the_output_are_raised(monkeypatch: Any) -> None:
    """A full disk is not a closed reader; `output_may_fail` handles the disk."""
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        output.keep_going("the cluster goes on")
        with pytest.raises(OSError, match="No space"):
            output.print_json_line({"event": "up"})
        with output_may_fail():
            output.print_json_line({"event": "up"})
        with pytest.raises(OSError, match="No space"):
            full.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())


def test_a_process_whose_reader_has_gone_ends_well() -> None:
    """The interpreter prints no error about buffered output at exit, and the exit status does not change."""
    program = (
        "from cli.common import output\nfrom cli.common.views import display\n"
        "output.keep_going('it goes on')\n"
        "shown = display.PlainDisplay(output.console())\n"
        "for number in range(20_000): shown.say(f'line {number}')\n"
        "raise SystemExit(7)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "line 0\n"
        process.stdout.close()
        assert process.stderr.read() == "rk: the reader of this output has gone; it goes on\n"
        assert process.wait(60) == 7


_COLUMNS = ["region", "#size", "keys", "server"]
_ROWS = [["2ec8ba0c.0000", "12 MB", "[aaaaaaaaaaaaaaaaaaaaaaaaa, bbbbbbbbbbb)", "127.0.0.1:34403\nand more"]]


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (90, ["2ec8ba0c.0000  12 MB  [aaaaaaaaaaaaaaaaaaaaaaaaa, bbbbbbbbbbb)  127.0.0.1:34403 and more"]),
        (60, ["2ec8ba0c.0000  12 MB  [aaaaaaaaaaaaaaaa…  127.0.0.1:34403 a…"]),
        (30, ["2ec8ba0c.0000  12 MB", "not shown: keys, server (needs"]),
        (8, ["2ec8ba0…"]),
    ],
)
def test_a_row_is_one_line_at_every_width(width: int, expected: list[str]) -> None:
    """Texts are shortened, then columns are left out from the right; the name comes last."""
    console = Console(width=width, file=io.StringIO())
    console.print(output.table("", _COLUMNS, _ROWS))
    assert isinstance(console.file, io.StringIO)
    _, *lines = console.file.getvalue().splitlines()
    assert [line.rstrip() for line in lines[: len(expected)]] == expected
    assert all(len(one) <= width for one in lines)


def test_no_line_of_a_table_ends_with_spaces() -> None:
    """A reader of a pipe compares whole lines; short and empty last cells are not filled up.

    Tried: without _without_end_spaces the first two lines end with spaces.
    """
    console = Console(width=100, file=io.StringIO())
    console.print(output.table("some rows", ["a", "b"], [["1", ""], ["2", "a long cell"]]))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "some rows\na  b\n1\n2  a long cell\n"


def test_parked_regions_are_some_of_those_in_transition() -> None:
    assert output.in_transition(0, 0, "region") == "0 regions in transition"
    assert output.in_transition(1, 1, "region") == "1 region in transition, 1 of them parked"
    assert output.in_transition(7, 2) == "7 in transition, 2 of them parked"


def test_a_column_is_shortened_to_its_limit_before_one_is_left_out() -> None:
    """At the limit all columns are there; with one cell less the last one is missing."""
    limit = 13 + output.SHORTENED_MIN + 2
    assert output.fit([13, 40], [6, 4], [False, False], limit) == [13, output.SHORTENED_MIN]
    assert output.fit([13, 40], [6, 4], [False, False], limit - 1) == [13]
    assert output.fit([13, 40], [6, 4], [False, True], 55) == [13, 40]
    assert output.fit([13, 40], [6, 4], [False, True], 54) == [13]


def test_a_pipe_gets_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """`rk region list | grep` must not find half a record."""
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    output.console().print(output.table("", ["a", "b"], [["x" * 300, "y" * 3000], ["1", "2"]]))
    assert isinstance(sys.stdout, io.StringIO)
    lines = sys.stdout.getvalue().splitlines()
    assert len(lines) == 3
    assert "…" not in lines[1]


def test_a_console_quotes_texts_and_keeps_its_own_controls(monkeypatch: Any) -> None:
    """Colors pass, names of strangers do not: in a line, with markup, and in a cell of a table."""
    stream = io.StringIO()
    stream.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdout", QuotedStream(stream))
    monkeypatch.setenv("TERM", "xterm")
    shown = output.console()
    shown.width = 80
    shown.print("evil\x1b]52;c;x\x07", style="red")
    shown.print(output.table("t", ["name", "more"], [["a\x1b[2J", "\u202eb"], ["aaaaaaaaaaaa", "c"]]))
    text = stream.getvalue()
    assert "\x1b[31m" in text
    assert "evil\\x1b]52;c;x" in text
    assert "\x07" not in text
    assert "\x1b[2J" not in text
    assert "\u202e" not in text
    lines = [line for line in text.splitlines() if "\\u202eb" in line or line.startswith("aaaaaaaaaaaa")]
    assert len({line.index("\\u202eb" if "\\u202e" in line else "c") for line in lines}) == 1, "the columns are aligned"


def test_json_is_escaped_by_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Every character that a terminal obeys or hides; the document says the same."""
    name = "".join(chr(code) for code in range(0x3000))
    with quoted():
        output.print_json({"name": name})
        output.print_json_line({"name": name})
    said = capsys.readouterr().out
    assert printable(said) == said
    lines = said.splitlines()
    assert json.loads(lines[-1]) == json.loads("".join(lines[:-1])) == {"name": name}
