"""Progress of `rk up`: live bars on a terminal, plain lines in a pipe, NDJSON for programs.

A start is a sequence of phases. Each has a title, an optional count that grows to a total, and its duration. At most
one phase is open at a time.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn

from cli.common import output

#: A plain line is printed each time another such share of the total is done.
_PLAIN_STEP: Final = 0.25


class PhaseTime(msgspec.Struct):
    """A finished phase."""

    name: str
    seconds: float
    detail: str = ""


class Display:
    """Records the phases' durations; subclasses show them."""

    def __init__(self) -> None:
        self.phases: list[PhaseTime] = []
        self._name = ""
        self._began_s = 0.0

    def begin(self, name: str, title: str, total: int = 0) -> None:
        """Open the phase `name` with the title `title`. `total` 0: nothing to count."""
        assert not self._name, f"phase {self._name} is still open"
        self._name = name
        self._began_s = time.monotonic()
        self._show_begin(title, total)

    def update(self, done: int, total: int, detail: str = "") -> None:
        """Show the progress of the open phase."""
        self._show_update(done, total, detail)

    def end(self, detail: str = "") -> float:
        """Close the phase and return its seconds."""
        seconds = time.monotonic() - self._began_s
        self.phases.append(PhaseTime(self._name, round(seconds, 3), detail))
        self._name = ""
        self._show_end(seconds, detail)
        return seconds

    def say(self, text: str, **fields: Any) -> None:
        """Print a line that belongs to no phase; `fields` are its content for programs."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop the live display. `say` still prints lines afterwards. A second call does nothing."""
        self._name = ""

    def _show_begin(self, title: str, total: int) -> None:
        raise NotImplementedError

    def _show_update(self, done: int, total: int, detail: str) -> None:
        raise NotImplementedError

    def _show_end(self, seconds: float, detail: str) -> None:
        raise NotImplementedError


class LiveDisplay(Display):
    """Bars at a terminal."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=28),
            TextColumn("{task.fields[count]}", justify="right"),
            TextColumn("[dim]{task.fields[detail]}"),
            console=console,
            transient=False,
        )
        self._task: TaskID | None = None
        self._progress.start()

    def say(self, text: str, **_fields: Any) -> None:
        """Print a line above the bars."""
        with output_may_fail():
            self.console.print(text, markup=False)

    def close(self) -> None:
        """Stop, and leave the bars as they are."""
        super().close()
        self._progress.stop()

    def _show_begin(self, title: str, total: int) -> None:
        self._task = self._progress.add_task(title, total=total or None, count="", detail="")

    def _show_update(self, done: int, total: int, detail: str) -> None:
        assert self._task is not None
        count = f"{done} of {total}" if total else ""
        self._progress.update(self._task, completed=done, total=total or None, count=count, detail=detail)

    def _show_end(self, seconds: float, detail: str) -> None:
        assert self._task is not None
        task = next(one for one in self._progress.tasks if one.id == self._task)
        total = task.total or 1
        self._progress.update(self._task, completed=total, total=total, detail=f"{output.seconds(seconds)}  {detail}")


class PlainDisplay(Display):
    """One line per event."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console
        self._title = ""
        self._shown = ("", 0)

    def say(self, text: str, **_fields: Any) -> None:
        """Print the line unchanged."""
        with output_may_fail():
            self.console.print(text, markup=False)

    def _show_begin(self, title: str, _total: int) -> None:
        self._title = title
        self._shown = ("", 0)

    def _show_update(self, done: int, total: int, detail: str) -> None:
        step = int(done / (total * _PLAIN_STEP)) if total else 0
        words = detail.strip("0123456789 ")  # a changed count alone is not worth a line
        if (words, step) == self._shown:
            return
        self._shown = (words, step)
        count = f"{done} of {total}" if total else ""
        self.say(f"  {self._title}: {'  '.join(part for part in (count, detail) if part)}")

    def _show_end(self, seconds: float, detail: str) -> None:
        self.say(f"{self._title}: {output.seconds(seconds)}" + (f"  ({detail})" if detail else ""))


class JsonDisplay(Display):
    """NDJSON on standard output: `{"event": "phase", "name": …, "seconds": …}` and the fields of `say`."""

    def say(self, text: str, **fields: Any) -> None:
        """Print one line."""
        with output_may_fail():
            output.print_json_line({"event": "note", "text": text, **fields})

    def _show_begin(self, title: str, total: int) -> None:
        pass

    def _show_update(self, done: int, total: int, detail: str) -> None:
        pass

    def _show_end(self, _seconds: float, _detail: str) -> None:
        with output_may_fail():
            output.print_json_line({"event": "phase", **output.whole(self.phases[-1])})


@contextlib.contextmanager
def output_may_fail() -> Iterator[None]:
    """Ignore errors of standard output, for example a file on a full disk.

    BrokenPipeError is raised: it ends `rk` as it ends other commands.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError:
        pass


def choose(*, as_json: bool) -> Display:
    """Return the display that fits standard output."""
    if as_json:
        return JsonDisplay()
    if sys.stdout.isatty():
        return LiveDisplay(output.console())
    return PlainDisplay(output.console())
