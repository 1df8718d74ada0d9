"""The screen of `rk watch --live`: regions in transition by age, servers with their load, rates, the latest steps.

`Board` is pure: `cli/diagnose/watch.py` passes events to it and refreshes the terminal.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Final, NamedTuple

from rich.console import Group
from rich.text import Text

from cli.common import output
from cli.common.names import Names
from cli.diagnose.follow import Line, MembershipChange, describe

#: Time over which rates are computed.
RATE_MS: Final = 10_000
_LATEST: Final = 8


class InTransition(NamedTuple):
    """A region in transition, and since when it has been in its state, or has failed to open: by the store at the begin
    of the watch."""

    since_ms: int
    line: Line


class Board:
    """The content of the screen of `rk watch --live`."""

    def __init__(self, names: Names, began_ms: int) -> None:
        self._names = names
        self._began_ms = began_ms
        self._moving: dict[tuple[str, int], InTransition] = {}
        self._steps: deque[tuple[int, str]] = deque()
        self._total = 0
        self._latest: deque[Text] = deque(maxlen=_LATEST)
        self._servers: dict[str, str] = {}
        self.active = ""

    def server(self, uuid: str, name: str, *, is_up: bool) -> None:
        """Process the registration or end of a server."""
        self._servers[uuid] = name if is_up else f"{name} (gone)"

    def begin(self, line: Line) -> None:
        """Add a region that is in transition when the watch begins. The line has the time at which its state began."""
        self._moving[line.region, line.replica] = InTransition(line.time_ms, line)

    def step(self, line: Line, text: Text) -> None:
        """Process a step of a transition."""
        key = (line.region, line.replica)
        if line.after:
            known = self._moving.get(key)
            # A failed open goes back to OFFLINE and is tried again: that is no progress, so the age goes on.
            stays = known is not None and (known.line.after == line.after or line.attempt > 0)
            self._moving[key] = InTransition(known.since_ms if known is not None and stays else line.time_ms, line)
        else:
            self._moving.pop(key, None)
        self._total += 1
        self._steps.append((line.time_ms, line.after))
        self._latest.append(text)

    def membership(self, change: MembershipChange, text: str) -> None:
        """Process a change of a master or server."""
        self._latest.append(Text(f"{output.clock(change.at_ms)}  ** {text}", style="bold"))

    @property
    def moving(self) -> int:
        """Return the number of regions in transition."""
        return len(self._moving)

    def draw(self, now_ms: int, height: int) -> Group:
        """Return the present screen, at most `height` lines."""
        while self._steps and self._steps[0][0] < now_ms - RATE_MS:
            self._steps.popleft()
        window_s = max(1.0, min(RATE_MS, now_ms - self._began_ms) / 1000)
        opened = sum(1 for _, after in self._steps if after == "OPENED")
        head = Text(f"{output.clock(now_ms)}  ", style="bold")
        head.append(f"active master: {self.active or 'none'}   ", style="green" if self.active else "bold red")
        head.append(f"{self.moving} in transition   {len(self._steps) / window_s:.1f} steps/s   ")
        head.append(f"{opened / window_s:.1f} opened/s   {self._total} steps since {output.clock(self._began_ms)}")
        states = Counter(one.line.after for one in self._moving.values())
        by_server = Counter(one.line.server for one in self._moving.values())
        counts = Text("  ".join(f"{state} {count}" for state, count in sorted(states.items())) or "nothing moves")
        servers = Text("servers: ", style="dim")
        for uuid in sorted(self._servers, key=lambda one: self._servers[one]):
            name = self._servers[uuid]
            gone = name.endswith("(gone)")
            busy = by_server.get(name, 0)
            servers.append(f"{name}{f' {busy} moving' if busy else ''}  ", style="red" if gone else "")
        rows = max(1, height - len(self._latest) - 8)
        oldest = sorted(self._moving.values(), key=lambda one: one.since_ms)
        table = output.table(
            "",
            ["#age", "region", "step", "server", "why", "#attempt", "last error"],
            [self._row(one, now_ms) for one in oldest[:rows]],
        )
        left = len(oldest) - rows
        more = Text(f"… and {left} younger ones", style="dim") if left > 0 else Text("")
        lines = [_one_line(one) for one in (head, counts, servers, Text(""))]
        return Group(*lines, table, more, *[_one_line(one) for one in self._latest])

    @staticmethod
    def _row(one: InTransition, now_ms: int) -> tuple[object, ...]:
        line = one.line
        age = f"{max(0, now_ms - one.since_ms) / 1000:.1f} s"
        region = f"{line.table} {line.region}" + (f" #{line.replica}" if line.replica else "")
        return age, region, describe(line.before, line.after), line.server, line.why, line.attempt or "", line.error


def _one_line(text: Text) -> Text:
    """Return the text as one line of the screen, which ends with an ellipsis in a narrow terminal."""
    text.no_wrap, text.overflow = True, "ellipsis"
    return text
