"""The screen of `rk watch --live`: health, regions in transition, servers with their load, rates, the latest steps.

`Board` is pure: `cli/diagnose/watch.py` passes events to it and refreshes the terminal.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

from rich.console import Group
from rich.text import Text

from cli.common import output
from cli.common.names import Names
from cli.diagnose.follow import Line, MembershipChange, describe
from cli.diagnose.health import STYLES, answering
from cli.diagnose.live.controls import Controls, InTransition
from regions.diagnose.health import Findings, Health

#: Time over which rates are computed.
RATE_MS: Final = 10_000
_LATEST: Final = 8
#: Problems that are shown.
_PROBLEMS: Final = 3


class Board:
    """The content of the screen of `rk watch --live`."""

    def __init__(self, names: Names, began_ms: int, controls: Controls | None = None) -> None:
        self._names = names
        self._controls = controls or Controls()
        self._health: list[Text] = []
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

    def health(self, verdict: Health, found: Findings) -> None:
        """Take the answers of all processes: the verdict, the store, and the heaviest problems."""
        head = Text(verdict.verdict.upper(), style=f"bold {STYLES[verdict.verdict]}")
        leader = next((one.name for one in found.store or () if one.role in ("leader", "standalone")), "none")
        store = [] if found.store is None else [f"{answering(found.store, 'store node')}, leader {leader}"]
        parts = [*store, answering(found.masters, "master"), answering(found.servers, "region server")]
        head.append("   " + "   ".join(parts), style="default")
        shown = [
            Text(f"  {self._names.in_sentence(one.text)}", style=STYLES[one.verdict])
            for one in verdict.reasons[:_PROBLEMS]
        ]
        left = len(verdict.reasons) - len(shown)
        more = [Text(f"  and {output.count(left, 'problem')} more: rk health", style="dim")] if left > 0 else []
        self._health = [head, *shown, *more]

    def frozen(self) -> Board:
        """Return the present content for a paused screen. No later event changes it."""
        made = Board(self._names, self._began_ms, self._controls)
        made._moving, made._servers = dict(self._moving), dict(self._servers)
        made._steps, made._latest = self._steps.copy(), self._latest.copy()
        made._total, made.active, made._health = self._total, self.active, self._health
        return made

    def begin(self, line: Line) -> None:
        """Add a region that is in transition when the watch begins. The line has the time at which its state began."""
        self._moving[line.region, line.replica] = InTransition(line.time_ms, line)

    def step(self, line: Line, text: Text) -> None:
        """Process a step of a transition."""
        key = (line.region, line.replica)
        if line.after:
            known = self._moving.get(key)
            # A failed open goes back to OFFLINE and is retried. This is no progress, so the age continues to count.
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
        lines = [self._head(now_ms), *self._health, self._counts(), self._server_line(), Text("")]
        found = self._controls.chosen(self._moving.values())
        # Lines in addition to the rows: the titles of the table, the line below it, and the keys.
        rows = max(1, height - len(lines) - len(self._latest) - 4)
        table = output.table(
            "",
            ["#age", "region", "step", "server", "why", "#attempt", "last error"],
            [self._row(one, now_ms) for one in found[:rows]],
        )
        left, hidden = len(found) - rows, len(self._moving) - len(found)
        below = [f"… and {left} more"] if left > 0 else []
        below += [f"{hidden} do not fit the filter"] if hidden else []
        keys = Text(self._controls.words(), style="reverse" if self._controls.is_paused else "dim")
        last = [Text(", ".join(below), style="dim"), *self._latest, keys]
        return Group(*[_one_line(one) for one in lines], table, *[_one_line(one) for one in last])

    def _head(self, now_ms: int) -> Text:
        window_s = max(1.0, min(RATE_MS, now_ms - self._began_ms) / 1000)
        opened = sum(1 for _, after in self._steps if after == "OPENED")
        head = Text(f"{output.clock(now_ms)}  ", style="bold")
        head.append(f"active master: {self.active or 'none'}   ", style="green" if self.active else "bold red")
        parked = sum(one.line.parked for one in self._moving.values())
        head.append(f"{output.in_transition(self.moving, parked)}   {len(self._steps) / window_s:.1f} steps/s   ")
        return head.append(
            f"{opened / window_s:.1f} opened/s   {self._total} steps since {output.clock(self._began_ms)}"
        )

    def _counts(self) -> Text:
        states = Counter("PARKED" if one.line.parked else one.line.after for one in self._moving.values())
        return Text("  ".join(f"{state} {count}" for state, count in sorted(states.items())) or "nothing moves")

    def _server_line(self) -> Text:
        by_server = Counter(one.line.server for one in self._moving.values())
        servers = Text("servers: ", style="dim")
        for uuid in sorted(self._servers, key=lambda one: self._servers[one]):
            name = self._servers[uuid]
            gone = name.endswith("(gone)")
            busy = by_server.get(name, 0)
            servers.append(f"{name}{f' {busy} moving' if busy else ''}  ", style="red" if gone else "")
        return servers

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
