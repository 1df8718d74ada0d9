"""Recorded calls: the modules of the product through which an operation passes."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

from tests.support.docs.source import paragraph, table
from tests.support.sources import ROOT

#: Modules that only observe. Their calls, and all calls below them, do not count.
_WATCHERS: Final = ("simulation.checks", "master.standby")


class Recorder:
    """Records the module of each call while `is_on`, in this thread and in those that start later."""

    def __init__(self, packages: tuple[str, ...], process: Callable[[], str] = str) -> None:
        """`process` returns the name of the process that makes a call, or ""."""
        self.is_on = False
        #: (process, module) of each call, in order.
        self.calls: list[tuple[str, str]] = []
        self._process = process
        self._packages = packages
        self._names: dict[str, str] = {}
        #: The frame of a watcher, by thread.
        self._muted: dict[int, FrameType] = {}

    def start(self) -> None:
        """Install the hook."""
        threading.setprofile(self._hook)
        sys.setprofile(self._hook)

    def stop(self) -> None:
        """Remove the hook."""
        sys.setprofile(None)
        threading.setprofile(None)
        self.is_on = False

    def modules(self, process: str = "") -> list[str]:
        """Return the modules of the calls of processes whose names begin with `prefix`."""
        return [module for name, module in self.calls if name.startswith(process)]

    def _hook(self, frame: FrameType, event: str, _: Any) -> None:
        if not self.is_on:
            return
        thread = threading.get_ident()
        muted = self._muted.get(thread)
        if event == "return" and muted is frame:
            del self._muted[thread]
        elif event == "call" and muted is None:
            name = self._module(frame.f_code.co_filename)
            if name.startswith(_WATCHERS):
                self._muted[thread] = frame
            elif name.partition(".")[0] in self._packages:
                self.calls.append((self._process(), name))

    def _module(self, filename: str) -> str:
        """Return the dotted name of a source file, or "" for a file that is not ours."""
        if filename not in self._names:
            path = Path(filename)
            is_ours = path.is_absolute() and path.is_relative_to(ROOT) and ".venv" not in path.parts
            parts = path.relative_to(ROOT).with_suffix("").parts if is_ours else ()
            self._names[filename] = ".".join(parts).removesuffix(".__init__")
        return self._names[filename]


class Walk(NamedTuple):
    """The calls of one operation, as modules, in order."""

    title: str
    #: Calls, modules and changes of module before the present folders: as this recorder and as a review counted them.
    before: tuple[str, str]
    calls: list[str]

    def changes(self) -> int:
        """Return the number of calls whose module differs from that of the previous call."""
        return sum(1 for one, other in zip(self.calls, self.calls[1:], strict=False) if one != other)

    def figures(self) -> list[str]:
        """Return the row of the table of walks."""
        return [self.title, f"{len(self.calls)}, {len(set(self.calls))}, {self.changes()}", *self.before]

    def lines(self) -> list[str]:
        """Return the modules in the order of their first call, with the number of calls."""
        chain = " → ".join(f"{name} {count}" if count > 1 else name for name, count in Counter(self.calls).items())
        return [f"**{self.title}**", "", "```", *paragraph(chain), "```", ""]


def as_markdown(walks: list[Walk]) -> str:
    """Return the walks as a part of a page."""
    header = ["walk", "calls, modules, changes", "before, same recorder", "before, review"]
    lines = [*table(header, [walk.figures() for walk in walks]), ""]
    return "\n".join([*lines, *(line for walk in walks for line in walk.lines())])
