"""The keys of `rk watch --live`: order, filter and pause of the regions in transition. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from cli.diagnose.follow import Line, describe

#: Orders of the regions, in the sequence in which `s` chooses them.
SORTS: Final = ("age", "region", "server", "attempt")
_ENTER: Final = "\r\n"
_BACKSPACE: Final = "\x7f\b"
_ESCAPE: Final = "\x1b"


class InTransition(NamedTuple):
    """A region in transition, and the time since which it has been in its state, or has failed to open. At the
    beginning of the watch the time comes from the store."""

    since_ms: int
    line: Line


class Controls:
    """The operator's choice of sorting and filter for the list, and whether the list is paused."""

    def __init__(self) -> None:
        self.sort = SORTS[0]
        self.is_reversed = False
        self.text = ""
        self.is_paused = False
        #: Whether keys are letters of the filter.
        self.is_typing = False
        self.has_quit = False

    def press(self, keys: str) -> None:
        """Process input of the terminal. Sequences of arrows and function keys have no effect."""
        if keys.startswith(_ESCAPE) and len(keys) > 1:
            return
        for key in keys:
            if self.is_typing:
                self._type(key)
            else:
                self._choose(key)

    def _type(self, key: str) -> None:
        if key in _ENTER:
            self.is_typing = False
        elif key == _ESCAPE:
            self.text, self.is_typing = "", False
        elif key in _BACKSPACE:
            self.text = self.text[:-1]
        elif key.isprintable():
            self.text += key

    def _choose(self, key: str) -> None:
        if key == "s":
            self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]
        elif key == "r":
            self.is_reversed = not self.is_reversed
        elif key in ("/", "f"):
            self.is_typing = True
        elif key in ("p", " "):
            self.is_paused = not self.is_paused
        elif key == _ESCAPE:
            self.text = ""
        elif key == "q":
            self.has_quit = True

    def chosen(self, found: Iterable[InTransition]) -> list[InTransition]:
        """Return the regions that fit the filter, in the chosen order: the oldest, or the most attempts, first."""
        fitting = [one for one in found if self._fits(one.line)]
        fitting.sort(key=lambda one: one.since_ms)
        if self.sort == "region":
            fitting.sort(key=lambda one: (one.line.table, one.line.region, one.line.replica))
        elif self.sort == "server":
            fitting.sort(key=lambda one: one.line.server)
        elif self.sort == "attempt":
            fitting.sort(key=lambda one: -one.line.attempt)
        return fitting[::-1] if self.is_reversed else fitting

    def _fits(self, line: Line) -> bool:
        words = (line.table, line.region, line.server, line.why, line.error, describe(line.before, line.after))
        return self.text.casefold() in " ".join(words).casefold()

    def words(self) -> str:
        """Return the last line of the screen: the present choices, and the keys."""
        order = f"{self.sort}{', reversed' if self.is_reversed else ''}"
        if self.is_typing:
            return f"filter: {self.text}_   Enter keeps it, Esc drops it"
        paused = "PAUSED   " if self.is_paused else ""
        text = f" ({self.text})" if self.text else ""
        resume = "resumes" if self.is_paused else "pauses"
        return f"{paused}s sorts ({order})   r reverses   / filters{text}   p {resume}   q quits"
