"""Output: tables for people, JSON for programs, the same content in both.

Everything is quoted in one place (`coord.security.printable`): standard output and standard error of a command write
only printable text. A console sends controls of its own, so it bypasses the quoting stream and quotes its texts itself.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TextIO, cast

import click
import msgspec
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from cli.common.errors import CliError
from coord.security.printable import QuotedStream, printable, unquoted

#: Width if the output is not a terminal: no line is cut off or continued, so `grep` finds whole records.
_PIPE_WIDTH: Final = 100_000
#: Cells to which a narrow terminal shortens a column of texts, before it leaves columns out.
SHORTENED_MIN: Final = 12
#: Cells between two columns.
_GAP: Final = 2

_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")


class _QuotedConsole(Console):
    """A console whose texts are printable; the controls are its own."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a text, a table or any other thing that can be shown."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def console(*, stderr: bool = False) -> Console:
    """Return a console that adapts to the terminal, and prints wide plain text into a pipe."""
    stream = unquoted(sys.stderr if stderr else sys.stdout)
    return _QuotedConsole(file=stream, width=None if stream.isatty() else _PIPE_WIDTH, highlight=False, soft_wrap=False)


class KeepsGoing:
    """Standard output of a command that must continue after its reader has gone, as in `rk up | head`.

    After the reader has gone, output is discarded. Other errors, for example a full disk, are raised.
    """

    def __init__(self, stream: TextIO, on_closed: Callable[[], object]) -> None:
        """`on_closed` is called once, when the reader has gone."""
        self._stream = stream
        self._on_closed = on_closed
        self._is_closed = False

    def write(self, text: str) -> int:
        """Write `text`, or discard it after the reader has gone."""
        if not self._is_closed:
            self._guarded(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush, or discard buffered data after the reader has gone."""
        if not self._is_closed:
            self._guarded(self._stream.flush)

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BrokenPipeError:
            self._is_closed = True
            # Buffered data must go somewhere, or the interpreter reports an error at exit.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            self._on_closed()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def keep_going(what: str) -> None:
    """Let this process outlive the reader of its standard output, with one message on standard error."""

    def closed() -> None:
        with contextlib.suppress(OSError):
            click.echo(f"rk: the reader of this output has gone; {what}", err=True)

    # The quoting stays outermost, so that a console finds the stream behind it.
    keeps_going = cast(TextIO, KeepsGoing(unquoted(sys.stdout), closed))
    sys.stdout = cast(TextIO, QuotedStream(keeps_going)) if isinstance(sys.stdout, QuotedStream) else keeps_going


def whole(payload: Any) -> Any:
    """Return a payload for JSON output with every field of every struct.

    Messages and znodes omit fields with default values; a reader of JSON output need not know the defaults.
    """
    if isinstance(payload, msgspec.Struct):
        config = payload.__struct_config__
        tag = {} if config.tag is None else {config.tag_field: config.tag}
        fields = zip(payload.__struct_encode_fields__, payload.__struct_fields__, strict=True)
        return {**tag, **{name: whole(getattr(payload, field)) for name, field in fields}}
    if isinstance(payload, Mapping):
        return {key: whole(value) for key, value in payload.items()}
    if isinstance(payload, list | tuple | set | frozenset):
        return [whole(one) for one in payload]
    return payload


def print_json(payload: Any) -> None:
    """Print one indented JSON document with every field."""
    sys.stdout.write(_json_text(msgspec.json.format(msgspec.json.encode(whole(payload)), indent=2)) + "\n")
    sys.stdout.flush()


def _json_text(document: bytes) -> str:
    """Return a document with JSON's own escape for DEL. Standard output escapes the others as JSON would."""
    return document.decode().replace("\x7f", "\\u007f")


def report(payload: Any, text: str, *, as_json: bool) -> None:
    """Print the result of a command: `payload` as JSON, or `text`."""
    if as_json:
        print_json(payload)
    else:
        click.echo(text)


def print_json_line(payload: Any) -> None:
    """Print one line of NDJSON and flush it, because a reader may wait for it."""
    sys.stdout.write(_json_text(msgspec.json.encode(whole(payload))) + "\n")
    sys.stdout.flush()


def confirm(question: str, if_not: str, *, as_json: bool) -> None:
    """Ask for confirmation. Raise CliError with `if_not` if no one can answer, for example with JSON output."""
    if as_json:
        raise CliError(f"{if_not}: this needs a confirmation", "Give --yes as well.")
    try:
        is_yes = click.confirm(question)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        is_yes = False
    if not is_yes:
        raise CliError(f"{if_not}: the answer was not yes", "Give --yes if no one can answer.")


class FittingTable(Table):
    """A table with one line for each row, whatever the width.

    If the terminal is too narrow, columns of texts are shortened, the widest first, down to SHORTENED_MIN cells. After
    that, columns are left out from the right, and a line below names them. The first column, which has the names, is
    shortened last.
    """

    def __init__(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        super().__init__(title=title or None)
        self._titles = [one.removeprefix("#") for one in columns]
        self._is_number = [one.startswith("#") for one in columns]
        # Text, not markup: a key such as [abc] must be printed unchanged. A second line would be another record.
        self._cells = [[_one_line(cell) for cell in row] for row in rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the table for the width of the output."""
        natural = [
            max(cell_len(title), *(row[at].cell_len for row in self._cells), 0) for at, title in enumerate(self._titles)
        ]
        widths = fit(natural, [cell_len(one) for one in self._titles], self._is_number, options.max_width)
        shown = Table(
            title=self.title,
            title_justify="left",
            title_style="bold",
            box=None,
            pad_edge=False,
            padding=(0, _GAP, 0, 0),
        )
        for title, is_number, width in zip(self._titles, self._is_number, widths, strict=False):
            shown.add_column(
                Text(title),
                justify="right" if is_number else "left",
                header_style="dim",
                width=width,
                no_wrap=True,
                overflow="ellipsis",
            )
        for row in self._cells:
            shown.add_row(*row[: len(widths)])
        for line in console.render_lines(shown, options, pad=False):
            yield from _without_end_spaces(line)
            yield Segment.line()
        if left_out := self._titles[len(widths) :]:
            names = ", ".join(one or "(no title)" for one in left_out)
            yield Text(f"not shown: {names} (needs a wider terminal, a pipe, or --json)", style="dim")


def _without_end_spaces(line: Sequence[Segment]) -> list[Segment]:
    """Return a line without the spaces that fill its last cells: a pipe's reader compares whole lines."""
    kept = list(line)
    while kept and not kept[-1].text.rstrip():
        kept.pop()
    if kept:
        kept[-1] = Segment(kept[-1].text.rstrip(), kept[-1].style)
    return kept


def fit(natural: Sequence[int], least: Sequence[int], is_number: Sequence[bool], width: int) -> list[int]:
    """Return the widths of the columns that are shown, from the left.

    `natural`: widths that show everything. `least`: widths of the titles. Numbers are never shortened.
    """
    for count in range(len(natural), 1, -1):
        widths = list(natural[:count])
        floors = [
            natural[at] if at == 0 or is_number[at] else min(natural[at], max(SHORTENED_MIN, least[at]))
            for at in range(count)
        ]
        over = sum(widths) + _GAP * (count - 1) - width
        while over > 0:
            at = max(range(count), key=lambda one: (widths[one] > floors[one], widths[one]))
            if widths[at] == floors[at]:
                break
            widths[at] -= 1
            over -= 1
        if over <= 0:
            return widths
    return [min(one, width) for one in natural[:1]]


def _one_line(cell: object) -> Text:
    # Quoted before it is measured: an escape is wider than the character.
    text = cell if isinstance(cell, Text) else Text(printable(str(cell)))
    return text if "\n" not in text.plain else Text(" ".join(text.plain.split("\n")), style=text.style)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Return a table without a frame; a column whose name begins with `#` has numbers, right-aligned."""
    return FittingTable(title, columns, rows)


def size(count: int) -> str:
    """Return bytes for people, such as `605 MB` (powers of 1000)."""
    value = float(count)
    for unit in _UNITS:
        if value < 999.5 or unit == _UNITS[-1]:
            return f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError(f"unreachable: {count}")


def estimated(count: int, *, is_measured: bool) -> str:
    """Return bytes for people, such as `605 MB`, or `~605 MB` unless servers have measured them. No bytes are `0 B`."""
    return f"{'' if is_measured or not count else '~'}{size(count)}"


def count(number: int, noun: str) -> str:
    """Return `1 master`, `2 masters`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def in_transition(number: int, parked: int, noun: str = "") -> str:
    """Return `3 regions in transition, 1 of them parked`. Parked ones are in transition everywhere."""
    what = count(number, noun) if noun else str(number)
    return f"{what} in transition{f', {parked} of them parked' if parked else ''}"


def key_range(start_key: str, end_key: str) -> str:
    """Return a region's half-open range, such as `[aalib, acl2)`; "" means no bound."""
    return f"[{start_key or '-∞'}, {end_key or '+∞'})"


def clock(at_ms: int) -> str:
    """Return the time of day in the local time zone with milliseconds."""
    return datetime.fromtimestamp(at_ms / 1000).strftime("%H:%M:%S.%f")[:-3]


def moment(at_ms: int) -> str:
    """Return date and time in the local time zone with milliseconds and the zone's offset from UTC."""
    at = datetime.fromtimestamp(at_ms / 1000).astimezone()
    return f"{at:%Y-%m-%d %H:%M:%S}.{at_ms % 1000:03d}{at:%z}"


def seconds(value: float) -> str:
    """Return a duration, such as `0.42 s` or `12.3 s`."""
    return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"


def rough(seconds_: int) -> str:
    """Return a long duration in its largest unit, rounded: `45 s`, `60 min`, `5 h`, `7 d`."""
    for unit_s, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds_ >= 2 * unit_s:
            return f"{round(seconds_ / unit_s)} {unit}"
    return f"{seconds_} s"


def invocation(argv: Sequence[str] | None = None) -> str:
    """Return how `rk` was called, for suggested commands: by name, by relative path, or as a module."""
    program = Path((argv or sys.argv)[0])
    if program.name == "__main__.py":
        return f"{shown(Path(sys.executable))} -m cli"
    if any((Path(part) / program.name).resolve() == program.resolve() for part in os.get_exec_path() if part):
        return program.name
    return shown(program)


def shown(path: Path) -> str:
    """Return a path below the working directory as relative, any other path as absolute."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
