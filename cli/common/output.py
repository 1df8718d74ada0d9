"""Printing: tables for people, JSON for programs, the same content in both."""

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
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.common.errors import CliError

#: Width when the output is no terminal: wide enough that nothing a script might look for is cut off.
_PIPE_WIDTH: Final = 200

_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")


def console(*, stderr: bool = False) -> Console:
    """A console that adapts to the terminal, and prints plain wide text into a pipe."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else _PIPE_WIDTH, highlight=False, soft_wrap=False)


class KeepsGoing:
    """Standard output of a command that must not end when nobody reads it any more, as in `rk up | head`.

    After the reader has gone, everything else goes nowhere. Other errors, a full disk for instance, are raised.
    """

    def __init__(self, stream: TextIO, on_closed: Callable[[], object]) -> None:
        """`on_closed` is called once, when the reader has gone."""
        self._stream = stream
        self._on_closed = on_closed
        self._is_closed = False

    def write(self, text: str) -> int:
        """Write `text`, or drop it when nobody reads."""
        if not self._is_closed:
            self._guarded(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush, or drop what is buffered when nobody reads."""
        if not self._is_closed:
            self._guarded(self._stream.flush)

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except BrokenPipeError:
            self._is_closed = True
            # What the stream still buffers must go somewhere, or the interpreter complains at exit.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            self._on_closed()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def keep_going(what: str) -> None:
    """Let this process outlive the reader of its standard output, and say so once on standard error."""

    def closed() -> None:
        with contextlib.suppress(OSError):
            click.echo(f"rk: nobody reads this output any more; {what}", err=True)

    sys.stdout = cast(TextIO, KeepsGoing(sys.stdout, closed))


def whole(payload: Any) -> Any:
    """What is to become JSON with every field of every struct: between processes, and in znodes, those that have their
    default are left out; who reads a report need not know the defaults."""
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
    """One JSON document, indented. Structs, dicts and lists of them; every field is there."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(whole(payload)), indent=2).decode() + "\n")
    sys.stdout.flush()


def print_json_line(payload: Any) -> None:
    """One line of NDJSON, flushed: its reader may be waiting for it."""
    sys.stdout.write(msgspec.json.encode(whole(payload)).decode() + "\n")
    sys.stdout.flush()


def confirm(question: str, if_not: str, *, as_json: bool) -> None:
    """Ask, and go on if the answer is yes. Raises CliError saying `if_not` when there is nobody to answer, as where
    the output is for a program."""
    if as_json:
        raise CliError(f"{if_not}: this is not done without being asked", "Give --yes as well.")
    try:
        click.confirm(question, abort=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise CliError(f"{if_not}: the answer was not yes", "Give --yes where nobody can be asked.") from None


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table without a frame; a column whose name begins with `#` is numbers, set to the right."""
    found = Table(
        title=title or None, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for column in columns:
        numeric = column.startswith("#")
        found.add_column(
            Text(column.removeprefix("#")), justify="right" if numeric else "left", header_style="dim", overflow="fold"
        )
    for row in rows:
        # Text, not markup: a key such as [abc] must come out as it is.
        found.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    return found


def size(count: int) -> str:
    """Bytes for people, as `605 MB` (powers of 1000)."""
    value = float(count)
    for unit in _UNITS:
        if value < 999.5 or unit == _UNITS[-1]:
            return f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError(f"unreachable: {count}")


def count(number: int, noun: str) -> str:
    """`1 master`, `2 masters`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def key_range(start_key: str, end_key: str) -> str:
    """A region's half-open range, as `[aalib, acl2)`; nothing stands for no bound."""
    return f"[{start_key or '-∞'}, {end_key or '+∞'})"


def clock(at_ms: int) -> str:
    """Time of day in this machine's zone with milliseconds."""
    return datetime.fromtimestamp(at_ms / 1000).strftime("%H:%M:%S.%f")[:-3]


def seconds(value: float) -> str:
    """A duration, as `0.42 s` or `12.3 s`."""
    return f"{value:.2f} s" if value < 10 else f"{value:.1f} s"


def invocation(argv: Sequence[str] | None = None) -> str:
    """Return how `rk` was called, so that a suggestion can be pasted: by name, by relative path, or as a module."""
    program = Path((argv or sys.argv)[0])
    if program.name == "__main__.py":
        return f"{shown(Path(sys.executable))} -m cli"
    if any((Path(part) / program.name).resolve() == program.resolve() for part in os.get_exec_path() if part):
        return program.name
    return shown(program)


def shown(path: Path) -> str:
    """A path, relative to here when it lies below, else absolute."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
