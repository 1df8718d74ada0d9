"""`rk watch`: each transition as it happens, one line; `--json` gives one JSON object per line."""

from __future__ import annotations

import sys
from collections import deque
from typing import Any, Final, NamedTuple

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text
from twisted.internet.defer import ensureDeferred
from twisted.python.failure import Failure

from cli.common import output
from cli.common.connect import Cluster, open_cluster
from cli.common.errors import CliError, UnreachableError, UsageFaultError
from cli.common.lookup import table_of
from cli.common.names import Names
from cli.common.options import Globals, global_options
from cli.diagnose.follow import Follower, Line, MembershipChange, describe
from cli.diagnose.live import Board
from coord.client.session import SessionState
from regions.records.model import RegionState
from regions.transitions.observed import NONE, Change

#: What --state calls the end of a transition.
DONE: Final = "done"
_REFRESH_S: Final = 0.5

_STYLES = {
    "OFFLINE": "yellow",
    "OPENING": "cyan",
    "OPENED": "green",
    "CLOSING": "magenta",
    "CLOSED": "magenta",
    NONE: "dim",
}


@click.command()
@click.option("--table", "table_name", help="Only this table's transitions.")
@click.option("--server", "server_name", help="Only those on this server (its name, or host:port).")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([*(state.value for state in RegionState), DONE], case_sensitive=False),
    help="Only steps to this state; may be given several times.",
)
@click.option("--live", is_flag=True, help="A full screen: regions in transition by age, servers, rates.")
@click.option("--count", type=click.IntRange(1), help="Stop after that many transitions.")
@global_options
@click.pass_obj
def watch(
    given: Globals,
    table_name: str | None,
    server_name: str | None,
    states: tuple[str, ...],
    live: bool,
    count: int | None,
) -> None:
    """Each transition as it happens: time, table, keys, step, server, why, attempt. Ctrl-C ends it.

    With --json one object per line: "event" is watching (nothing that happens after it is missed), transition, active,
    no-active, server-up, server-down or connection.
    """
    if live and given.json:
        raise UsageFaultError("--live is a screen, --json are lines", "Give one of them.")
    if live and not sys.stdout.isatty():
        raise UsageFaultError("--live needs a terminal", "Without it, rk watch prints a line for each transition.")
    with open_cluster(given) as cluster:
        names = Names(cluster.servers(), cluster.local)
        hosts, root, access = cluster.hosts, cluster.layout.root or "/", cluster.access
        if table_name is not None:
            table_name = _table(cluster, table_name)
    from twisted.internet import reactor

    follower = Follower(reactor, hosts, root, access=access, wipe_allowed=True)
    wanted = Wanted(table_name, server_name, tuple(NONE if one == DONE else one for one in states))
    shown = Watch(follower, names, as_json=given.json, wanted=wanted, count=count, live=live)
    shown.run(reactor)


def _table(cluster: Cluster, name: str) -> str:
    """What the table of that name or id is called. Raises NotFoundError: nothing would ever be shown of it."""
    return table_of({one.table_id: one for one in cluster.tables()}, name).name


class Wanted(NamedTuple):
    """Filter of the transitions that are shown."""

    table: str | None = None
    server: str | None = None
    states: tuple[str, ...] = ()

    def fits(self, line: Line) -> bool:
        """Return whether a line is shown."""
        if self.table not in (None, line.table) or self.server not in (None, line.server):
            return False
        return not self.states or line.after in self.states


class Watch:
    """Prints what a follower sees, in the order in which it happened."""

    def __init__(
        self,
        follower: Follower,
        names: Names,
        *,
        as_json: bool,
        wanted: Wanted,
        count: int | None,
        live: bool = False,
    ) -> None:
        self._follower = follower
        self._names = names
        self._as_json = as_json
        self._wanted = wanted
        self._board = Board(names, follower.clock.now_ms()) if live else None
        self._screen: Live | None = None
        self._left = count
        self._waiting: deque[Change | MembershipChange] = deque()
        self._printing = False
        self._console: Console = output.console()
        self._failure: CliError | None = None
        self._reactor: Any = None
        #: We are ending: that our own connection goes is no news.
        self._is_ending = False
        follower.on_change = self._add
        follower.on_membership = self._add

    def run(self, reactor: Any) -> None:
        """Until Ctrl-C, the count is reached, or the store has gone for good. Raises CliError."""
        self._reactor = reactor
        reactor.addSystemEventTrigger("before", "shutdown", self._end)
        reactor.callWhenRunning(
            lambda: ensureDeferred(self._follower.start()).addCallbacks(self._started, self._failed)
        )
        try:
            reactor.run()
        finally:
            if self._screen is not None:
                self._screen.stop()
        if self._failure is not None:
            raise self._failure

    def _started(self, _: object) -> None:
        if self._board is not None:
            self._begin_screen(self._board)
            return
        left = len(self._follower.history.in_transition)
        if self._as_json:
            output.print_json_line(
                {"event": "watching", "time_ms": self._follower.clock.now_ms(), "in_transition": left}
            )
        else:
            regions = output.count(left, "region") if left else "no regions"
            self._console.print(f"watching; {regions} in transition now. Ctrl-C ends it.", style="dim")

        self._follower.client.on_state(self._connection)

    def _end(self) -> None:
        self._is_ending = True

    def _begin_screen(self, board: Board) -> None:
        for server in self._follower.servers.values():
            board.server(server.uuid, self._names.of_uuid(server.uuid), is_up=True)
        active = self._follower.active
        board.active = "" if active is None else self._names.of_address(active.host, active.port)
        self._screen = Live(console=self._console, screen=True, auto_refresh=False)
        self._screen.start()
        self._refresh()

    def _refresh(self) -> None:
        assert self._board is not None, "there is no screen without a board"
        assert self._screen is not None, "the screen has begun"
        self._reactor.callLater(_REFRESH_S, self._refresh)
        drawn = self._board.draw(self._follower.clock.now_ms(), self._console.height)
        self._screen.update(drawn, refresh=True)

    def _connection(self, state: SessionState) -> None:
        """Say when nothing can be seen, and that it is over."""
        what = {SessionState.SUSPENDED: "lost", SessionState.CONNECTED: "back", SessionState.EXPIRED: "expired"}.get(
            state
        )
        if what is None or self._is_ending:
            return
        now_ms = self._follower.clock.now_ms()
        if self._as_json:
            output.print_json_line({"event": "connection", "time_ms": now_ms, "state": what})
            return
        text = {
            "lost": "connection with the store lost, trying again",
            "back": "connection is back; what changed meanwhile follows",
            "expired": "the session expired, beginning another one",
        }[what]
        self._console.print(Text(f"{output.clock(now_ms)}  ** {text}", style="bold"), soft_wrap=True)

    def _failed(self, failure: Failure) -> None:
        self._failure = UnreachableError(f"cannot watch the store: {failure.getErrorMessage()}")
        self._stop()

    def _stop(self) -> None:
        if self._reactor.running:
            self._reactor.stop()

    def _add(self, news: Change | MembershipChange) -> None:
        """Queue: a line may need a read first, and must not be overtaken by a later one."""
        # A watch may run for weeks; what has been passed on is not needed again.
        self._follower.history.changes.clear()
        self._follower.memberships.clear()
        self._waiting.append(news)
        if not self._printing:
            self._printing = True
            ensureDeferred(self._drain()).addErrback(self._failed)

    async def _drain(self) -> None:
        while self._waiting:
            news = self._waiting.popleft()
            if isinstance(news, MembershipChange):
                self._print_membership(news)
            else:
                self._print_line(await self._follower.line(news, self._names))
            if self._left == 0:
                self._stop()
                break
        self._printing = False

    def _print_line(self, line: Line) -> None:
        if not self._wanted.fits(line) or self._left == 0:
            return
        if self._left is not None:
            self._left -= 1
        if self._as_json:
            output.print_json_line(line)
        elif self._board is not None:
            self._board.step(line, text_of(line))
        else:
            self._console.print(text_of(line), soft_wrap=True)

    def _print_membership(self, news: MembershipChange) -> None:
        host, _, port = news.address.rpartition(":")
        server = self._follower.servers.get(news.uuid)
        if server is not None:
            self._names.learn(server)
        name = self._names.of_address(host, int(port))
        if self._as_json:
            fields = {"event": news.what, "time_ms": news.at_ms, "name": name, "address": news.address}
            output.print_json_line({**fields, "uuid": news.uuid, "epoch": news.epoch})
            return
        what = {
            "active": f"{name} is the active master, epoch {news.epoch}",
            "no-active": f"{name} is no longer the active master",
            "server-up": f"{name} has registered",
            "server-down": f"{name} is gone",
        }[news.what]
        if self._board is not None:
            if news.what in ("active", "no-active"):
                self._board.active = name if news.what == "active" else ""
            else:
                self._board.server(news.uuid, name, is_up=news.what == "server-up")
            self._board.membership(news, what)
            return
        self._console.print(Text(f"{output.clock(news.at_ms)}  ** {what}", style="bold"), soft_wrap=True)


def text_of(line: Line) -> Text:
    """One line for people."""
    text = Text(f"{output.clock(line.time_ms)}  {line.table} {output.key_range(line.start_key, line.end_key)}")
    if line.replica:
        text.append(f" #{line.replica}")
    text.append("  ")
    text.append(describe(line.before, line.after), style=_STYLES.get(line.after, ""))
    if line.missed:
        text.append(f" ({line.missed} between unseen)", style="dim")
    if line.inferred:
        text.append(" (too quick to be seen)", style="dim")
    tail = [line.server, line.why, f"attempt {line.attempt}" if line.attempt else "", line.error]
    text.append("  " + "  ".join(part for part in tail if part))
    return text
